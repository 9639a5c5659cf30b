"""Explain why an artifact is made: the differences from the nearest finished run."""

import re
from collections.abc import Mapping
from typing import TypedDict

from atelier.engine.config.base import Json, canonical
from atelier.infra.dag import Product
from atelier.infra.store.run_manifest import Row, comparable, parents_of

DIGEST = re.compile("[0-9a-f]{32,}")
# a key of the code in a kind's identity: roles.model.code.mine/engine/model/mine.py.MineBlock.forward
CODE = re.compile(r"(?:.*\.)?code\.(?P<file>[^/]+/.+?\.py)\.(?P<part>.*)")


class Reason(TypedDict, total=False):
    """Why an artifact is made: a key or parent that differs from the nearest finished run; `new` = true if
    that run had no such task, or lost its files. For a reused artifact: the changed code.
    """

    key: str
    old: Json
    new: Json
    parent: str
    lost: bool
    code: str  # for reused artifacts: other code made them
    source: str  # the file of a project root, with the functions, whose code is other


def reasons_of(name: str, product: Product, known: dict[str, Row]) -> list[Reason]:
    """The keys and parents that differ from the nearest finished run; {"new": true} if it lacks the task."""
    before = known.get(name)
    if before is None:
        return [{"new": True}]
    own = (comparable(product), parents_of(product))
    return changes_between((before.identity, before.parents), own) or [{"lost": True}]


def changes_between(
    before: tuple[Mapping[str, Json], Mapping[str, str]], now: tuple[Mapping[str, Json], Mapping[str, str]]
) -> list[Reason]:
    """The differing keys and parents of two products, each given as its identity and its parents."""
    (theirs, old), (ours, parents) = before, now
    changed = [
        key for key in sorted({*ours, *theirs}) if canonical(ours.get(key)) != canonical(theirs.get(key))
    ]
    reasons = [_reason(key, theirs.get(key), ours.get(key)) for key in changed if not CODE.fullmatch(key)]
    reasons += [Reason(source=text) for text in _sources(changed)]
    other = [role for role in sorted({*parents, *old}) if parents.get(role) != old.get(role)]
    return [*reasons, *(Reason(parent=role) for role in other)]


def _sources(keys: list[str]) -> list[str]:
    """The files named in changed keys of code, each with its changed functions, without code around them."""
    found: dict[str, set[str]] = {}
    for match in filter(None, map(CODE.fullmatch, keys)):
        found.setdefault(match["file"], set()).update(filter(None, [match["part"]]))
    return [
        f"{file} ({', '.join(sorted(parts))})" if parts else file for file, parts in sorted(found.items())
    ]


def _reason(key: str, old: Json, new: Json) -> Reason:
    """Of several values of a key the first that differs, digests of content before others."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        differing = [pair for pair in zip(old, new, strict=True) if canonical(pair[0]) != canonical(pair[1])]
        old, new = next((pair for pair in differing if _is_content(*pair)), differing[0])
    return {"key": key, "old": old, "new": new}


def _is_content(*values: Json) -> bool:
    return all(isinstance(value, str) and DIGEST.fullmatch(value) for value in values)


def text_of(reason: Reason) -> str:
    """The reason as text."""
    if "key" in reason:
        old, new = reason.get("old"), reason.get("new")
        if _is_content(old, new):
            return f"{reason['key']}: the content differs"
        return f"{reason['key']}: {old} -> {new}"
    if "source" in reason:
        return f"changed: {reason['source']}"
    if "parent" in reason:
        return f"its {reason['parent']} changes"
    if "code" in reason:
        return f"although {reason['code']}"
    return "not made yet" if "new" in reason else "its files are gone"
