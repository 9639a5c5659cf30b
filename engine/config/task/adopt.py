"""Config of the tasks adopt and adopt_adapter. `files`: all files read, each with its content id; `bytes`:
total size, for the plan's check of the disk.
"""

from atelier.engine.config.base import Spec


class AdoptAdapterConfig(Spec):
    source: str
    bytes: int = 0
    files: tuple[tuple[str, str], ...]


class AdoptConfig(AdoptAdapterConfig):
    weights: tuple[str, ...]
