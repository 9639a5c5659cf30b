"""Goodput: the share of a long training's time spent training when devices fail, and the checkpoint interval
that maximises it. Torch-free.

A checkpoint every I seconds stalls training for w seconds. M seconds pass between failures; d until a failure
is detected, r until the gang trains again, p until an asynchronous checkpoint is complete. k intervals
between two failures are kept if the second failure comes after k (I + w) + p. So of M + d + r seconds

    I exp(-p / M) / (exp((I + w) / M) - 1)

are kept training (Daly, "A higher order estimate of the optimum checkpoint interval", 2006). To first order
this is 1 - w / (I + w) - (d + r + p + (I + w) / 2) / M, greatest near I = sqrt(2 w M) (Young, 1974).
"""

import math
from dataclasses import dataclass

from atelier.engine.config.device import Device

HOUR = 3600.0
STALL_S = 0.02
COPIED = 10e9  # bytes/s from a device to its host
WRITTEN = 1e9  # bytes/s from a host to the store
DETECT_S = 30.0
RESTART_S = 60.0
MANY = 100.0
FEWEST = 4  # checkpoints of a run


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Seconds: `between` two failures of the whole gang, `stall` per checkpoint, `detect`, `restart`, `lag`
    until a checkpoint is complete.
    """

    between: float
    stall: float
    detect: float
    restart: float
    lag: float = 0.0

    @property
    def best_interval(self) -> float:
        """Seconds of training between checkpoints."""
        return math.sqrt(2 * self.stall * self.between)

    def effective(self, interval: float) -> float:
        """The share of time spent training, with a checkpoint every `interval` seconds of training."""
        failures = (interval + self.stall) / self.between  # per interval
        if failures > MANY:
            return 0.0
        kept = interval * math.exp(-self.lag / self.between) / math.expm1(failures)
        return kept / (self.between + self.detect + self.restart)


def faults_of(device: Device, ranks: int, state_bytes: float) -> Faults:
    """Expected faults of a gang of `ranks` devices, each of which copies `state_bytes` to its host per
    checkpoint. Detection and restart times are the constants above; a checkpoint is complete once its bytes
    are on a disk.
    """
    return Faults(
        between=between_failures(device.mtbf_hours, ranks),
        stall=STALL_S + state_bytes / COPIED,
        detect=DETECT_S,
        restart=RESTART_S,
        lag=state_bytes / WRITTEN,
    )


def steps_between(faults: Faults, step_s: float, num_steps: int) -> int:
    """Steps between checkpoints: a round number near the best, with at least FEWEST checkpoints per run."""
    best = max(1.0, min(faults.best_interval / step_s, num_steps / FEWEST))
    size = 10 ** math.floor(math.log10(best))
    return max(round(factor * size) for factor in (1, 2, 5) if factor * size <= best * 1.001)


def between_failures(mtbf_hours: float, devices: int) -> float:
    """Seconds between failures of a gang whose devices fail independently, each every `mtbf_hours`."""
    return mtbf_hours * HOUR / devices
