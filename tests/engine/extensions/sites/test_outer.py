"""Trainings at several sites: outer weights have equal bits everywhere, killed or not."""

import hashlib
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from atelier.engine.config.base import parse
from atelier.engine.config.error import AtelierError, ConfigError, DataError, StoppedError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Training
from atelier.engine.config.train import Health, Train
from atelier.engine.extensions.sites.codecs import decode
from atelier.engine.extensions.sites.config.train.link import Link
from atelier.engine.extensions.sites.encoded import parts_of
from atelier.engine.extensions.sites.messages import BODY
from atelier.engine.io.storage import names
from atelier.engine.model.load import blank, build, first_values
from atelier.engine.model.weights import entry_of
from tests.engine.extensions.sites.at_sites import (
    all_at_once,
    all_refuse,
    beside_a_gang,
    killed_until_they_end,
)
from tests.engine.trainings import AfterSteps, TrainingSetup, model, role, tokens, train
from tests.forks import start_gang
from tests.marks import quick
from tests.parity.cases import layout as layout_of

STEPS, EVERY = 6, 2
ONE_BLOCK = model()
TWO = role(shape=model(num_layers=2), lr=1e-2)  # blocks, for pipelines


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"tokens": tokens(tmp_path_factory.mktemp("text"))}


class Sites:
    """Sites with a folder each, and a mailbox that all of them reach."""

    def __init__(self, folder: Path, text: dict[str, str], **link: Any) -> None:
        self.folder = folder
        self.link = {"rows": {"a": 2, "b": 2}, "every": EVERY, "mailbox": str(folder / "mail")} | link
        self.setups = {site: TrainingSetup(folder / site, text) for site in self.link["rows"]}

    def mailbox(self, site: str) -> str:
        return str(self.link["mailbox"])

    def link_of(self, site: str) -> dict[str, Any]:
        return self.link | {"site": site, "mailbox": self.mailbox(site)}

    def training(self, site: str, spec: Role, steps: int = 0, **more: Any) -> Training:
        """Of three rounds where `steps` are not given."""
        steps = steps or 3 * self.link["every"]
        batch = sum(self.link["rows"].values())
        sizes = {"global_batch": batch, "micro_batch": 1, "eval_sequences": 2, "link": self.link_of(site)}
        return self.setups[site].training({"m": spec}, train(steps, **(sizes | more)))

    def write(self, site: str, spec: Role, layout: Parallel | None = None, **more: Any) -> str:
        """The run file of a site."""
        setup = self.setups[site]
        run = setup.run_file(self.training(site, spec, **more), **({"layout": layout} if layout else {}))
        setup.folder.mkdir(exist_ok=True, parents=True)
        path = setup.folder / "run.json"
        path.write_text(run.model_dump_json(by_alias=True))
        return str(path)

    def train(self, spec: Role, **more: Any) -> None:
        """All sites at once, each in a thread."""
        all_at_once(self.setups, lambda site: self.setups[site].train(self.training(site, spec, **more)))

    def message(self, number: int, site: str) -> Path:
        """The folder of what a site has sent in a round, where there is one trajectory."""
        [trajectory] = names(self.link["mailbox"])
        return Path(self.link["mailbox"]) / trajectory / f"round-{number:06d}" / site

    def body(self, number: int, site: str) -> dict[str, torch.Tensor]:
        """The tensors of that, as they crossed."""
        return load((self.message(number, site) / BODY).read_bytes())

    def models(self) -> list[bytes]:
        return [setup.weights("m") for setup in self.setups.values()]


def first_weights(spec: ModelSpec = ONE_BLOCK) -> dict[str, torch.Tensor]:
    with blank():
        network = build(spec)
    return {
        name: first_values(network, name, torch.Size(size), 1, "m") for name, size in spec.shapes().items()
    }


def decoded(
    link: Link, body: dict[str, torch.Tensor], weights: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """By what `weights` are moved, as everybody reads it of a message's tensors."""
    entries = {name: entry_of(name, tuple(one.shape), one.dtype) for name, one in weights.items()}
    parts = {
        name: [body[part.name] for part in parts_of(link.codec, entry)] for name, entry in entries.items()
    }
    return {name: decode(link.codec, entry, parts[name], name) for name, entry in entries.items()}


def replayed(sites: Sites, first: dict[str, torch.Tensor], rounds: int) -> dict[str, torch.Tensor]:
    """The outer weights after so many rounds, from the messages alone."""
    link = Link(**sites.link, site="a")
    weights, speed = dict(first), {name: torch.zeros_like(one) for name, one in first.items()}
    for number in range(1, rounds + 1):
        sent = {site: decoded(link, sites.body(number, site), weights) for site in link.sites}
        for name, weight in weights.items():
            total = torch.zeros_like(weight)
            for site in link.sites:
                total = total + sent[site][name] * link.share(site)
            if link.outer.kind == "nesterov":
                speed[name] = speed[name] * link.outer.momentum + total
                total = total + speed[name] * link.outer.momentum
            weights[name] = weight - total * link.outer.lr
    return weights


@pytest.mark.parametrize(
    ("rows", "outer"),
    [
        ({"a": 2, "b": 2}, {}),
        ({"b": 2, "a": 1, "c": 1}, {}),
        ({"a": 1, "b": 2}, {"kind": "nesterov", "lr": 0.7, "momentum": 0.9}),
    ],
)
def test_all_sites_have_the_bits_that_their_messages_say(
    tmp_path: Path, text: dict[str, str], rows: dict[str, int], outer: dict[str, Any]
) -> None:
    sites = Sites(tmp_path, text, rows=rows, outer=outer)
    sites.train(role(lr=1e-2))
    assert len(set(sites.models())) == 1
    found, expected = load(sites.models()[0]), replayed(sites, first_weights(), STEPS // EVERY)
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)
    tokens_of_all = STEPS * sum(rows.values()) * 16
    assert {setup.summary("m")["tokens"] for setup in sites.setups.values()} == {tokens_of_all}
    assert {setup.curve("m")[-1]["tokens"] for setup in sites.setups.values()} == {tokens_of_all}
    losses = [line["values"]["loss"] for line in sites.setups["a"].curve("m")]
    others = [line["values"]["loss"] for line in sites.setups["b"].curve("m")]
    assert losses[-1] < losses[0] and not set(losses) & set(others)  # other rows


def test_a_site_alone_trains_as_without_a_link(tmp_path: Path, text: dict[str, str]) -> None:
    sites = Sites(tmp_path, text, rows={"a": 4})
    sites.train(role(lr=1e-2), precision="fp64")
    plain = TrainingSetup(tmp_path / "plain", text)
    plain.train(plain.training({"m": role(lr=1e-2)}, train(STEPS, micro_batch=1, precision="fp64")))
    mine, theirs = load(sites.models()[0]), load(plain.weights("m"))
    assert max((mine[name] - theirs[name]).abs().max() for name in mine) < 1e-12


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(layout_of(shard=2), marks=pytest.mark.slow),
        pytest.param(layout_of(tensor=2), marks=pytest.mark.slow),
        layout_of(pipeline=2),
    ],
    ids=["shard", "tensor", "pipeline"],
)
def test_sites_may_have_other_layouts(tmp_path: Path, text: dict[str, str], layout: Parallel) -> None:
    """The outer weights are the same bits all the same; and they are those of one process to 1e-10."""
    how = {"kind": "nesterov", "lr": 0.7, "momentum": 0.9}
    alike, other = (Sites(tmp_path / name, text, rows={"a": 2, "b": 2}, outer=how) for name in ("one", "two"))
    alike.train(TWO, precision="fp64", micro_batch=1)
    path = other.write("b", TWO, layout, precision="fp64")
    here = other.training("a", TWO, precision="fp64")
    beside_a_gang(tmp_path, path, lambda: other.setups["a"].train(here))
    assert len(set(other.models())) == len(set(alike.models())) == 1
    mine, theirs = load(other.models()[0]), load(alike.models()[0])
    assert 0 < max((mine[name] - theirs[name]).abs().max() for name in mine) < 1e-10


@pytest.mark.slow
def test_two_sites_of_two_ranks_in_other_layouts_have_equal_bits(
    tmp_path: Path, text: dict[str, str]
) -> None:
    how = {"kind": "nesterov", "lr": 0.7, "momentum": 0.9}
    alike, other = (Sites(tmp_path / name, text, rows={"a": 2, "b": 2}, outer=how) for name in ("one", "two"))
    alike.train(TWO, precision="fp64", micro_batch=1)

    def train_gang(site: str) -> None:
        layout = layout_of(shard=2) if site == "a" else layout_of(pipeline=2)
        path, place = other.write(site, TWO, layout, precision="fp64"), tmp_path / f"gang-{site}"
        place.mkdir()
        start_gang("tests.parity.gang", place, 2, path)

    all_at_once("ab", train_gang)
    assert len(set(other.models())) == len(set(alike.models())) == 1
    mine, theirs = load(other.models()[0]), load(alike.models()[0])
    assert 0 < max((mine[name] - theirs[name]).abs().max() for name in mine) < 1e-10


def check_kills(
    tmp_path: Path, text: dict[str, str], draw: random.Random, *, health: Health | None = None, **link: Any
) -> Sites:
    """Three sites of which any is killed anywhere, between rounds or in one, end with the bits of those that
    were not, which are returned; checkpoints are not those of the rounds.
    """
    how: dict[str, Any] = {"rows": {"a": 1, "b": 2, "c": 1}, "every": 4}
    how |= {"outer": {"kind": "nesterov", "lr": 0.7, "momentum": 0.9}} | link
    spec = role(lr=1e-2)
    sizes = dict[str, Any](checkpoint_every=draw.choice([3, 4, 5]), health=health or Health())
    whole, killed = (Sites(tmp_path / name, text, **how) for name in ("whole", "killed"))
    whole.train(spec, **sizes)
    paths = {site: killed.write(site, spec, **sizes) for site in killed.setups}

    kills = killed_until_they_end(paths, tmp_path, draw, 6)
    assert kills >= 1
    assert set(killed.models()) == set(whole.models()) and len(set(whole.models())) == 1
    for site, setup in killed.setups.items():
        assert setup.curve("m") == whole.setups[site].curve("m")
    return whole


@pytest.mark.parametrize("seed", quick(range(3)))
def test_killed_sites_go_on_to_the_same_bits(tmp_path: Path, text: dict[str, str], seed: int) -> None:
    check_kills(tmp_path, text, random.Random(seed))


@pytest.fixture(scope="module")
def first_round(tmp_path_factory: pytest.TempPathFactory, text: dict[str, str]) -> Sites:
    """Sites that have trained one round."""
    sites = Sites(tmp_path_factory.mktemp("whole"), text, rows={"a": 1, "b": 1})
    sites.train(role(lr=1e-2), steps=EVERY)
    return sites


FAULTS = {  # of a message, and why it is not taken
    "flipped": "content does not match its digest",
    "cut": r"has \d+ bytes, but its record has \d+",
    "not finite": r"weight: is not finite",
    "shape": r"has no .*weight of shape \(",
    "more": "has stranger, which does not belong to it",
    "less": r"has no .*weight of shape \(",
    "type": r"weight is torch.float16, not torch.float32",
    "another site": "is of site a, round 1, or another training",
    "head": "leaves its artifact",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_message_that_does_not_fit_is_named_and_nothing_is_learned_from_it(
    tmp_path: Path, text: dict[str, str], first_round: Sites, fault: str
) -> None:
    whole, sites = first_round, Sites(tmp_path, text, rows=first_round.link["rows"])
    [trajectory] = names(whole.link["mailbox"])
    good = Path(whole.link["mailbox"]) / trajectory / "round-000001" / "b"
    place = Path(sites.link["mailbox"]) / trajectory / "round-000001" / "b"
    shutil.copytree(good, place)
    head, body = place / "message.json", place / "tensors.safetensors"
    about, raw = json.loads(head.read_bytes()), bytearray(body.read_bytes())
    if fault == "flipped":
        raw[-7] ^= 1
    elif fault == "cut":
        raw = raw[:-4]
    elif fault == "another site":
        about["site"] = "a"
    elif fault == "head":
        about["body"] = {"path": "../../x", "bytes": 3, "sha256": "0" * 64}
    else:
        tensors = load(bytes(raw))
        name = next(iter(tensors))
        if fault == "more":
            tensors["stranger"] = torch.zeros(3)
        elif fault == "less":
            del tensors[name]
        else:
            bad = {"not finite": lambda one: one * float("nan"), "type": lambda one: one.to(torch.float16)}
            tensors[name] = bad.get(fault, lambda one: one[1:])(tensors[name])
        raw = bytearray(save(tensors))
        about["body"] |= {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    body.write_bytes(raw)
    head.write_text(json.dumps(about))
    with pytest.raises(AtelierError, match=re.escape(str(place))) as error:
        sites.setups["a"].train(sites.training("a", role(lr=1e-2), EVERY))
    assert re.search(FAULTS[fault], str(error.value)), str(error.value)
    assert "\n" not in str(error.value)
    assert not sites.setups["a"].output("m").exists()
    shutil.rmtree(place)
    shutil.copytree(good, place)
    sites.setups["a"].train(sites.training("a", role(lr=1e-2), EVERY))
    assert sites.setups["a"].weights("m") == whole.models()[0]


@pytest.mark.parametrize("is_accepted", [False, True])
def test_what_other_code_has_computed_is_added_only_where_that_is_accepted(
    tmp_path: Path, text: dict[str, str], is_accepted: bool
) -> None:
    sites, codes = Sites(tmp_path, text), {"a": "1" * 16, "b": "2" * 16}

    def at(site: str) -> None:
        setup, plain = sites.setups[site], sites.training(site, role(lr=1e-2), EVERY)
        about = {"code": codes[site], "accept_code": is_accepted}
        member = plain.members["m"].model_copy(update=about)
        setup.train(plain.model_copy(update={"members": {"m": member}}))

    if is_accepted:
        all_at_once(sites.setups, at)
        assert len(set(sites.models())) == 1
        return
    all_refuse(sites.setups, at, r"at \w by code of digest [12]{16}, and here it is [12]{16}; install")
    assert not any(setup.output("m").exists() for setup in sites.setups.values())


def test_a_site_that_waits_can_be_stopped_and_goes_on(tmp_path: Path, text: dict[str, str]) -> None:
    sites = Sites(tmp_path, text)
    with pytest.raises(StoppedError, match=r"waited for b in round 1, after step 2"):
        setup = sites.setups["a"]
        setup.train(sites.training("a", role(lr=1e-2)), stop=AfterSteps(setup.folder, EVERY + 1))
    sites.train(role(lr=1e-2))
    assert len(set(sites.models())) == 1


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ({"rows": {"a": 1, "b": 2}}, "link.rows=.* are 3 sequences a step, global_batch is 4"),
        ({"rows": {"a": 4, "b": 0}}, "give each site one or more"),
        ({"site": "c"}, "link.site=c: this run is at one of a, b"),
        ({"mailbox": ""}, "link.mailbox is empty"),
        ({"rows": {"a": 2, "../b": 2}}, "link.rows"),
        ({"rows": {"a": 2, "any": 2}}, "no site may be called any"),
        ({"rows": {"a": 2, "bucket": 2}}, "no site may be called bucket"),
        ({"outer": {"kind": "average", "lr": 0.5}}, "outer.lr does nothing with kind=average"),
        ({"outer": {"kind": "nesterov", "decay": 0.5}}, "outer.decay does nothing with kind=nesterov"),
        ({"outer": {"kind": "sparse"}}, "link.outer.kind=sparse sends the largest numbers"),
    ],
)
def test_a_link_that_does_not_fit_is_refused(link: dict[str, Any], problem: str) -> None:
    given = {"rows": {"a": 2, "b": 2}, "site": "a", "mailbox": "/tmp/x", **link}
    document = {"steps": 8, "global_batch": 4, "sequence": 16, "link": given}
    with pytest.raises(ConfigError, match=problem):
        parse(Train, document, "train")


@pytest.mark.parametrize(
    ("every", "steps", "fits"),
    [(4, 10, "train.steps=12"), (7, 24, "train.link.every=6"), (9, 8, "train.link.every=8")],
)
def test_a_training_ends_with_an_outer_step(
    tmp_path: Path, text: dict[str, str], every: int, steps: int, fits: str
) -> None:
    sites = Sites(tmp_path, text, every=every)
    refused = rf"train.link.every: {every} does not divide the {steps} steps .*{fits} would fit"
    with pytest.raises(ConfigError, match=refused):
        sites.setups["a"].train(sites.training("a", role(), steps))


def test_messages_stay_only_as_long_as_a_site_may_ask_for_them(tmp_path: Path, text: dict[str, str]) -> None:
    """Those of rounds that all sites have in two checkpoints are gone; without one of them it is said."""
    sites = Sites(tmp_path, text, rows={"a": 1, "b": 1})
    sites.train(role(), steps=20, checkpoint_every=4)
    [trajectory] = names(sites.link["mailbox"])
    kept = names(f"{sites.link['mailbox']}/{trajectory}")
    assert kept[-1] == "round-000010" and 4 <= len(kept) <= 8
    setup = sites.setups["a"]
    for folder in ("trajectory", "outputs"):
        shutil.rmtree(setup.folder / folder)
    with pytest.raises(DataError, match=r"round-000001/b: is gone, b is in round 10"):
        setup.train(sites.training("a", role(), 20, checkpoint_every=4))
