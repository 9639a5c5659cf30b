"""Record the shapes of matrix products that code computes."""

from types import TracebackType

from torch.profiler import ProfilerActivity, profile


class ProductShapes:
    """The shapes of all products of matrices, those inside of custom operators and backward passes too."""

    def __init__(self) -> None:
        self.shapes: set[str] = set()

    def __enter__(self) -> "ProductShapes":
        self._profile = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
        self._profile.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._profile.__exit__(kind, error, trace)
        self.shapes |= {
            str(event.input_shapes[:2]) for event in self._profile.events() or () if event.name == "aten::mm"
        }
