"""Networks as shapes, before their weights are read or drawn."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Unfilled(TorchFunctionMode):
    """torch.nn.init's functions leave their tensor as it is."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def blank() -> Iterator[None]:
    """Modules made in here have weights without memory (device meta), and draw none: to draw for a meta
    tensor torch would import its compiler, two seconds.
    """
    with torch.device("meta"), _Unfilled():
        yield
