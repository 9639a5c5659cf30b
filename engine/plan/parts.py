"""Something that is the sum of named parts. Torch-free."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Parts:
    """All fields are numbers of one unit."""

    @property
    def total(self) -> float:
        return sum(asdict(self).values())
