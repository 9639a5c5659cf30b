"""User-facing errors with place, problem and way out. Imports nothing heavy."""

import difflib
import re
from collections.abc import Iterable, Sequence

UNSEEN = re.compile(  # control characters, bidirectional controls, lone surrogates
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
CUT = " ... "
NAME = 200  # characters of a word that are compared with known names
LONGEST_PLACE, LONGEST_PROBLEM, LONGEST_WAY_OUT = 200, 400, 2000  # characters of a ConfigError


# `text` may be any object
def printable(text: object, most: int = 160, *, keep: str = "") -> str:
    """`text` made safe for a terminal: characters in `UNSEEN` are escaped (\\n, \\x1b, \\udcff), except those
    in `keep`. Text above `most` characters is cut in the middle (0 = no limit).
    """
    seen = UNSEEN.sub(
        lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(),
        _shortened(str(text), most),
    )
    return _shortened(seen, most)


def _shortened(text: str, most: int) -> str:
    if not most or len(text) <= most:
        return text
    left = max(most - len(CUT), 2)
    return f"{text[: left - left // 3]}{CUT}{text[-(left // 3) :] if left // 3 else ''}"


def check_utf8(text: str, place: str, what: str) -> None:
    """Raise ConfigError if the text is not UTF-8. Python shows such bytes of file names and command lines as
    lone surrogates, which no record could store.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        way_out = "give it as UTF-8, or rename the file or folder: records keep names as text"
        raise ConfigError(place, f"{what} {printable(text)} is not UTF-8", way_out) from None


class AtelierError(Exception):
    """An error that a user can act on: printed as one line without traceback, with `exit_code` of the
    process.
    """

    exit_code = 1


class ConfigError(AtelierError):
    """Bad input, found before anything runs. `place`: configuration key or file; `problem`: with the value;
    `way_out`: the remedy. Each is cut to a short line.
    """

    exit_code = 2

    def __init__(self, place: str, problem: str, way_out: str = "") -> None:
        self.place = printable(place, LONGEST_PLACE)
        self.problem = printable(problem, LONGEST_PROBLEM)
        self.way_out = printable(way_out, LONGEST_WAY_OUT)
        super().__init__(f"{self.place}: {self.problem}" + (f"; {self.way_out}" if way_out else ""))


class RefusedError(ConfigError):
    """A refused plan, with one line for each of its `reasons` (at least one)."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("plan", reasons[0], "; ".join(reasons[1:]))
        self.args = ("\n".join(f"plan: {printable(reason, 0)}" for reason in reasons),)


class DataError(AtelierError):
    """Input that cannot be used: an empty source, a broken line, a tokenizer that does not fit."""

    exit_code = 2


class DamageError(AtelierError):
    """Stored bytes that do not match their digest or format; the message names the file. `place`: where they
    are from, if the caller gave it.
    """

    way_out = "`atelier gc --damaged` offers to remove it; the next run makes it again"

    def __init__(self, problem: str, way_out: str = "", place: str = "") -> None:
        super().__init__(problem)
        self.way_out, self.place = way_out or DamageError.way_out, place


class CopiesError(AtelierError):
    """Replicas of the same weights differ: memory or a device failed. The supervisor restarts the gang from
    the last checkpoint, where they were equal.
    """

    exit_code = 70  # EX_SOFTWARE


class DivergedError(AtelierError):
    """Some roles diverged and ended. The other roles are finished and published."""

    exit_code = 71


class AllDivergedError(AtelierError):
    """All roles of a training diverged. It ended, and nothing is published."""


class StoppedError(AtelierError):
    """Stopped on request (Ctrl-C, SIGTERM); everything finished is kept."""


def of_system(error: OSError) -> AtelierError:
    """An OSError as a user-facing error with the file's name, or the URL in the error's note."""
    place = str(error.filename or next(iter(getattr(error, "__notes__", ())), "input or output"))
    way_out = "; check that the store is up, its address and your credentials" if "://" in place else ""
    return AtelierError(f"{place}: {error.strerror or error}{way_out}")


def nearest(word: str, known: Iterable[str], least: float = 0.5) -> str:
    """The known name most similar to `word`; '' if no similarity reaches `least`."""
    found = difflib.get_close_matches(word[:NAME], list(known), n=1, cutoff=least)
    return found[0] if found else ""
