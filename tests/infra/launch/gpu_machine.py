"""A made-up machine with GPUs: an `nvidia-smi` that lists them, and a folder where they are locked."""

import os
from pathlib import Path


def machine(folder: Path, uuids: list[str]) -> dict[str, str]:
    """Environment of the commands of a machine with these GPUs."""
    there = folder / "bin"
    there.mkdir(parents=True, exist_ok=True)
    program = there / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + "".join(f"echo {uuid}\n" for uuid in uuids))
    program.chmod(0o755)
    (folder / "locks").mkdir(exist_ok=True)
    (folder / "locks").chmod(0o1777)
    return {"PATH": f"{there}{os.pathsep}{os.environ['PATH']}", "ATELIER_LOCKS": str(folder / "locks")}


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-0000-4000-8000-{number:012x}"
