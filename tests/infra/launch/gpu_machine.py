"""A made-up machine with GPUs: an `nvidia-smi` that lists them, and a folder where they are locked."""

import os
from pathlib import Path

H100 = "NVIDIA H100 80GB HBM3"


def machine(folder: Path, uuids: list[str], name: str = H100) -> dict[str, str]:
    """Environment of the commands of a machine with these GPUs, all called `name`."""
    there = folder / "bin"
    there.mkdir(parents=True, exist_ok=True)
    program = there / "nvidia-smi"
    names, ids = ("".join(f"echo '{word}'\n" for word in words) for words in ([name] * len(uuids), uuids))
    program.write_text(f"#!/bin/sh\ncase $1 in --query-gpu=name) {names or ':'};; *) {ids or ':'};; esac\n")
    program.chmod(0o755)
    (folder / "locks").mkdir(exist_ok=True)
    (folder / "locks").chmod(0o1777)
    return {"PATH": f"{there}{os.pathsep}{os.environ['PATH']}", "ATELIER_LOCKS": str(folder / "locks")}


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-0000-4000-8000-{number:012x}"
