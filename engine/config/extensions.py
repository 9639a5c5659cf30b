"""Find extensions: optional capabilities, each a folder of engine/extensions. The core imports their files
only if a configuration names one of their kinds or keys. Torch-free.

An extension has its kinds where the engine has its own: `kind: replaced` of group `objective` may be
engine/extensions/detection/config/objective/replaced.py. It may also have

    checks.py   check(layout, roles, train, *, prefix, section): raises ConfigError for refused combinations
    hook.py     a class with the base `Hook`: its part of a training (engine/loop/hooks.py)
    cost.py     bytes_of_weight, off_device: its cost, for plans
    report.py   lines of plans and reports
    weights.py  take_weights: weights that stay off the device (engine/loop/attachments.py)
"""

from functools import cache
from pathlib import Path

from atelier.engine.config.error import ConfigError

CORE = Path(__file__).parent.parent  # engine
FOLDER = CORE / "extensions"
MODULE = f"atelier.engine.{FOLDER.name}."


@cache
def names() -> tuple[str, ...]:
    """The names of all extensions, sorted."""
    return tuple(sorted(path.name for path in FOLDER.glob("[!_]*") if path.is_dir()))


@cache
def kinds_of(group: str) -> dict[str, str]:
    """The kinds that extensions add to a group (objective, config/objective), each with its extension."""
    found: dict[str, str] = {}
    for name in names():
        for path in sorted((FOLDER / name / group).glob("[!_]*.py")):
            other = "the core" if (CORE / group / path.name).exists() else found.get(path.stem, "")
            if other:
                place = f"engine/extensions/{name}/{group}/{path.name}"
                raise ConfigError(place, f"{other} has a file of the same name", "rename this one")
            found[path.stem] = name
    return found


def extension_of(kind: type) -> str:
    """The extension that defines a class; '' for a class of the core."""
    module = kind.__module__
    return module.removeprefix(MODULE).partition(".")[0] if module.startswith(MODULE) else ""
