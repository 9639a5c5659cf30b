"""Choose the codec of a site's next contribution: the least lossy one that crosses in time. Torch-free.

A message of b bytes takes its codec's seconds plus b / rate at the slowest peer; rates are measured while it
goes to all peers at once. It has the training time of `delay` steps, at most the steps between two messages,
plus `stall` of a round's time. A less lossy codec than the last is taken only if it needs at most `MARGIN` of
that time, so that the codec does not change every round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MARGIN = 0.8


@dataclass
class CodecChooser:
    """`interval`: steps between two messages. `codec_s`: seconds that each codec took last, by its index."""

    delay: int
    interval: int
    stall: float
    step_s: float = 0.0
    codec_s: dict[int, float] = field(default_factory=dict)

    @property
    def hidden_s(self) -> float:
        """Seconds of training while a message crosses, before the training waits for it."""
        return self.step_s * min(self.delay, self.interval)

    @property
    def time_s(self) -> float:
        """Seconds that a message may take."""
        return self.hidden_s + self.step_s * self.stall * self.interval

    def seconds(self, codec: int, num_bytes: int, rates: Mapping[str, float]) -> float:
        """Seconds that a message takes."""
        return self.codec_s.get(codec, 0.0) + max((num_bytes / rate for rate in rates.values()), default=0.0)

    def choose(self, bytes_of: Sequence[int], rates: Mapping[str, float | None], last: int | None) -> int:
        """The codec of a message, as an index of `bytes_of`; the lossiest while a rate or the time of a step
        is not known.
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
