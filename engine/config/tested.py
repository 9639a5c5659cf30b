"""Hooks into private names of libraries, and the versions that each was tested with.

On another version a hook is switched off with one line on stderr, and the library's own way is taken; where
there is none, what needs the hook is refused by name. Private names that are only read are not listed: one
that is gone is an error by itself.
"""

import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from atelier.engine.config.error import ConfigError, printable

RANGES = {  # library -> the first tested version, and the first that was not; as in pyproject.toml
    "prefect": ("3.8.8", "3.9"),
    "mlflow": ("3.17.2", "3.18"),
    "hydra-core": ("1.3.2", "1.4"),
    "optuna": ("5", "6"),
    "torch": ("2.11", "2.14"),
}


@dataclass(frozen=True)
class LibraryHook:
    """A hook into private names of a library: its purpose, and what happens without it (empty = refused)."""

    library: str
    does: str
    without: str = ""


HOOKS = {
    "results": LibraryHook("prefect", "runs whose states could name pickled results, which are never opened"),
    "patience": LibraryHook(
        "prefect",
        "a worker that skips a cancelled run which is rescheduled at once",
        "such a run may end its worker; start it again",
    ),
    "services": LibraryHook(
        "prefect",
        "background services beside the heartbeat that is watched",
        "a child process runs them",
    ),
    "start page": LibraryHook(
        "mlflow", "pages that open in the view for training runs", "they may open in another view"
    ),
    "sweeps": LibraryHook("hydra-core", "sweeps (-m), which drive Hydra's multirun"),
    "suggestions": LibraryHook("optuna", "hydra/sweeper=optuna, whose trials take any distribution"),
    "tensor styles": LibraryHook("torch", "parallel.tensor above 1, whose styles pass further arguments on"),
    "offloaded experts": LibraryHook(
        "torch", "experts on host or disk, which load in the middle of autograd"
    ),
    "recompilations": LibraryHook(
        "torch", "compiled blocks of many roles and shapes", "beyond torch's limit they run uncompiled"
    ),
    "any length": LibraryHook(
        "torch", "losses compiled once for every number of tokens", "new lengths are compiled again"
    ),
    "memory history": LibraryHook(
        "torch", "the page of GPU memory in profiles", "profiles have no such page"
    ),
    "half": LibraryHook(
        "torch", "asking oneDNN for 16-bit arithmetic of CPUs", "the CPU's flags decide on 16-bit arithmetic"
    ),
}


def numbers(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` as (2, 13, 0). Pre-releases count as the release that they precede."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


@cache
def installed(library: str) -> str:
    """Its version; '' if it is not installed."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""


def is_tested(library: str) -> bool:
    """Whether the installed version is in the tested range; False if it is not installed."""
    first, beyond = RANGES[library]
    return numbers(first) <= numbers(installed(library)) < numbers(beyond)


def is_on(name: str) -> bool:
    """Whether the hook may be used. If not, says so once on stderr."""
    if is_tested(HOOKS[name].library):
        return True
    _say(line_of(name))
    return False


def require(name: str) -> None:
    """Raises ConfigError unless the hook may be used."""
    library = HOOKS[name].library
    if not is_tested(library):
        first, beyond = RANGES[library]
        raise ConfigError(
            library,
            f"{installed(library)} was not tested with {HOOKS[name].does}",
            f"pip install '{library}>={first},<{beyond}'",
        )


def line_of(name: str) -> str:
    """The line about a hook that is off, and what happens instead."""
    hook = HOOKS[name]
    instead = hook.without or "nothing else does that: it is refused"
    return f"{hook.library} {installed(hook.library)} was not tested: no {hook.does}; {instead}"


def notes() -> list[str]:
    """A line for each hook that is off with the installed libraries."""
    off = {library for library in RANGES if installed(library) and not is_tested(library)}
    return [line_of(name) for name, hook in HOOKS.items() if hook.library in off]


@cache
def _say(line: str) -> None:
    print(f"note: {printable(line, 0)}", file=sys.stderr, flush=True)
