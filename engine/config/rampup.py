"""Growth of the batch in equal steps, by samples, as Megatron-LM's --rampup-batch-size. Torch-free."""

from functools import lru_cache

from pydantic import Field, model_validator

from atelier.engine.config.base import Spec


class RampUp(Spec):
    start: int = Field(default=0, ge=0, description="sequences of the first batches; 0 = no ramp")
    by: int = Field(default=0, ge=0, description="sequences by which a batch grows at each increment")
    samples: int = Field(
        default=0, ge=0, description="samples of the ramp, equally many at each size before the full batch"
    )

    @model_validator(mode="after")
    def _whole(self) -> "RampUp":
        given = (self.start, self.by, self.samples)
        if any(given) and not all(given):
            raise ValueError(
                f"rampup needs start, by and samples above 0, or none of them; given {self.start}, {self.by}"
                f" and {self.samples}"
            )
        return self

    @property
    def is_on(self) -> bool:
        return self.start > 0

    def misfit(self, batch: int) -> str:
        """The problem if no whole number of increments leads to the full batch; '' if one does."""
        if not self.is_on or (self.start < batch and (batch - self.start) % self.by == 0):
            return ""
        return f"rampup from {self.start} by {self.by} does not reach global_batch={batch}"

    def batch_after(self, samples: int, batch: int) -> int:
        """The batch after `samples` samples: start + by * floor(samples / r), r = samples of the ramp /
        number of increments, as in Megatron-LM (megatron/microbatches.py); `batch` from the ramp's end on.
        """
        if samples >= self.samples:
            return batch
        return self.start + self.by * (samples * ((batch - self.start) // self.by) // self.samples)

    def sizes(self, batch: int) -> tuple[tuple[int, int, int], ...]:
        """For each size of the ramp, the full one included: its first step, the samples before it, and its
        sequences. A size without a step is left out.
        """
        return _sizes(self.start, self.by, self.samples, batch)


@lru_cache(maxsize=64)
def _sizes(start: int, by: int, samples: int, batch: int) -> tuple[tuple[int, int, int], ...]:
    ramp, count = RampUp(start=start, by=by, samples=samples), (batch - start) // by
    step, seen, found = 0, 0, [(0, 0, start)]
    while found[-1][2] < batch:
        now = found[-1][2]
        number = (now - start) // by + 1
        until = -(-samples * number // count)  # the first count of samples with the next size
        steps = -(-(until - seen) // now)
        step, seen = step + steps, seen + steps * now
        found.append((step, seen, ramp.batch_after(seen, batch)))
    return tuple(found)
