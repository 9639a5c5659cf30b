"""What has computed a role so far: the code, the versions of libraries, the arithmetic. Its checkpoints and
the finished model's record say it.
"""

import numpy as np
import torch

from atelier.engine.checkpoint.manifest import Manifest
from atelier.engine.checkpoint.writer import About
from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError
from atelier.engine.config.run_file import Member


class ComputedBy:
    """`codes`: digests of code maps; `libraries`: versions; both with the newest last. `computed`: in what
    arithmetic this process computes.
    """

    def __init__(self, spec: Member, computed: str) -> None:
        self.codes: tuple[str, ...] = (spec.code,) if spec.code else ()
        self.libraries: tuple[str, ...] = (f"torch {torch.__version__}, numpy {np.__version__}",)
        self.computed = computed
        self._accepts_others = spec.accept_code

    def go_on_from(self, found: Manifest, name: str, *, begun: bool, trains: bool) -> str:
        """Take over what computed a checkpoint of the role `name`: `begun`, if it has trained before;
        `trains`, if it goes on. Returns a warning where it goes on with other versions, or ''.

        Raises ConfigError when the checkpoint was computed in another arithmetic, unless that was accepted.
        """
        if found.computed and found.computed != self.computed and begun and not self._accepts_others:
            raise ConfigError(
                name,
                f"its checkpoint of step {found.step} was computed in {found.computed}, this machine "
                f"computes in {self.computed}",
                "--accept-code goes on; else go on where that one was made",
            )
        before, [now] = found.libraries, self.libraries[-1:]
        self.codes = _with(found.codes, self.codes if trains else ())
        self.libraries = _with(before, (now,) if trains else ())
        if not trains or not begun or not before or before[-1] == now:
            return ""
        return f"{name} was computed with {before[-1]} up to step {found.step}, and goes on with {now}"

    @property
    def of_checkpoint(self) -> About:
        """For a checkpoint's manifest."""
        return {"codes": self.codes, "libraries": self.libraries, "computed": self.computed}

    @property
    def summary(self) -> dict[str, Json]:
        """For the model's record: code and versions where there were several."""
        found: dict[str, Json] = {"computed": self.computed}
        for key, each in (("codes", self.codes), ("libraries", self.libraries)):
            if len(each) > 1:
                found[key] = list(each)
        return found


def _with(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    return (*before, *(each for each in now if each not in before[-1:]))
