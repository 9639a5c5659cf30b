"""Extensions: optional capabilities, each a folder of engine/extensions. The core finds them by their folder
and imports their files only where a configuration uses them: it names one of their kinds, or has one of their
keys. Torch-free.

An extension has its kinds where the engine has its own: `kind: replaced` of group `objective` may be
engine/extensions/detection/config/objective/replaced.py. Beside them it may have

    checks.py   check(layout, roles, train, *, prefix, section): raise ConfigError for what is not built
    hook.py     a class with the base `Hook`: what it does in a training (engine/loop/hooks.py)
    cost.py     bytes_of_weight, off_device: what the plan counts
    report.py   lines of plans and reports
    weights.py  take_weights: weights that are not to be on the device (engine/loop/attachments.py)
"""

from functools import cache
from pathlib import Path

from atelier.engine.config.error import ConfigError

CORE = Path(__file__).parent.parent  # engine
FOLDER = CORE / "extensions"
MODULE = f"atelier.engine.{FOLDER.name}."


@cache
def names() -> tuple[str, ...]:
    """All extensions, sorted."""
    return tuple(sorted(path.name for path in FOLDER.glob("[!_]*") if path.is_dir()))


@cache
def kinds_of(group: str) -> dict[str, str]:
    """The kinds of a group that extensions have, each with its extension. `group`: objective,
    config/objective.
    """
    found: dict[str, str] = {}
    for name in names():
        for path in sorted((FOLDER / name / group).glob("[!_]*.py")):
            other = "the core" if (CORE / group / path.name).exists() else found.get(path.stem, "")
            if other:
                place = f"engine/extensions/{name}/{group}/{path.name}"
                raise ConfigError(place, f"{other} has a file of that name, too", "rename this one")
            found[path.stem] = name
    return found


def extension_of(kind: type) -> str:
    """The extension that defines a class; '' for one of the core."""
    module = kind.__module__
    return module.removeprefix(MODULE).partition(".")[0] if module.startswith(MODULE) else ""
