"""One member of a gang: joins the others by what its environment says, and adds up over all of them.

Exits with 1 if a sum is wrong. Prints one JSON object.
"""

import json
import os

import torch
import torch.distributed as dist

# Everything comes from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
dist.init_process_group("gloo", init_method="env://")
rank, size = dist.get_rank(), dist.get_world_size()
assert size == int(os.environ["WORLD_SIZE"]) and rank == int(os.environ["RANK"])

values = torch.arange(4, dtype=torch.float64) + rank
dist.all_reduce(values)
wanted = [float(size * at + size * (size - 1) // 2) for at in range(4)]
assert values.tolist() == wanted, (values.tolist(), wanted)

everyone = [None] * size
dist.all_gather_object(everyone, {"rank": rank, "master": os.environ["MASTER_ADDR"]})
assert [one["rank"] for one in everyone] == list(range(size)), everyone
dist.barrier()
print(json.dumps({"rank": rank, "size": size, "sum": values.tolist(), "members": everyone}), flush=True)
dist.destroy_process_group()
