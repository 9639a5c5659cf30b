"""Origin of an adopted model: source, revision and licence."""

import re
from collections.abc import Mapping

from atelier.engine.config.base import Json
from atelier.engine.io import storage
from atelier.engine.io.hub import commit_of

CARD = "README.md"
LICENCE = re.compile(r"^licen[sc]e:[ \t]*([\w.+-]+)[ \t]*$", re.MULTILINE)
MOST_CARD = 1 << 20  # bytes read of a model card


def origin(source: str, known: Mapping[str, str]) -> dict[str, Json]:
    """The fields of a record about `source`. `known`: the URLs of its files by name."""
    is_here = storage.is_local(source)  # a record has only the last part of local folders
    where = storage.local_path(source).absolute().name if is_here else source
    return {
        "source": where,
        "revision": commit_of(where) or (where.rpartition("@")[2] if "://" in where and "@" in where else ""),
        "licence": _licence(known),
    }


def _licence(known: Mapping[str, str]) -> str:
    """The licence in the model card, or the name of a licence file."""
    if CARD in known:
        found = LICENCE.search(storage.read_bytes(known[CARD], MOST_CARD).decode(errors="replace"))
        if found:
            return found[1]
    return next((name for name in known if name.upper().startswith("LICEN")), "unknown")
