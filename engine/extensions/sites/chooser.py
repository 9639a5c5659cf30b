"""Which codec a site takes for its next contribution: the least lossy one that its link carries in time.
Torch-free.

A message of b bytes takes its codec's seconds and b / rate to the slowest peer: it goes to all at once, and
a rate is what is left beside the others. It has the training time of `delay` steps, but of no more than there
are between two messages, which would pile up; and it may hold up the training by `stall` of a round's. So
that a rate at the border does not change the codec every round, a less lossy one than the last is taken only
where it needs at most `MARGIN` of that time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MARGIN = 0.8


@dataclass
class CodecChooser:
    """`interval`: steps between two messages. `codec_s`: seconds that each codec took last, by its place."""

    delay: int
    interval: int
    stall: float
    step_s: float = 0.0
    codec_s: dict[int, float] = field(default_factory=dict)

    @property
    def hidden_s(self) -> float:
        """Seconds of training while a message crosses, until it is waited for."""
        return self.step_s * min(self.delay, self.interval)

    @property
    def time_s(self) -> float:
        """Seconds that a message has until the training waits for it longer than it may."""
        return self.hidden_s + self.step_s * self.stall * self.interval

    def seconds(self, codec: int, num_bytes: int, rates: Mapping[str, float]) -> float:
        """What a message takes."""
        return self.codec_s.get(codec, 0.0) + max((num_bytes / rate for rate in rates.values()), default=0.0)

    def choose(self, bytes_of: Sequence[int], rates: Mapping[str, float | None], last: int | None) -> int:
        """The codec of a message, by its place in `bytes_of`; while a rate or the steps' time is not known,
        the lossiest.
        """
        known = {peer: rate for peer, rate in rates.items() if rate is not None}
        lossiest = len(bytes_of) - 1
        if len(known) < len(rates) or not self.step_s:
            return lossiest
        for codec, num_bytes in enumerate(bytes_of):
            has = self.time_s * (MARGIN if last is not None and codec < last else 1.0)
            if self.seconds(codec, num_bytes, known) <= has:
                return codec
        return lossiest
