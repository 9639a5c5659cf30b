"""Invalid answers of a teacher at another site: each is named in an error, and nothing is learned from it."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.extensions.sites.apart import Apart, taught
from tests.engine.loop.hostile import Change, HostileMessages, Tensors
from tests.engine.trainings import tokens

SHORT, EXACT = {"top": 32}, {"top": 32, "values": "exact"}


def at(name: str, value: float) -> Change:
    """One element becomes this value."""

    def change(tensors: Tensors, draw: random.Random) -> Tensors:
        flat = tensors[name].to(torch.float64).flatten()
        flat[draw.randrange(len(flat))] = value
        return tensors | {name: flat.view(tensors[name].shape).to(tensors[name].dtype)}

    return change


def twice(tensors: Tensors, draw: random.Random) -> Tensors:
    ids = tensors["ids_NK"].int()
    row = draw.randrange(len(ids))
    ids[row, 3] = ids[row, 9]
    return tensors | {"ids_NK": ids.to(torch.uint16)}


def narrower(tensors: Tensors, draw: random.Random) -> Tensors:
    name = draw.choice(["ids_NK", "values_NK"])
    return tensors | {name: tensors[name][:, :31].contiguous()}


def shorter(tensors: Tensors, draw: random.Random) -> Tensors:
    return {name: each if name.endswith("_B") else each[:-1].contiguous() for name, each in tensors.items()}


def wide_ids(tensors: Tensors, draw: random.Random) -> Tensors:
    return tensors | {"ids_NK": tensors["ids_NK"].to(torch.int64)}


def no_others(tensors: Tensors, draw: random.Random) -> Tensors:
    return {name: each for name, each in tensors.items() if name != "others_N"}


def moved(tensors: Tensors, draw: random.Random) -> Tensors:
    """A token of one sample counts as one of the next."""
    scored = tensors["scored_B"].clone()
    scored[0] -= 1
    scored[1] += 1
    return tensors | {"scored_B": scored}


def halved(tensors: Tensors, draw: random.Random) -> Tensors:
    return tensors | {"values_NK": tensors["values_NK"] - 1.0}


BODIES: dict[str, tuple[dict[str, Any], Change, str]] = {
    "an id out of range": (SHORT, at("ids_NK", 64), "an id is not below the vocabulary of 64"),
    "an id twice": (SHORT, twice, "has an id twice"),
    "not a number": (EXACT, at("values_NK", float("nan")), "a value is not a log-probability"),
    "infinite": (EXACT, at("values_NK", float("-inf")), "a value is not a log-probability"),
    "above 0": (EXACT, at("values_NK", 0.25), "a value is not a log-probability"),
    "others above 1": (EXACT, at("others_N", 0.5), "the mass of the others is not a log-probability"),
    "not sum to 1": (EXACT, halved, "do not sum to 1"),
    "not sum to 1 in 8 bits": (SHORT, at("values_NK", 0), "do not sum to 1"),
    "fewer tokens of an answer": (SHORT, narrower, "_NK is "),
    "fewer answers": (SHORT, shorter, "they do not have"),
    "another type": (SHORT, wide_ids, "not answers in the form of link.top and link.values"),
    "a tensor missing": (SHORT, no_others, "not answers in the form of link.top and link.values"),
    "other rows": (SHORT, moved, r"sample \d has "),
    "another sample": (SHORT, at("samples_B", 10**6), r"sample \d is not there"),
    "a sample twice": (SHORT, at("samples_B", 1), r"there twice|sample 1 has|sample \d is not there"),
    "no loss": (
        SHORT,
        lambda tensors, _: tensors | {"loss": tensors["loss"][:0]},
        "has no loss of teacher",
    ),
    "an infinite loss": (SHORT, at("loss", float("inf")), "the teacher's loss is"),
    "a negative count": (SHORT, at("scored_B", -1), "is there twice, or they do not have"),
}


def hostile_to(folder: Path, good: Apart) -> HostileMessages:
    """Site b, and the answers that site a has sent it."""
    link = {name: good.link[name] for name in ("top", "values") if name in good.link}
    text = {"tokens": good.setups["b"].inputs["tokens"]}
    other = Apart(folder, text, students={"student": taught()}, frozen=True, **link)
    return HostileMessages(other, good.link["mailbox"], "student", good.setups["b"].weights("student"))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Apart]:
    """Both sites, trained, by how values are sent."""
    folder = tmp_path_factory.mktemp("good")
    text, found = {"tokens": tokens(folder / "text")}, dict[str, Apart]()
    for link in (SHORT, EXACT):
        name = str(link.get("values", "8bit"))
        found[name] = Apart(folder / name, text, students={"student": taught()}, frozen=True, **link)
        found[name].train(steps=4)
    return found


@pytest.mark.parametrize("fault", BODIES)
def test_answers_that_are_none_are_named_and_nothing_is_learned_from_them(
    tmp_path: Path, good: dict[str, Apart], fault: str
) -> None:
    link, change, problem = BODIES[fault]
    hostile_to(tmp_path, good[str(link.get("values", "8bit"))]).refuses_only(change, fault, problem)


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_byte_is_found(tmp_path: Path, good: dict[str, Apart], seed: int) -> None:
    hostile, draw = hostile_to(tmp_path, good["8bit"]), random.Random(seed)
    file = draw.choice([hostile.head, hostile.body])
    raw = bytearray(file.read_bytes())
    raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    file.write_bytes(raw)
    hostile.refuses("round-000002/a")


HEADS = {
    "another step": ({"round": 3}, "is of site a, round 3"),
    "another site": ({"site": "b"}, "is of site b"),
    "another training": ({"trajectory": "0" * 64}, "or another training"),
    "another kind": ({"kind": "weights"}, "kind 'weights', not one of"),
    "a contribution": ({"kind": "contribution"}, "not the head of a message"),
    "a path": ({"body": {"path": "../../x", "bytes": 3, "sha256": "0" * 64}}, "leaves its artifact"),
    "a loss": ({"loss": 1.0}, "not the head of a message"),
}


@pytest.mark.parametrize("fault", HEADS)
def test_a_head_that_does_not_fit_is_named(tmp_path: Path, good: dict[str, Apart], fault: str) -> None:
    change, problem = HEADS[fault]
    hostile = hostile_to(tmp_path, good["8bit"])
    hostile.head.write_text(json.dumps(json.loads(hostile.head.read_bytes()) | change))
    hostile.refuses(re.escape(problem))


def test_answers_that_other_code_has_computed_are_refused(tmp_path: Path, good: dict[str, Apart]) -> None:
    hostile = hostile_to(tmp_path, good["8bit"])
    for head in hostile.place.parent.parent.glob("round-*/a/message.json"):
        head.write_text(json.dumps(json.loads(head.read_bytes()) | {"code": "1" * 16}))
    hostile.sites.code = "1" * 16
    hostile.learn()
    other = hostile_to(tmp_path / "other", good["8bit"])
    other.head.write_text(json.dumps(json.loads(other.head.read_bytes()) | {"code": "2" * 16}))
    first = other.place.parent.parent / "round-000001/a/message.json"
    first.write_text(json.dumps(json.loads(first.read_bytes()) | {"code": "1" * 16}))
    other.sites.code = "1" * 16
    other.refuses(r"at a by code of digest 2{16}, and here it is 1{16}; install")


def test_the_answers_to_another_step_are_refused(tmp_path: Path, good: dict[str, Apart]) -> None:
    hostile = hostile_to(tmp_path, good["8bit"])
    hostile.write((hostile.place.parent.parent / "round-000003/a/tensors.safetensors").read_bytes())
    hostile.refuses(r"sample \d is not there")
