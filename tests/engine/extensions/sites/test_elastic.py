"""Elastic membership: some sites are late, silent or killed, and the others continue. Outer weights have
equal bits at all sites, and those of the round log; every sample is learned once.
"""

import math
import random
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads
from typing import Any

import pytest
from torch import Tensor

from atelier.engine.config.error import StoppedError
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Training
from atelier.engine.extensions.sites import outer
from atelier.engine.extensions.sites.coordinator import Coordinator
from atelier.engine.extensions.sites.messages import Contribution
from atelier.engine.extensions.sites.outer import OuterSteps
from atelier.engine.extensions.sites.outer_inbox import OuterInbox
from atelier.engine.extensions.sites.round_log import FILE, RoundLine, read_log
from atelier.engine.io.fork_server import Process
from atelier.engine.loop.prefetch import Prefetcher, StepData
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.stop import StopRequest
from tests.engine.extensions.sites.at_sites import all_at_once, beside_a_gang, decisions, out_until_they_end
from tests.engine.extensions.sites.test_outer import Sites, text
from tests.engine.trainings import TrainingSetup, artifact, role, train
from tests.forks import start_alone, start_gang
from tests.infra.sites.agents import until
from tests.parity.cases import layout as layout_of

__all__ = ["text"]
EVERY, STEPS = 2, 8
GRACE_S = 0.6


def elastic(**more: Any) -> dict[str, Any]:
    membership = {"kind": "elastic", "grace": GRACE_S, "deadline": 30.0} | more
    return {"every": EVERY, "membership": membership}


def log_of(sites: Sites, site: str) -> dict[int, RoundLine]:
    return read_log(str(sites.setups[site].output("m") / FILE))


def learned(lines: Mapping[int, RoundLine]) -> dict[str, list[int]]:
    """The samples that each site has learned, in the order in which it has."""
    found: dict[str, list[int]] = {}
    for line in lines.values():
        assert line.samples is not None
        for site in line.sha256:
            found.setdefault(site, []).extend(
                number for first, end in line.samples.assigned[site] for number in range(first, end)
            )
    return found


def check_samples(lines: Mapping[int, RoundLine]) -> None:
    """None is learned twice, and what is neither learned nor to be assigned again was never assigned."""
    last = lines[max(lines)].samples
    assert last is not None
    done = [number for numbers in learned(lines).values() for number in numbers]
    waiting = [number for first, end in last.again for number in range(first, end)]
    waiting += [n for spans in last.next.values() for first, end in spans for n in range(first, end)]
    assert sorted(done + waiting) == [*range(last.fresh)]


def test_sites_that_begin_as_a_model_decide_their_first_round(tmp_path: Path, text: dict[str, str]) -> None:
    before = TrainingSetup(tmp_path / "before", text)
    before.train(before.training({"m": role()}, train(2)))
    files = {path.name: path.read_bytes() for path in before.output("m").iterdir()}
    sites = Sites(tmp_path, text, **elastic(grace=60.0))

    def at(site: str) -> None:
        setup = sites.setups[site]
        setup.inputs = {**setup.inputs, "init": artifact(setup.folder / "init", "model", files)}
        member = setup.member("m", role(lr=1e-2), STEPS, init="init")
        sizes = {"global_batch": 4, "micro_batch": 1, "link": sites.link_of(site)}
        setup.train(setup.training({"m": member}, train(STEPS, **sizes)))

    all_at_once(sites.setups, at)
    assert len(set(sites.models())) == 1
    assert [*log_of(sites, "a")[1].sha256] == ["a", "b"]
    check_samples(log_of(sites, "a"))


def test_with_all_there_every_sample_is_learned_by_the_site_that_the_log_says(
    tmp_path: Path, text: dict[str, str]
) -> None:
    sites = Sites(tmp_path, text, rows={"a": 1, "b": 3}, **elastic(grace=60.0))
    sites.train(role(lr=1e-2), steps=STEPS)
    assert len(set(sites.models())) == 1
    lines = log_of(sites, "a")
    assert lines == log_of(sites, "b") and len(lines) == STEPS // EVERY
    found = learned(lines)
    assert sorted(found["a"] + found["b"]) == [*range(4 * STEPS)] and len(found["b"]) == 3 * STEPS
    check_samples(lines)
    summary = sites.setups["b"].summary("m")
    assert summary["learned_samples"] == {"a": STEPS, "b": 3 * STEPS} and len(summary["rounds"]) == 64


def test_the_others_go_on_without_a_site_that_is_silent_and_it_takes_their_weights(
    tmp_path: Path, text: dict[str, str]
) -> None:
    """And by the log alone the training has the same bits: the silent site learns nothing there, too."""
    sites = Sites(tmp_path / "first", text, **elastic(grace=0.3))
    sites.setups["a"].train(sites.training("a", role(lr=1e-2), STEPS))
    sites.setups["b"].train(sites.training("b", role(lr=1e-2), STEPS))
    assert len(set(sites.models())) == 1
    lines = log_of(sites, "b")
    assert all([*line.sha256] == ["a"] for line in lines.values())
    assert sites.setups["b"].summary("m")["learned_samples"] == {"a": 2 * STEPS, "b": 0}
    assert [setup.summary("m")["tokens"] for setup in sites.setups.values()] == [2 * STEPS * 16] * 2
    assert learned(lines)["a"][4:8] == [4, 5, 6, 7]  # of round 1, where b was to learn them
    check_samples(lines)
    log = sites.setups["b"].output("m") / FILE
    again = Sites(tmp_path / "again", text, **elastic(), rounds=str(log))
    again.train(role(lr=1e-2), steps=STEPS)
    assert again.models() == sites.models()


@pytest.mark.slow
def test_a_gang_of_several_ranks_takes_part_and_catches_up(tmp_path: Path, text: dict[str, str]) -> None:
    """Once beside the other site, once after it: all its ranks pass over all steps."""
    for is_late in (False, True):
        sites = Sites(tmp_path / f"late-{is_late}", text, **elastic(grace=0.3 if is_late else 60.0))
        path = sites.write("b", role(lr=1e-2), layout_of(shard=2), steps=STEPS)
        here = partial(sites.setups["a"].train, sites.training("a", role(lr=1e-2), STEPS))
        if is_late:
            here()
            start_gang("tests.parity.gang", tmp_path, 2, path)
        else:
            beside_a_gang(tmp_path, path, here)
        assert len(set(sites.models())) == 1
        members = {tuple(line.sha256) for line in log_of(sites, "b").values()}
        assert members == {("a",) if is_late else ("a", "b")}


class Branched(Sites):
    """Sites whose training has two trajectories, with a mailbox folder each."""

    cut = 0  # the trunk's last step; 0 = two thirds

    def training(self, site: str, spec: Role, steps: int = STEPS, **more: Any) -> Training:
        found = super().training(site, spec, steps, **more)
        setup, cut = self.setups[site], self.cut or 2 * steps // 3
        segments = (setup.segment("trunk", 0, cut), setup.segment("m", cut, steps))
        return found.model_copy(update={"members": {"m": setup.member("m", spec, steps, segments=segments)}})


@pytest.mark.parametrize("coordinator", ["", "any"])
def test_a_branch_goes_on_with_the_log_of_its_trunk(
    tmp_path: Path, text: dict[str, str], coordinator: str
) -> None:
    """b comes when a is in the branch, or has ended: it passes over what was decided without it."""
    sites = Branched(tmp_path, text, **elastic(grace=0.5, coordinator=coordinator))
    paths = {site: sites.write(site, role(lr=1e-2), steps=36) for site in "ab"}
    branch = Path(sites.mailbox("a"), sites.setups["a"].segment("m", 24, 36).fingerprint[:16])
    with ExitStack() as stack:

        def begin(site: str) -> Process:
            process = start_alone("atelier.engine.train", paths[site], tmp_path / f"{site}.log")
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        one = begin("a")
        if coordinator == "any":  # which waits for b once
            other = begin("b")
            until(lambda: len(decisions(sites.mailbox("a"))) > 1, "no round is decided")
            other.kill()
        until((branch / "a-training.json").exists, "a does not reach the branch")
        other = begin("b")
        assert (one.wait(), other.wait()) == (0, 0), (tmp_path / "b.log").read_text()[-2000:]
    assert len(set(sites.models())) == 1
    lines = log_of(sites, "a")
    assert lines == log_of(sites, "b") and len(lines) == 18
    check_samples(lines)
    assert any("b" not in line.sha256 for line in lines.values())


class AfterRound(StopRequest):
    """Asks to stop some steps after the first round was decided."""

    def __init__(self, folder: Path, mailbox: str) -> None:
        super().__init__(folder)
        self._mailbox, self._left = mailbox, 3

    @property
    def is_asked(self) -> bool:
        self._left -= 1 in decisions(self._mailbox)
        return self._left < 0


def test_a_longer_training_leaves_out_the_rest_of_a_round_that_was_passed_over(
    tmp_path: Path, text: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """b leaves out the end of round 2 of a short training, whose trunk ends in it; the long one goes on. It
    is silent from when it has stopped, however long that takes.
    """
    sites, has_stopped = Branched(tmp_path, text, **elastic(grace=60.0) | {"every": 8}), Event()
    sites.cut = 13

    def is_heard(self: Coordinator, site: str, now: float) -> bool:
        return site != "b" or not has_stopped.is_set()

    def at(site: str) -> None:
        if site == "a":
            sites.setups["a"].train(sites.training("a", role(lr=1e-2), 16))
            return
        stop = AfterRound(sites.setups["b"].folder, sites.mailbox("b"))
        with pytest.raises(StoppedError):
            sites.setups["b"].train(sites.training("b", role(lr=1e-2), 16), stop=stop)
        has_stopped.set()

    with monkeypatch.context() as patched:
        patched.setattr(Coordinator, "_is_heard", is_heard)
        all_at_once("ab", at)
    sites.setups["b"].train(sites.training("b", role(lr=1e-2), 16))
    assert decisions(sites.mailbox("a")) == {1: ["a", "b"], 2: ["a"]}
    sites.cut = 21
    sites.train(role(lr=1e-2), steps=32)
    assert len(set(sites.models())) == 1
    lines = log_of(sites, "a")
    assert [[*line.sha256] for line in lines.values()] == [["a", "b"], ["a"], ["a", "b"], ["a", "b"]]
    check_samples(lines)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3, 4, 5))]
)
def test_with_outages_of_all_sites_the_bits_are_those_of_the_log(
    tmp_path: Path, text: dict[str, str], seed: int
) -> None:
    draw = random.Random(seed)
    codec = draw.choice([{}, {"kind": "int8"}])
    outer = draw.choice([{}, {"kind": "nesterov", "lr": 0.7, "momentum": 0.9}])
    how = {"rows": {"a": 1, "b": 2, "c": 1}, "codec": codec, "outer": outer}
    membership = elastic(minimum=draw.choice([1, 2]), coordinator=draw.choice(["", "any", "c"]))
    sites = Sites(tmp_path / "first", text, **how, **membership)
    sizes: dict[str, Any] = {"steps": 40, "checkpoint_every": draw.choice([2, 3, 5])}
    given = membership["membership"]["coordinator"]
    needed = "" if given == "any" else given or "a"
    paths = {site: sites.write(site, role(lr=1e-2), **sizes) for site in sites.setups}
    minimum = membership["membership"]["minimum"]
    kills = out_until_they_end(paths, sites.mailbox("a"), tmp_path, draw, 6, needed=needed, minimum=minimum)
    assert kills and len(set(sites.models())) == 1
    lines = log_of(sites, "a")
    assert any(len(line.sha256) < 3 for line in lines.values())  # some were without
    assert lines == log_of(sites, "b") == log_of(sites, "c")
    assert all(len(line.sha256) == 0 or len(line.sha256) >= minimum for line in lines.values())
    check_samples(lines)
    log = sites.setups["b"].output("m") / FILE
    again = Sites(tmp_path / "again", text, **how, **membership, rounds=str(log))
    again.train(role(lr=1e-2), **sizes | {"checkpoint_every": 40})
    assert again.models() == sites.models()


@pytest.mark.parametrize("fault", ["not finite", "not good"])
def test_a_site_that_is_not_in_a_round_goes_on_with_nothing_of_it(
    tmp_path: Path, text: dict[str, str], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """It sends nothing that is not finite, or what it sends cannot be added. The others take the outer step
    without it, and it has the same bits and counts as where it leaves the round out from the first.
    """
    how = elastic(grace=60.0) | {"codec": {"kind": "int8"}}
    sites = Sites(tmp_path / "first", text, **how)
    is_finite, why_not, look = OuterSteps._is_finite, OuterSteps._why_not, Coordinator.look

    def diverged(self: OuterSteps, moved: dict[str, Tensor], member: RoleState) -> bool:
        if self._link.site == "b" and member.step == 2 * EVERY:
            next(iter(moved.values())).fill_(math.nan)
        return is_finite(self, moved, member)

    def refused(self: OuterSteps, member: RoleState, head: Contribution) -> str:
        return why_not(self, member, head) or ("bad" if (head.site, head.round) == ("b", 2) else "")

    def looked(self: Coordinator, number: int, before: RoundLine | None) -> RoundLine | None:
        def is_coming() -> bool:
            said = self._meeting.heard("b")
            return said is not None and said.round > 3

        if number == 3:
            until(is_coming, "b does not say that it comes to round 4")
        return look(self, number, before)

    with monkeypatch.context() as patched:
        if fault == "not finite":
            patched.setattr(OuterSteps, "_is_finite", diverged)
        else:
            patched.setattr(OuterSteps, "_why_not", refused)
            patched.setattr(Coordinator, "look", looked)
        sites.train(role(lr=1e-2), steps=STEPS)
    assert len(set(sites.models())) == 1
    lines = log_of(sites, "a")
    assert [*lines[1].sha256] == ["a", "b"] and [*lines[2].sha256] == ["a"]
    assert any("b" in lines[number].sha256 for number in lines if number > 2)  # it is back
    check_samples(lines)
    again = Sites(tmp_path / "again", text, **how, rounds=str(sites.setups["b"].output("m") / FILE))
    again.train(role(lr=1e-2), steps=STEPS)
    assert again.models() == sites.models()
    counts = [each.setups["b"].summary("m")[key] for each in (sites, again) for key in ("tokens", "forwards")]
    assert counts[:2] == counts[2:]


@pytest.mark.parametrize("has_missed", [False, True])
def test_each_step_of_a_site_reads_the_samples_that_the_log_gives_it(
    tmp_path: Path, text: dict[str, str], monkeypatch: pytest.MonkeyPatch, has_missed: bool
) -> None:
    """In the order of the log; where b has missed round 1 some come again, in pieces."""
    every = 3
    sites = Sites(tmp_path, text, rows={"a": 1, "b": 3}, **elastic(grace=60.0) | {"every": every})
    read: dict[tuple[str, int], list[int]] = {}
    at, why_not = Prefetcher.at, OuterSteps._why_not

    def read_at(self: Prefetcher, clock: int) -> StepData:
        found = at(self, clock)
        read[self._train.link.site, clock] = [
            n for batch in found.batches for n in batch["samples_B"].tolist()
        ]
        return found

    def refused(self: OuterSteps, member: RoleState, head: Contribution) -> str:
        return "bad" if has_missed and (head.site, head.round) == ("b", 1) else why_not(self, member, head)

    monkeypatch.setattr(Prefetcher, "at", read_at)
    monkeypatch.setattr(OuterSteps, "_why_not", refused)
    sites.train(role(lr=1e-2), steps=4 * every)
    lines = log_of(sites, "a")
    assert has_missed == ("b" not in lines[1].sha256)
    for number, line in lines.items():
        for site in line.sha256:
            assert line.samples is not None
            spans = line.samples.assigned[site]
            steps = [read[site, clock] for clock in range((number - 1) * every, number * every)]
            assert {len(step) for step in steps} == {sites.link["rows"][site]}
            assert [n for step in steps for n in step] == [
                n for first, end in spans for n in range(first, end)
            ]


@pytest.mark.parametrize("work", ["write_files", "_why_not", "open", "_add"])
def test_a_site_is_heard_however_long_it_sends_judges_and_adds(
    tmp_path: Path, text: dict[str, str], monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """It waits there until what it says is another than before."""
    sites = Sites(tmp_path, text, rows={"a": 4}, **elastic())
    place = {"write_files": outer, "open": OuterInbox}.get(work, OuterSteps)
    do, held = getattr(place, work), list[str]()

    def slowly(*given: Any, **more: Any) -> Any:
        [path] = Path(sites.mailbox("a")).glob("*/a-presence.json")
        before = path.read_bytes()
        if not held:
            held.append(work)
            until(lambda: path.read_bytes() != before, f"it says nothing in {work}")
        return do(*given, **more)

    monkeypatch.setattr(place, work, slowly)
    sites.train(role(lr=1e-2), steps=EVERY)
    assert held and not [thread for thread in enumerate_threads() if thread.name == "beats"]
