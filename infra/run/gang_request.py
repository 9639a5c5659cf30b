"""What a task asks of its run context: a gang of processes that makes its products."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from atelier.engine.config.base import JsonObject
from atelier.infra.dag import Node, Product


@dataclass(frozen=True, kw_only=True)
class GangRequest:
    """A gang that makes `outputs` of `node`: `ranks` processes of `module`, each with `threads` threads.

    `config` is called with the fences of the leased addresses, `inputs` after it; by default these are the
    node's inputs. `addresses` defaults to those of the outputs.
    `is_asked`: whether others at other sites need it, whatever it makes here.
    """

    node: Node
    module: str
    config: Callable[[Mapping[str, int]], JsonObject]
    outputs: Mapping[str, Product]
    addresses: Sequence[str] | None = None
    inputs: Callable[[], Mapping[str, str]] | None = None
    ranks: int = 1
    threads: int = 1
    layout: JsonObject | None = None
    seed: int = 1
    is_asked: Callable[[], bool] = bool
