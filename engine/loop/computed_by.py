"""The code, library versions and arithmetic that have computed a role so far, as stored in its checkpoints
and in the finished model's record.
"""

import numpy as np
import torch

from atelier.engine.checkpoint.manifest import Manifest
from atelier.engine.checkpoint.writer import About
from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError
from atelier.engine.config.run_file import Member


class ComputedBy:
    """`codes`: digests of code maps; `libraries`: versions; both with the newest last. `computed`: arithmetic
    of this process.
    """

    def __init__(self, spec: Member, computed: str) -> None:
        self.codes: tuple[str, ...] = (spec.code,) if spec.code else ()
        self.libraries: tuple[str, ...] = (f"torch {torch.__version__}, numpy {np.__version__}",)
        self.computed = computed
        self._accepts_others = spec.accept_code

    def go_on_from(self, found: Manifest, name: str, *, begun: bool, trains: bool) -> str:
        """Take over the values of a checkpoint of role `name`. `begun`: the role has trained before;
        `trains`: it will train. Returns a warning if it resumes with other versions, or ''.

        Raises ConfigError if the checkpoint was computed in another arithmetic, unless that is accepted.
        """
        if found.computed and found.computed != self.computed and begun and not self._accepts_others:
            raise ConfigError(
                name,
                f"its checkpoint of step {found.step} was computed in {found.computed}, but this machine"
                f" computes in {self.computed}",
                "--accept-code resumes it; or resume on a machine like the first",
            )
        before, [now] = found.libraries, self.libraries[-1:]
        self.codes = _with(found.codes, self.codes if trains else ())
        self.libraries = _with(before, (now,) if trains else ())
        if not trains or not begun or not before or before[-1] == now:
            return ""
        return f"{name} was computed with {before[-1]} up to step {found.step}, and resumes with {now}"

    @property
    def of_checkpoint(self) -> About:
        """Entries for a checkpoint's manifest."""
        return {"codes": self.codes, "libraries": self.libraries, "computed": self.computed}

    @property
    def summary(self) -> dict[str, Json]:
        """Entries for the model's record: code and versions, if there were several."""
        found: dict[str, Json] = {"computed": self.computed}
        for key, each in (("codes", self.codes), ("libraries", self.libraries)):
            if len(each) > 1:
                found[key] = list(each)
        return found


def _with(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    return (*before, *(each for each in now if each not in before[-1:]))
