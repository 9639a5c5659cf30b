"""Repair a text's encoding with ftfy (optional): mojibake, lone surrogates, control characters, HTML entities
in texts without tags.

Meaning and layout stay: quotes, ligatures, the width of characters, line ends and the Unicode form are left
alone, as in datatrove's FTFYFormatter.
"""

import importlib
import re
from functools import cache
from importlib.util import find_spec
from typing import Protocol, cast

from atelier.engine.config.error import ConfigError

LIBRARY = "ftfy"
# ftfy repairs line by line, and a line of these characters alone never changes
_SUSPECT = re.compile(r"[^\t\n -%'-~]")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


class Fixer(Protocol):
    """The part of ftfy that is used."""

    def TextFixerConfig(self, **settings: bool | str | None) -> object: ...

    def fix_text(self, text: str, config: object) -> str: ...


def repaired(text: str) -> str:
    """The repaired text. Raises ConfigError without ftfy. Time is linear in the text, at most about 10 us a
    line that may need a repair.
    """
    ftfy = _ftfy()
    if not _SUSPECT.search(text):
        return text
    unescaped = ftfy.TextFixerConfig(unescape_html="auto", **_settings())
    plain = ftfy.TextFixerConfig(unescape_html=False, **_settings())
    has_tags, parts = False, list[str]()
    for found in _LINE.finditer(text):
        line = found[0]
        has_tags = has_tags or "<" in line  # entities are text from the first tag on
        parts.append(ftfy.fix_text(line, plain if has_tags else unescaped) if _SUSPECT.search(line) else line)
    return "".join(parts)


def _settings() -> dict[str, bool | None]:
    return {
        "remove_terminal_escapes": True,
        "fix_encoding": True,
        "restore_byte_a0": True,
        "replace_lossy_sequences": True,
        "decode_inconsistent_utf8": True,
        "fix_c1_controls": True,
        "fix_latin_ligatures": False,
        "fix_character_width": False,
        "uncurl_quotes": False,
        "fix_line_breaks": False,
        "fix_surrogates": True,
        "remove_control_chars": True,
        "normalization": None,
        "explain": False,
    }


@cache
def _ftfy() -> Fixer:
    if find_spec(LIBRARY) is None:
        raise ConfigError(
            "repair",
            f"repairing text needs {LIBRARY}, which is not installed",
            f"pip install {LIBRARY} (the extra curation), or leave the repair out",
        )
    return cast(Fixer, importlib.import_module(LIBRARY))
