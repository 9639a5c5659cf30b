"""Kill or halt trainings over two sites, and their agents, at drawn times; compare the weights of both sites
and the samples.

python benchmarks/site_kills.py [--kills 100] [--seed 0] [--silence 125]     8 minutes

Strict and elastic memberships alternate. A strict training (codec, delay and fragments drawn) must end with
the bits of an undisturbed one. In an elastic one (the coordinator drawn; a's agent cannot be called) the
sites continue without one that is away: a training that follows its round log must get the same bits, and no
sample of the log may be lost or learned twice. Any other end is an error. A killed process is started again,
at once or after the others have continued without it; a halted one is silent for up to two seconds. The last
two trainings, one of each kind, have a site and its agent that stand still for `silence` seconds.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep, use_own_code

from atelier.engine.extensions.sites.round_log import FILE
from tests.engine.extensions.sites.at_sites import (
    killed_until_they_end,
    out_until_they_end,
    silent_until_they_end,
)
from tests.engine.extensions.sites.test_elastic import check_samples, elastic, log_of
from tests.engine.extensions.sites.test_outer import Sites
from tests.engine.trainings import role, tokens
from tests.infra.sites.agents import Agents, running
from tests.infra.sites.test_linked_training import Linked

EACH = 10  # kills of a training at most
OUTER: list[dict[str, Any]] = [{}, {"kind": "nesterov", "lr": 0.7, "momentum": 0.9}]
WAYS: list[dict[str, Any]] = [
    {},
    {"codec": {"kind": "int8"}},
    {"codec": {"kind": "int4"}, "delay": 3, "fragments": 2},
    {"codec": {"kind": "topk", "share": 0.1}},
]


# what disturbs trainings until they end: how many were killed or halted
Disturb = Callable[[Mapping[str, str], Linked, str, Agents], int]


def strict(folder: Path, text: dict[str, str], draw: random.Random, disturb: Disturb) -> dict[str, int]:
    """How many were killed, and how many of them were agents."""
    how: dict[str, Any] = {"outer": draw.choice(OUTER)} | draw.choice(WAYS)
    sizes: dict[str, Any] = {"steps": 60, "checkpoint_every": draw.choice((3, 5))}
    spec = role(lr=1e-2)
    plain = Sites(folder / "plain", text, **how)
    plain.train(spec, **sizes)
    linked = Linked(folder / "linked", text, **how)
    paths = {name: linked.write(name, spec, **sizes) for name in linked.setups}
    with running(linked.sites.values()) as agents:
        kills = disturb(paths, linked, "a", agents)
    assert set(linked.models()) == set(plain.models()), f"{how}: other bits than undisturbed"
    assert len(set(plain.models())) == 1
    return {"kills": kills, "of_agents": agents.killed}


def elastic_one(folder: Path, text: dict[str, str], draw: random.Random, disturb: Disturb) -> dict[str, int]:
    """The same; and the rounds, and those in which a site was not."""
    coordinator = draw.choice("ab")
    how: dict[str, Any] = {"outer": draw.choice(OUTER)} | elastic(coordinator=coordinator, grace=1.5)
    linked = Linked(folder / "linked", text, **how)
    sizes: dict[str, Any] = {"steps": 60, "checkpoint_every": draw.choice((3, 5))}
    paths = {name: linked.write(name, role(lr=1e-2), **sizes) for name in linked.setups}
    with running(linked.sites.values()) as agents:
        kills = disturb(paths, linked, coordinator, agents)
    assert len(set(linked.models())) == 1, "the sites' weights differ"
    lines = log_of(linked, "a")
    assert lines == log_of(linked, "b"), "the sites' logs differ"
    check_samples(lines)
    again = Sites(folder / "again", text, **how, rounds=str(linked.setups["b"].output("m") / FILE))
    again.train(role(lr=1e-2), **sizes)
    assert again.models() == linked.models(), "other bits than by its log"
    missed = sum(len(line.sha256) < 2 for line in lines.values())
    return {
        "kills": kills, "of_agents": agents.killed, "rounds": len(lines), "rounds_without_a_site": missed,
    }  # fmt: skip


def silent(paths: Mapping[str, str], linked: Linked, coordinator: str, agents: Agents, seconds: float) -> int:
    """One site, not the one that decides, says nothing for so long: neither it nor its agent."""
    [site] = {*paths} - {coordinator}
    mailboxes = {each: linked.mailbox(each) for each in paths}
    went_on = silent_until_they_end(paths, mailboxes, linked.folder, site, seconds, agents.send)
    assert went_on == ("membership" in linked.link), "who waits for whom"
    return 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--silence", type=float, default=125.0)
    given = parser.parse_args()
    use_own_code()
    draw, began, kinds = (
        random.Random(given.seed),
        time.monotonic(),
        {"strict": strict, "elastic": elastic_one},
    )
    found: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}

    def killed(paths: Mapping[str, str], linked: Linked, coordinator: str, agents: Agents) -> int:
        if linked.link.get("membership"):
            mailbox = linked.mailbox(coordinator)
            return out_until_they_end(paths, mailbox, linked.folder, draw, EACH, kill_agent=agents)
        return killed_until_they_end(paths, linked.folder, draw, EACH, agents)

    def one(kind: str, disturb: Disturb) -> None:
        with tempfile.TemporaryDirectory() as folder:
            text = {"tokens": tokens(Path(folder) / "text")}
            made = kinds[kind](Path(folder), text, draw, disturb)
        found[kind].update(made | {"trainings": 1})
        print(f"{kind}: {made}", flush=True)

    while sum(each["kills"] for each in found.values()) < given.kills:
        one("strict" if found["strict"]["trainings"] <= found["elastic"]["trainings"] else "elastic", killed)
    for kind in kinds if given.silence else ():
        one(kind, partial(silent, seconds=given.silence))
    # every training was checked: nothing lost, nothing learned twice, equal bits
    about = {
        "seed": given.seed,
        "silence_s": given.silence,
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    keep("site_kills", about | {kind: dict(each) for kind, each in found.items()})


if __name__ == "__main__":
    main()
