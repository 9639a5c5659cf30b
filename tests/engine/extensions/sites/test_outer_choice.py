"""Sites that choose their codecs in each round: equal bits everywhere, and the same bits again
from the log.
"""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from atelier.engine.config.base import parse
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.metric import FOLDER, merge
from atelier.engine.extensions.sites.config.train.link import Link
from atelier.engine.extensions.sites.mailbox import ROUND
from atelier.engine.extensions.sites.messages import BODY
from atelier.engine.extensions.sites.rates import rate_to, tell_rate
from atelier.engine.extensions.sites.round_log import FILE, read_log
from tests.engine.extensions.sites.at_sites import (
    PATIENCE_S,
    all_refuse,
    beside_a_gang,
    killed_until_they_end,
)
from tests.engine.extensions.sites.test_outer import Sites, text
from tests.engine.trainings import role
from tests.marks import quick
from tests.parity.cases import layout as layout_of

__all__ = ["text"]
CHOOSE: list[dict[str, Any]] = [{}, {"kind": "bf16"}, {"kind": "int4", "block": 64}]
STEPS = 12
HOW: dict[str, Any] = {"choose": CHOOSE, "every": 2, "delay": 1, "stall": 0.5}


@contextmanager
def a_changing_link(mailbox: str, draw: random.Random) -> Iterator[None]:
    """Rates that are others in every round, slow and fast by turns, by as many orders as there may be."""
    ended = Event()

    def change() -> None:
        seen = -1
        while not ended.wait(0.005):
            sent = len(list(Path(mailbox).glob("*/round-*/*/message.json")))
            if sent == seen:
                continue
            seen = sent
            for peer in "ab":
                order = draw.uniform(3, 5) if (seen // 2 + (peer == "b")) % 2 else draw.uniform(7, 9)
                tell_rate(mailbox, peer, 1 << 20, (1 << 20) / 10**order)

    thread = Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


def log_of(sites: Sites, site: str) -> Path:
    return sites.setups[site].output("m") / FILE


def test_each_site_chooses_by_itself_and_the_log_makes_the_same_bits(
    tmp_path: Path, text: dict[str, str]
) -> None:
    sites = Sites(tmp_path / "first", text, **HOW)
    with a_changing_link(sites.mailbox("a"), random.Random(1)):
        sites.train(role(lr=1e-2), steps=STEPS)
    assert len(set(sites.models())) == 1
    logs = [log_of(sites, site).read_bytes() for site in "ab"]
    assert logs[0] == logs[1]
    lines = read_log(str(log_of(sites, "a")))
    kinds = {codec.kind for line in lines.values() for codec in line.codecs.values()}
    assert len(kinds) > 1 and any(line.codecs["a"] != line.codecs["b"] for line in lines.values()), kinds
    assert len(sites.setups["a"].summary("m")["rounds"]) == 64
    again = Sites(tmp_path / "again", text, **HOW, rounds=str(log_of(sites, "a")))
    again.train(role(lr=1e-2), steps=STEPS)
    assert again.models() == sites.models()
    assert log_of(again, "b").read_bytes() == logs[0]
    others = Sites(tmp_path / "others", text, **HOW)
    others.train(role(lr=1e-2), steps=STEPS)  # nothing was measured: the lossiest
    assert others.models() != sites.models()


def link_bytes(sites: Sites, site: str) -> dict[int, int]:
    """What its metric files say that it has sent, by step."""
    files = (sites.setups[site].folder / "trajectory" / "m" / FOLDER).glob("*.jsonl")
    lines = merge((path.name, path.read_text()) for path in sorted(files))
    timing = {line["step"]: line.get("timing", {}) for line in lines}
    assert all("link_s" in each for each in timing.values())
    return {step: int(each["link_bytes"]) for step, each in timing.items() if "link_bytes" in each}


def test_the_metrics_say_how_many_bytes_a_site_has_sent_after_which_step(
    tmp_path: Path, text: dict[str, str]
) -> None:
    """Those of the messages' bodies, as they lie in the mailbox: of a fragment each, of all weights last."""
    sites = Sites(tmp_path / "first", text, **HOW | {"every": 4, "fragments": 2})
    with a_changing_link(sites.mailbox("a"), random.Random(2)):
        sites.train(role(lr=1e-2), checkpoint_every=STEPS)
    for site in "ab":
        bodies = Path(sites.mailbox(site)).glob(f"*/{ROUND}*/{site}/{BODY}")
        found = {int(path.parts[-3].removeprefix(ROUND)) * 2: path.stat().st_size for path in bodies}
        assert found == link_bytes(sites, site) and [*sorted(found)] == [*range(2, STEPS + 1, 2)]


@pytest.mark.parametrize("seed", quick(range(3)))
def test_killed_anywhere_the_bits_are_those_of_its_log(
    tmp_path: Path, text: dict[str, str], seed: int
) -> None:
    sites, draw = Sites(tmp_path / "killed", text, **HOW), random.Random(seed)
    paths = {site: sites.write(site, role(lr=1e-2), steps=STEPS, checkpoint_every=3) for site in "ab"}
    with a_changing_link(sites.mailbox("a"), random.Random(seed)):
        kills = killed_until_they_end(paths, tmp_path, draw, 5)
    assert kills and len(set(sites.models())) == 1
    again = Sites(tmp_path / "again", text, **HOW, rounds=str(log_of(sites, "b")))
    again.train(role(lr=1e-2), steps=STEPS, checkpoint_every=3)
    assert again.models() == sites.models()


def test_the_ranks_of_a_site_take_one_codec(tmp_path: Path, text: dict[str, str]) -> None:
    sites = Sites(tmp_path / "two", text, **HOW)
    path = sites.write("b", role(lr=1e-2), layout_of(shard=2), steps=STEPS)
    here = sites.training("a", role(lr=1e-2), STEPS)
    with a_changing_link(sites.mailbox("a"), random.Random(5)):
        beside_a_gang(tmp_path, path, lambda: sites.setups["a"].train(here))
    assert len(set(sites.models())) == 1
    kinds = {line.codecs["b"].kind for line in read_log(str(log_of(sites, "b"))).values()}
    assert len(kinds) > 1, kinds


def test_a_log_that_does_not_fit_ends_the_training_with_its_place(
    tmp_path: Path, text: dict[str, str]
) -> None:
    sites = Sites(tmp_path / "first", text, **HOW)
    sites.train(role(lr=1e-2))
    lines = log_of(sites, "a").read_text().splitlines()
    short = tmp_path / "short.jsonl"
    short.write_text("\n".join(lines[:2]) + "\n")
    again = Sites(tmp_path / "short", text, **HOW, rounds=str(short))
    with pytest.raises(DataError, match="has no round 3"):
        again.train(role(lr=1e-2))
    changed = tmp_path / "changed.jsonl"
    changed.write_text("\n".join(lines).replace("int4", "int2", 1) + "\n")
    again = Sites(tmp_path / "changed", text, **HOW, rounds=str(changed))
    with pytest.raises(DataError, match="was changed"):
        again.train(role(lr=1e-2))
    other = Sites(tmp_path / "other", text, **HOW, rounds=str(log_of(sites, "a")))
    all_refuse(
        other.setups,
        lambda site: other.setups[site].train(other.training(site, role(lr=2e-2))),
        r"round-000001.*has other bits than in .*rounds.jsonl",
    )


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ({"choose": [{}]}, "two codecs or more"),
        ({"choose": [{}, {}]}, "each once"),
        ({"choose": CHOOSE, "codec": {"kind": "int8"}}, "leave one out"),
        ({"stall": 0.2}, "link.stall does nothing without link.choose"),
        ({"rounds": "/x"}, "link.rounds does nothing without link.choose"),
        ({"rounds": "x", "choose": CHOOSE}, "give the whole path"),
    ],
)
def test_what_cannot_be_chosen_is_refused(link: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(Link, {"rows": {"a": 1, "b": 1}, **link}, "link")


def test_codecs_of_which_a_later_one_is_larger_are_refused(tmp_path: Path, text: dict[str, str]) -> None:
    sites = Sites(tmp_path, text, **HOW | {"choose": CHOOSE[::-1]})
    with pytest.raises(ConfigError, match=r"train.link.choose: int4 .* takes \d+ bytes and bf16"):
        sites.train(role(lr=1e-2))


def test_a_rate_is_of_a_transfer_that_was_large_enough(tmp_path: Path) -> None:
    assert rate_to(str(tmp_path), "b") is None
    tell_rate(str(tmp_path), "b", 100, 1.0)
    assert rate_to(str(tmp_path), "b") is None
    tell_rate(str(tmp_path), "b", 1 << 20, 2.0)
    assert rate_to(str(tmp_path), "b") == 1 << 19
    [path] = (tmp_path / "rates").iterdir()
    path.write_text(json.dumps({"peer": "b"}))
    assert rate_to(str(tmp_path), "b") is None
