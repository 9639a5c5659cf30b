"""A generator at another site: detectors learn the same bits as beside it, killed or not; its messages are
checked before they are used.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from atelier.engine.config.error import DataError, StoppedError
from atelier.engine.config.parallel import Parallel
from atelier.engine.extensions.detection.config.lesson.drawings import entries
from atelier.engine.extensions.sites.encoded import body_bytes
from atelier.engine.extensions.sites.link_cost import lesson_cost
from tests.engine.extensions.detection.detection import (
    MASKED,
    SIZES,
    STEPS,
    DetectedApart,
    elsewhere,
    generator,
)
from tests.engine.extensions.sites.apart import ANSWERS
from tests.engine.extensions.sites.at_sites import beside_a_gang, check_sites, killed_until_they_end
from tests.engine.extensions.sites.test_link_cost import timings
from tests.engine.loop.hostile import HostileMessages
from tests.engine.row_inputs import VOCAB, harbour
from tests.engine.trainings import AfterSteps, train
from tests.parity.cases import layout as layout_of

ROLES = {"now": elsewhere(), "late": elsewhere(2), "both": elsewhere(1, own=MASKED)}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return harbour(tmp_path_factory.mktemp("text"))


def sites(folder: Path, text: dict[str, str], roles: dict[str, Any] = ROLES, **link: Any) -> DetectedApart:
    return DetectedApart(folder, text, students=roles, frozen=False, **link)


def messages(site: DetectedApart) -> list[Path]:
    return sorted((site.folder / "mail" / ANSWERS[:16]).glob("round-*/a/tensors.safetensors"))


def test_over_the_link_all_have_the_bits_of_one_gang(tmp_path: Path, text: dict[str, str]) -> None:
    apart = sites(tmp_path, text)
    apart.train()
    gang = apart.whole(tmp_path / "gang", text)
    for name, site in {"teacher": "a", **apart.site_of}.items():
        assert apart.setups[site].weights(name) == gang.weights(name), name
        assert apart.setups[site].curve(name) == gang.curve(name)
        assert apart.setups[site].summary(name) == gang.summary(name)
    assert not apart.setups["b"].output("teacher").exists()


def test_only_numbers_of_samples_places_and_drawn_ids_cross(tmp_path: Path, text: dict[str, str]) -> None:
    apart = sites(tmp_path, text, {"late": elsewhere(3)}, ahead=20)
    apart.setups["a"].train(apart.training("a"))
    found = [load_file(path) for path in messages(apart)]
    assert len(found) == STEPS  # a longer training goes on from the last three
    for step, each in enumerate(found):
        kinds = {name: tensor.dtype for name, tensor in each.items()}
        assert kinds == {
            "samples": torch.int64, "hidden": torch.int32, "places": torch.int32, "ids": torch.uint16,
        }  # fmt: skip
        assert each["samples"].tolist() == list(range(4 * step, 4 * step + 4))
        assert int(each["hidden"].sum()) == len(each["ids"]) and int(each["ids"].int().max()) < VOCAB


def test_drawings_have_the_bytes_that_a_plan_reckons_with(tmp_path: Path, text: dict[str, str]) -> None:
    """A message by its hidden tokens; of all of them the mean, by the share that is hidden."""
    apart = sites(tmp_path, text, {"late": elsewhere(2)}, ahead=20)
    apart.setups["a"].train(apart.training("a"))  # alone, so that all messages stay
    sizes = [path.stat().st_size for path in messages(apart)]
    hidden = [len(load_file(path)["ids"]) for path in messages(apart)]
    assert sizes == [body_bytes(entries(VOCAB, rows=4, tokens=number)) for number in hidden]
    train, teacher = apart.training("a").train, generator()
    cost = lesson_cost(train, teacher.model, "drawings", teacher, steps=len(sizes), step_s=1.0, rate=0.0)
    assert sum(sizes) == pytest.approx(cost["sent"], rel=0.1)
    apart.setups["b"].train(apart.training("b"))
    last, read = len(sizes), len(sizes) - 2  # the generator gets ahead step by step, the detector catches up
    for site, name, key, number, ahead in (
        ("a", "teacher", "link_bytes", last, range(1, last + 1)),
        ("b", "late", "link_received_bytes", read, reversed(range(2, last))),
    ):
        timing = [each for each in timings(apart.setups[site], name) if key in each]
        assert [int(each[key]) for each in timing] == sizes[:number]
        assert [each["link_ahead_steps"] for each in timing] == [*ahead]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_sites_go_on_to_the_same_bits(tmp_path: Path, text: dict[str, str], seed: int) -> None:
    draw = random.Random(seed)
    roles = {"now": elsewhere(), "late": elsewhere(2)}
    more: dict[str, Any] = {"steps": 12, "checkpoint_every": draw.choice([3, 4])}
    whole, killed = (sites(tmp_path / name, text, roles, ahead=3) for name in ("whole", "killed"))
    whole.train(**more)
    paths = {site: killed.write(site, **more) for site in killed.setups}
    assert killed_until_they_end(paths, tmp_path, draw, 6) >= 2
    for name, site in {"teacher": "a", **killed.site_of}.items():
        assert killed.setups[site].weights(name) == whole.setups[site].weights(name), name
        assert killed.setups[site].curve(name) == whole.setups[site].curve(name)


@pytest.mark.parametrize("where", [pytest.param("a", marks=pytest.mark.slow), "b"])
def test_sites_may_have_other_layouts(tmp_path: Path, text: dict[str, str], where: str) -> None:
    """Of any axes: what crosses is the same."""
    roles = {"late": elsewhere(2)}
    alike, other = (sites(tmp_path / name, text, roles) for name in "xy")
    alike.train()
    path = other.write(where, layout_of(tensor=2))
    rest = "b" if where == "a" else "a"
    beside_a_gang(tmp_path, path, lambda: other.setups[rest].train(other.training(rest)))
    mine, theirs = alike.losses("late"), other.losses("late")
    assert max(abs(one - two) for one, two in zip(mine, theirs, strict=True)) < 1e-10


def test_a_generator_waits_for_those_that_detect_and_goes_on(tmp_path: Path, text: dict[str, str]) -> None:
    apart = sites(tmp_path, text, {"late": elsewhere(2)}, ahead=3)
    with pytest.raises(StoppedError, match="stopped at step 3"):
        apart.setups["a"].train(apart.training("a"), stop=AfterSteps(tmp_path, 20))
    assert len(messages(apart)) == 3
    apart.train()
    assert apart.setups["b"].curve("late")[-1]["step"] == STEPS


def test_what_is_drawn_needs_no_layout_of_answers() -> None:
    link = {"roles": {"a": ["teacher"], "b": ["d"]}, "site": "a", "mailbox": "/x", "top": 9999}
    found = {"teacher": generator(), "d": elsewhere()}
    check_sites(Parallel(shard=1, tensor=2), found, train(STEPS, **(SIZES | {"link": link})))


Tensors = dict[str, Tensor]
Change = Callable[[Tensors, random.Random], Tensors]


def at(name: str, value: int) -> Change:
    """One element becomes this value."""

    def change(tensors: Tensors, draw: random.Random) -> Tensors:
        flat = tensors[name].to(torch.int64)
        flat[draw.randrange(len(flat))] = value
        return tensors | {name: flat.to(tensors[name].dtype)}

    return change


def moved(tensors: Tensors, draw: random.Random) -> Tensors:
    """A token is drawn for the place beside a hidden one, or the first two change places."""
    places = tensors["places"].clone()
    places[0], places[1] = places[1], places[0].clone()
    return tensors | {"places": places}


def counted_otherwise(tensors: Tensors, draw: random.Random) -> Tensors:
    number = tensors["hidden"].clone()
    number[0] += 1
    number[1] -= 1
    return tensors | {"hidden": number}


def shorter(tensors: Tensors, draw: random.Random) -> Tensors:
    return tensors | {"ids": tensors["ids"][:-1].contiguous()}


def cut(tensors: Tensors, draw: random.Random) -> Tensors:
    """The last token is not there, and nothing says that it was."""
    less = {name: tensors[name][:-1].contiguous() for name in ("places", "ids")}
    number = tensors["hidden"].clone()
    number[-1] -= 1
    return tensors | less | {"hidden": number}


BODIES: dict[str, tuple[Change, str]] = {
    "an id out of range": (at("ids", VOCAB), f"an id is not below the vocabulary of {VOCAB}"),
    "a place that is not hidden": (
        at("places", 0),
        r"sample \d has tokens drawn at places that are not hidden",
    ),
    "a place beyond the row": (at("places", 10**6), "at places that are not hidden"),
    "a negative place": (at("places", -1), "at places that are not hidden"),
    "places in another order": (moved, "at places that are not hidden"),
    "tokens of another sample": (counted_otherwise, r"\d has \d+ drawn tokens, but \d+ are hidden here"),
    "a token less": (cut, r"sample \d has \d+ drawn tokens, but \d+ are hidden here"),
    "fewer ids": (shorter, "ids is|places is"),
    "another sample": (at("samples", 10**6), "are not of step 2: 4 to 7"),
    "a sample twice": (
        lambda tensors, _: tensors | {"samples": tensors["samples"].clamp(max=6)},
        "with one twice",
    ),
    "nothing hidden": (at("hidden", 0), r"or other than \d+ tokens"),
    "another type": (
        lambda tensors, _: tensors | {"ids": tensors["ids"].to(torch.int64)},
        "instead of drawn tokens",
    ),
    "a matrix": (lambda tensors, _: tensors | {"hidden": tensors["hidden"][:, None]}, "hidden is|samples is"),
    "a tensor missing": (
        lambda t, _: {n: each for n, each in t.items() if n != "places"},
        "instead of drawn tokens",
    ),
    "text": (lambda t, _: t | {"text": torch.zeros(3, dtype=torch.uint8)}, "instead of drawn tokens"),
}


def hostile_to(folder: Path, good: DetectedApart) -> HostileMessages:
    """Site b, and what site a has sent it."""
    other = sites(folder, dict(good.setups["b"].inputs), {"d": elsewhere()})
    return HostileMessages(other, good.folder / "kept", "d", good.setups["b"].weights("d"))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, text: dict[str, str]) -> DetectedApart:
    """Both sites, trained; what site a had sent before site b began."""
    found = sites(tmp_path_factory.mktemp("good"), text, {"d": elsewhere()})
    found.setups["a"].train(found.training("a", steps=4))
    shutil.copytree(found.link["mailbox"], found.folder / "kept")
    found.setups["b"].train(found.training("b", steps=4))
    return found


@pytest.mark.parametrize("fault", BODIES)
def test_drawings_that_are_none_are_named_and_nothing_is_learned_from_them(
    tmp_path: Path, good: DetectedApart, fault: str
) -> None:
    change, problem = BODIES[fault]
    hostile_to(tmp_path, good).refuses_only(change, fault, problem)


def test_drawings_of_another_step_are_refused(tmp_path: Path, good: DetectedApart) -> None:
    hostile = hostile_to(tmp_path, good)
    hostile.write((hostile.place.parent.parent / "round-000003/a/tensors.safetensors").read_bytes())
    hostile.refuses(r"samples \[8, 9, 10\] are not of step 2: 4 to 7")


@pytest.mark.parametrize("kind", ["answers", "contribution", "weights"])
def test_a_message_of_another_kind_is_refused(tmp_path: Path, good: DetectedApart, kind: str) -> None:
    hostile = hostile_to(tmp_path, good)
    hostile.write(hostile.body.read_bytes(), kind=kind)
    hostile.refuses("is of kind answers, not a teacher's drawings|not the head of a message|kind 'weights'")


def test_none_learns_from_two_versions_of_a_step(tmp_path: Path, text: dict[str, str]) -> None:
    apart = sites(tmp_path, text, {"d": elsewhere()}, ahead=3)
    first = apart.setups["a"]
    with pytest.raises(StoppedError):
        first.train(apart.training("a"), stop=AfterSteps(first.folder, 20))
    for manifest in (first.folder / "trajectory").glob("teacher/checkpoints/step-*/manifest.json"):
        manifest.unlink()
    with pytest.raises(DataError, match=r"round-00000\d/a: this site sent other drawings to step \d before"):
        first.train(apart.training("a", seed=9), stop=AfterSteps(first.folder, 40))
