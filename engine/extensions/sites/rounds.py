"""Schedule of rounds: when each is sent, when its outer step is taken, and which weights it has. Torch-free.

With K fragments of the weights a round comes every `every / K` steps and has the next fragment, so each is
exchanged once in `every` steps (Streaming DiLoCo, 2501.18512, section 2.2). Its outer step is taken `delay`
steps after it was sent (section 2.3). The last round, at the training's end, has all weights. By then every
outer step is taken, so all sites end with one model.
"""

import re
from collections.abc import Mapping

from atelier.engine.config.error import ConfigError
from atelier.engine.extensions.sites.config.train.link import Link

_UNIT = re.compile(r"(?:.*?\.)?\d+(?=\.|$)")  # up to the first number of a name: the block


class Rounds:
    """The rounds of a training of `steps` steps, counted from 1; steps are counted from its first."""

    def __init__(self, link: Link, steps: int) -> None:
        self._delay, self._fragments, self._steps = link.delay, link.fragments, steps
        self._interval = link.interval
        self.last = steps // self._interval

    def sent_at(self, step: int) -> int:
        """The round that is sent after `step`; 0 = none."""
        return step // self._interval if step % self._interval == 0 else 0

    def step_of(self, number: int) -> int:
        """The step after which a round is sent."""
        return number * self._interval

    def due(self, number: int) -> int:
        """The step after which a round's outer step is taken."""
        return min(self._steps, self.step_of(number) + self._delay)

    def due_at(self, step: int) -> list[int]:
        """The rounds whose outer steps are taken after `step`, oldest first."""
        newest = min(self.last, step // self._interval)
        oldest = max(1, self.done_by(step - 1) + 1)
        return [number for number in range(oldest, newest + 1) if self.due(number) == step]

    def done_by(self, step: int) -> int:
        """The last round up to which all outer steps are taken after `step`."""
        return self.last if step >= self._steps else max(0, step - self._delay) // self._interval

    def fragment(self, number: int) -> int:
        """The fragment of a round, from 1; 0 = all weights."""
        if self._fragments == 1 or number == self.last:
            return 0
        return (number - 1) % self._fragments + 1


def cut(sizes: Mapping[str, int], fragments: int) -> list[set[str]]:
    """The names of the weights of each fragment, from names and numbers of elements alone. The weights of a
    block stay together; the largest come first, each to the smallest fragment.

    Raises ConfigError if there are more fragments than blocks and weights outside them.
    """
    units: dict[str, list[str]] = {}
    for name in sorted(sizes):
        found = _UNIT.match(name)
        units.setdefault(found[0] if found else name, []).append(name)
    if len(units) < fragments:
        raise ConfigError(
            "train.link.fragments",
            f"{fragments}, and there are {len(units)} blocks and weights outside them",
            f"{len(units)} or fewer",
        )
    weighed = {unit: sum(sizes[name] for name in names) for unit, names in units.items()}
    filled, result = [0] * fragments, [set[str]() for _ in range(fragments)]
    for unit in sorted(units, key=lambda unit: (-weighed[unit], _natural(unit))):
        least = filled.index(min(filled))
        filled[least] += weighed[unit]
        result[least].update(units[unit])
    return result


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key: block 9 before block 10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
