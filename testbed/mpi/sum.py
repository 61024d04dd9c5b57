"""One process of an MPI program: adds up the ranks of all by MPI_Allreduce of Open MPI's own library.

Exits with 1 if the sum is wrong. Needs no compiler and no package: the library is called as it is.
"""

import ctypes
import os
import sys

mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)


def handle(name: str) -> ctypes.c_void_p:
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))


world = handle("ompi_mpi_comm_world")
rank, size, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
assert mpi.MPI_Init(None, None) == 0
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
mpi.MPI_Comm_size(world, ctypes.byref(size))
done = mpi.MPI_Allreduce(ctypes.byref(rank), ctypes.byref(total), 1, handle("ompi_mpi_int"), handle("ompi_mpi_op_sum"), world)
came_by_ssh = "SSH_CONNECTION" in os.environ
mpi.MPI_Finalize()
print(f"rank {rank.value} of {size.value}: {total.value}{' over ssh' if came_by_ssh else ''}", flush=True)
sys.exit(done != 0 or total.value != size.value * (size.value - 1) // 2)
