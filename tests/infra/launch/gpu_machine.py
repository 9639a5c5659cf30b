"""A made-up machine with GPUs: an `nvidia-smi` that lists them, and a folder where they are locked."""

import os
from collections.abc import Mapping
from pathlib import Path

H100 = "NVIDIA H100 80GB HBM3"
H100_MIB = 81559


def machine(
    folder: Path,
    uuids: list[str],
    name: str = H100,
    *,
    total: int = H100_MIB,
    used: Mapping[str, int] | None = None,
    others: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Environment of the commands of a machine with these GPUs, all called `name` but the `others`, with
    `total` MiB of memory each, of which programs use `used`.
    """
    there = folder / "bin"
    there.mkdir(parents=True, exist_ok=True)
    program = there / "nvidia-smi"
    named, taken = others or {}, used or {}
    lines = [f"{one}, {named.get(one, name)}, {total}, {taken.get(one, 4)}" for one in uuids]
    said = "".join(f"echo '{line}'\n" for line in lines) or ":"
    program.write_text(f"#!/bin/sh\ncase $1 in --query-gpu=uuid,name,*) {said};; *) :;; esac\n")
    program.chmod(0o755)
    (folder / "locks").mkdir(exist_ok=True)
    (folder / "locks").chmod(0o1777)
    return {"PATH": f"{there}{os.pathsep}{os.environ['PATH']}", "ATELIER_LOCKS": str(folder / "locks")}


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-0000-4000-8000-{number:012x}"
