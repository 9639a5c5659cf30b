"""A task's request to its run context for a gang of processes that makes its products."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from atelier.engine.config.base import JsonObject
from atelier.engine.config.message import Message
from atelier.infra.dag import Node, Product


@dataclass(frozen=True, kw_only=True)
class GangRequest:
    """A gang that makes `outputs` of `node`: its ranks are processes of `module` with `threads` threads.

    `config` is called with the fences of the leased addresses, `inputs` after it; by default these are the
    node's own, like `threads` (0). `addresses` defaults to those of the outputs.
    `heard`: called with each message of the gang. `is_asked`: other sites need the gang, even if all outputs
    here exist.
    """

    node: Node
    module: str
    outputs: Mapping[str, Product]
    config: Callable[[Mapping[str, int]], JsonObject] | None = None
    addresses: Sequence[str] | None = None
    inputs: Callable[[], Mapping[str, str]] | None = None
    threads: int = 0
    seed: int = 1
    is_asked: Callable[[], bool] = bool
    heard: Callable[[Message], None] | None = None
