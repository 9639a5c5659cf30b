"""Compare two code maps. Code that was only moved and renamed counts as unchanged.

moved_code.yaml describes one such move: the digest of every file before it, the files that got its content,
and the digest of every file after it. A code map from before the move is translated: a file with a digest in
the table counts as the files that it became.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("moved_code.yaml")
Map = dict[str, dict[str, str]]  # file -> function, Class, Class.method or '' (the rest) -> digest
Entry = Mapping[str, str] | str  # of a code map: digests of a file's parts, or of the file as in records
OTHER = ""  # an entry that differs from every file's


def digest_of(code: Map) -> str:
    """Digest of a map, 16 digits."""
    return hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()[:16]


def files_of(code: Map) -> dict[str, str]:
    """The map with one digest per file, as stored in records."""
    return {file: _file_digest(file, parts) for file, parts in code.items()}


def _file_digest(file: str, entry: Entry) -> str:
    """Digest of a file, 8 digits, from an entry of a map of either form."""
    return entry if isinstance(entry, str) else digest_of({file: dict(entry)})[:8]


def changed(old: Mapping[str, Entry], new: Mapping[str, Entry]) -> list[str]:
    """Files that differ between two maps (of either form), with the differing functions where known. Code
    that was only moved counts as the same (`read_moved`).
    """
    old, result = read_moved(old, new), []
    for file in sorted({*old, *new}):
        before, now = old.get(file), new.get(file)
        if before == now:
            continue
        if before is None or now is None:
            result.append(f"{file} ({'new' if before is None else 'gone'})")
        elif isinstance(before, dict) and isinstance(now, dict):
            parts = [part for part in sorted({*before, *now}) if part and before.get(part) != now.get(part)]
            result.append(f"{file} ({', '.join(parts)})" if parts else file)
        else:
            result.append(file)
    return result


def read_moved(old: Mapping[str, Entry], new: Mapping[str, Entry]) -> Mapping[str, Entry]:
    """Translate `old`, a code map from before or after the move, to the files of `new`, the current code's
    map.

    Files that are the same according to the table get the entry of `new`; others get one that differs from
    it.
    """
    if not old:
        return old  # the map is lost or damaged
    before, after = _table()
    is_same = {file: _file_digest(file, entry) == before.get(file, [""])[0] for file, entry in old.items()}
    if not all(is_same.values()) and not any(file in before and file not in after for file in old):
        return old  # the map is from after the move
    went_to = {file: before.get(file, [""])[1:] for file in old}
    result: dict[str, Entry] = {}
    for file, entry in new.items():
        # none: reached because a file was merged into it; otherwise its importer has changed
        came_from = [name for name in old if file in went_to[name]]
        if came_from or file in after:
            as_was = _file_digest(file, entry) == after.get(file) and all(is_same[name] for name in came_from)
            result[file] = entry if as_was else OTHER
    for file, entry in old.items():
        if not is_same[file] and not any(target in new for target in went_to[file]):
            result[file] = entry
    return result


@cache
def _table() -> tuple[dict[str, list[str]], dict[str, str]]:
    """Before: file -> its digest and the files that it became. After: file -> its digest."""
    import yaml  # late: few processes read a map from before the move

    found = yaml.load(TABLE.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {file: line.split() for file, line in found["before"].items()}, found["after"]
