"""Which keys of a link are identity: as docs/run/sites.md says, for every key."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from atelier.engine.config.base import parse
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.config.trajectory import Feed, segments_of
from atelier.engine.extensions.sites.config.train.link import Link
from tests.checkout import TOP

ROWS = {"rows": {"a": 4, "b": 4}, "every": 10, "site": "a", "mailbox": "/mail"}
ROLES = {"roles": {"a": ["teacher"], "b": ["student"]}, "site": "a", "mailbox": "/mail"}
CHOICE = ROWS | {"choose": [{"kind": "none"}, {"kind": "int4"}]}
NESTEROV = ROWS | {"outer": {"kind": "nesterov"}}
SPARSE = ROWS | {"outer": {"kind": "sparse"}, "codec": {"kind": "topk"}}
ELASTIC = ROWS | {"membership": {"kind": "elastic"}}


def coded(**codec: Any) -> dict[str, Any]:
    return ROWS | {"codec": codec}


def attended(**membership: Any) -> dict[str, Any]:
    return {"membership": {"kind": "elastic"} | membership}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # a link, and what makes another of it
    "rows": (ROWS, {"rows": {"a": 5, "b": 3}}),
    "every": (ROWS, {"every": 20}),
    "outer.kind": (ROWS, {"outer": {"kind": "nesterov"}}),
    "outer.lr": (NESTEROV, {"outer": {"kind": "nesterov", "lr": 0.7}}),
    "outer.momentum": (NESTEROV, {"outer": {"kind": "nesterov", "momentum": 0.9}}),
    "outer.decay": (SPARSE, {"outer": {"kind": "sparse", "decay": 0.5}}),
    "delay": (ROWS, {"delay": 2}),
    "fragments": (ROWS, {"fragments": 2}),
    "codec.kind": (ROWS, {"codec": {"kind": "int8"}}),
    "codec.block": (coded(kind="int8"), {"codec": {"kind": "int8", "block": 64}}),
    "codec.share": (coded(kind="topk"), {"codec": {"kind": "topk", "share": 0.1}}),
    "codec.rank": (coded(kind="powersgd"), {"codec": {"kind": "powersgd", "rank": 2}}),
    "choose": (CHOICE, {"choose": [{"kind": "none"}, {"kind": "int8"}]}),
    "stall": (CHOICE, {"stall": 0.5}),
    "rounds": (CHOICE, {"rounds": "/models/rounds.jsonl"}),
    "membership.kind": (ROWS, attended()),
    "membership.minimum": (ELASTIC, attended(minimum=2)),
    "membership.deadline": (ELASTIC, attended(deadline=5)),
    "membership.grace": (ELASTIC, attended(grace=5)),
    "membership.coordinator": (ELASTIC, attended(coordinator="b")),
    "feedback": (coded(kind="int4"), {"feedback": False}),
    "clip": (ROWS, {"clip": 1.0}),
    "precision": (ROWS, {"precision": {"b": "fp32"}}),
    "roles": (ROLES, {"roles": {"a": ["teacher"], "c": ["student"]}}),
    "top": (ROLES, {"top": 16}),
    "values": (ROLES, {"values": "exact"}),
    "temperature": (ROLES, {"temperature": 4.0}),
    "ahead": (ROLES, {"ahead": 2}),
    "site": (ROWS, {"site": "b"}),
    "mailbox": (ROWS, {"mailbox": "/other"}),
}


def leaves(spec: BaseModel, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every key below a spec, with its value."""
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, BaseModel):
            yield from leaves(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value


def documented() -> dict[str, str]:
    """What the tables of docs/run/sites.md say under `identity`, by key."""
    found: dict[str, str] = {}
    place, is_table = "", False
    for line in (TOP / "docs/run/sites.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            is_table = False
        elif cells[-1] == "identity":
            is_table = True
            place = "membership." if "membership" in cells[0] else ""
        elif is_table and (key := re.fullmatch(r"`(?:train\.link\.)?([\w.]+)`", cells[0])):
            found[place + key[1]] = cells[-1]
    return found


def is_identity(key: str) -> bool:
    """What the tables say of a key: by itself; or of the part of the link that it is in."""
    said, part = documented(), key.partition(".")[0]
    if key not in said:
        key = next(other for other in said if other == part or other.startswith(f"{part}."))
    said[key] = said["top"] if said[key] == "as `top`" else said[key]
    return {"yes": True, "no": False, "of students whose teacher is elsewhere": True}[said[key]]


def role(**more: Any) -> Role:
    model = {"kind": "gpt", "num_layers": 2, "hidden": 64, "num_heads": 4}
    base = {"model": model, "objective": {"lm": {"kind": "lm"}}, "optim": {"kind": "adamw", "lr": 1e-3}}
    return parse(Role, base | more, "role")


def known_by(link: dict[str, Any]) -> dict[str, list[str]]:
    """The fingerprints of a teacher's trajectories and its student's."""
    how = parse(Train, {"steps": 100, "global_batch": 8, "sequence": 64, "link": link}, "train")
    student = role(objective={"kd": {"kind": "logits"}}, teacher="teacher")
    feed = Feed(parents={"tokens.main": "a" * 64, "tokenizer": "b" * 64}, identity={})
    parts = segments_of({"teacher": role(), "student": student}, how, feed, {})
    return {name: [part.fingerprint for part in each] for name, each in parts.items()}


def test_every_key_of_a_link_is_decided() -> None:
    """Here, and in the tables, by itself or with the part of the link that it is in."""
    keys = {name for name, _ in leaves(Link())}
    assert keys == {*CASES}
    parts = {key.partition(".")[0] for key in keys}
    assert {*documented()} - {"membership"} <= keys | parts
    assert parts <= {key.partition(".")[0] for key in documented()}
    assert {key for key in keys if key.startswith("membership.")} <= {*documented()}
    kept = re.findall(r"`(\w+)`", documented()["membership"])
    assert {f"membership.{name}" for name in kept} == {
        key for key in keys if key.startswith("membership.") and is_identity(key)
    }


@pytest.mark.parametrize("key", CASES)
def test_a_key_moves_the_fingerprint_where_the_page_says_so_and_nowhere_else(key: str) -> None:
    link, change = CASES[key]
    one, other = (dict(leaves(parse(Link, each, "link"))) for each in (link, link | change))
    assert [name for name in one if one[name] != other[name]] == [key]
    before, after = known_by(link), known_by(link | change)
    assert (before["student"] != after["student"]) == is_identity(key)
    of_answers = documented().get(key) in ("as `top`", documented()["top"])
    assert (before["teacher"] != after["teacher"]) == (is_identity(key) and not of_answers)


@pytest.mark.parametrize("change", [{"top": "all"}, {"values": "exact"}])
def test_what_answers_hold_is_nothing_to_a_student_beside_its_teacher(change: dict[str, Any]) -> None:
    together = ROLES | {"roles": {"a": ["teacher", "student"], "b": []}}
    assert known_by(together) == known_by(together | change) == known_by({})
    assert known_by(ROLES)["teacher"] == known_by({})["teacher"]
    assert known_by(ROLES)["student"] != known_by({})["student"]


def test_a_link_of_one_site_is_known_as_none() -> None:
    """A run that says nothing of sites has the fingerprints that it had before there were any."""
    how = parse(Train, {"steps": 100, "global_batch": 8, "sequence": 64}, "train")
    assert "link" not in how.as_identity() and Link().as_identity() == {}
