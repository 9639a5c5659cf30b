"""The errors a user sees: what is wrong, where, and the way out. Imports nothing heavy."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

# what a terminal acts upon instead of showing it: control characters, marks that turn the direction of text,
# half characters
_UNSEEN = "\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_ACTS = re.compile(f"[{_UNSEEN}]")
_ACTS_IN_TEXT = re.compile(f"[{_UNSEEN}]".replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


class AtelierError(Exception):
    """Something a person can act on; printed as one line, never as a traceback. `exit_code` is the
    process's.
    """

    exit_code = 1


class ConfigError(AtelierError):
    """Bad input, known before anything runs. `place` is the configuration key or file, `problem` has the
    value, `way_out` what to do.
    """

    exit_code = 2

    def __init__(self, place: str, problem: str, way_out: str = "") -> None:
        self.place, self.problem, self.way_out = place, problem, way_out
        super().__init__(f"{place}: {problem}" + (f"; {way_out}" if way_out else ""))


class DataError(AtelierError):
    """The input cannot be used: an empty source, a broken line, a tokenizer that does not fit."""

    exit_code = 2


class DamageError(AtelierError):
    """Stored bytes differ from their digest, or are not what they have to be; names the file."""

    way_out = "`atelier gc --damaged` offers to remove it, the next run makes it again"

    def __init__(self, problem: str, way_out: str = "") -> None:
        super().__init__(problem)
        self.way_out = way_out or DamageError.way_out


class CopiesError(AtelierError):
    """Copies of the same weights differ: memory or a device failed. The last checkpoint is from before, so
    the gang's guard begins again.
    """

    exit_code = 70  # EX_SOFTWARE


class StoppedError(AtelierError):
    """Stopped on request (Ctrl-C, SIGTERM); everything finished is kept."""


def plain(text: object, *, lines: bool = False) -> str:
    """`text` as it may be shown on a terminal or written to a log, whoever it comes from: what would act on
    the terminal is spelled out. With `lines` it may be several lines with tabs.
    """
    return (_ACTS_IN_TEXT if lines else _ACTS).sub(lambda found: ascii(found[0])[1:-1], str(text))


def of_system(error: OSError) -> AtelierError:
    """What the system refused, and where, as an error that a user reads."""
    return AtelierError(f"{error.filename or 'input or output'}: {error.strerror or error}")


def to_line(error: AtelierError) -> dict[str, Any]:
    """What a process tells of the error that ended it; `from_line` makes an error of it again."""
    return {"error": str(error), "exit_code": error.exit_code, "is_damage": isinstance(error, DamageError)}


def from_line(line: dict[str, Any]) -> AtelierError:
    kind = DataError if line.get("exit_code") == 2 else DamageError if line.get("is_damage") else AtelierError
    return kind(line["error"])


def nearest(word: str, known: Iterable[str]) -> str:
    """The known name most like `word`, or '' when none is near."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return found[0] if found else ""
