"""Helper: trainings of several sites on this machine, all at once, and killed."""

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from threading import Event, Thread
from unittest.mock import patch

import pytest

from atelier.engine.config.error import DataError
from atelier.engine.extensions.sites import checks
from atelier.engine.io.fork_server import Process
from atelier.engine.loop.stop import StopRequest
from tests.forks import start_alone, start_gang

PATIENCE_S = 120
check_sites = partial(checks.check, prefix="roles.", section="train")


def all_at_once(sites: Iterable[str], train: Callable[[str], None]) -> None:
    """`train` of each site, in a thread of its own; the first error is raised, and stops others that wait."""
    errors: list[BaseException] = []
    asked = StopRequest.is_asked.fget
    assert asked is not None

    def at(site: str) -> None:
        try:
            train(site)
        except BaseException as error:  # raised in the test's own thread
            errors.append(error)

    threads = [Thread(target=at, args=(site,), daemon=True) for site in sites]
    with patch.object(StopRequest, "is_asked", property(lambda stop: bool(errors) or asked(stop))):
        for thread in threads:
            thread.start()
        until = time.monotonic() + 2 * PATIENCE_S
        while not errors and time.monotonic() < until and any(thread.is_alive() for thread in threads):
            time.sleep(0.02)
        if errors:
            for thread in threads:
                thread.join(PATIENCE_S)
            raise errors[0]
    assert not any(thread.is_alive() for thread in threads), f"a site still trains after {2 * PATIENCE_S} s"


def all_refuse(sites: Iterable[str], train: Callable[[str], None], problem: str) -> None:
    """`train` of each site, which raises DataError that matches `problem` at all of them."""

    def at(site: str) -> None:
        with pytest.raises(DataError, match=problem):
            train(site)

    all_at_once(sites, at)


def beside_a_gang(folder: Path, run_file: str, train: Callable[[], None]) -> None:
    """`train` of one site while two ranks train another's run file; the first error is raised here, with what
    the ranks wrote, and ends them.
    """
    is_over = Event()

    def at(site: str) -> None:
        if site == "gang":
            start_gang("tests.parity.gang", folder, 2, run_file, is_over=is_over.is_set)
        else:
            train()

    try:
        all_at_once(("gang", "here"), at)
    except BaseException as error:
        for log in sorted(folder.glob("gang-2-*.log")):
            error.add_note(f"{log.name}: {log.read_text()[-3000:]}")
        raise
    finally:
        is_over.set()


def killed_until_they_end(
    paths: Mapping[str, str],
    folder: Path,
    draw: random.Random,
    most: int,
    kill_agent: Callable[[str], None] | None = None,
) -> int:
    """Trainings of these run files by site, killed after drawn times or drawn numbers of new files below
    `folder`, at most so often in all, each begun again, until all have ended; how many were killed.
    `kill_agent`: that of a site, in place of every second training. What still runs when this fails is ended.
    """

    def begin(site: str) -> Process:
        return start_alone("atelier.engine.train", paths[site], folder / f"{site}.log")

    ranks = {site: begin(site) for site in paths}
    kills, until = 0, time.monotonic() + PATIENCE_S
    try:
        while running := [site for site, process in ranks.items() if process.poll() is None]:
            assert time.monotonic() < until, [
                (folder / f"{site}.log").read_text()[-2000:] for site in running
            ]
            _wait(folder, draw.randint(1, 30), draw.uniform(0.05, 0.4))
            if kills < most and kill_agent is not None and draw.random() < 0.5:
                kill_agent(draw.choice([*paths]))
                kills += 1
            elif kills < most and ranks[site := draw.choice(running)].poll() is None:
                ranks[site].kill()
                ranks[site].wait()
                kills += 1
            for site, process in ranks.items():
                if process.poll() not in (None, 0):
                    assert process.poll() == -9, (folder / f"{site}.log").read_text()
                    ranks[site] = begin(site)
    finally:
        _end(ranks.values())
    return kills


def _wait(folder: Path, files: int, most_s: float) -> None:
    """Until so many more files lie below the folder, or for `most_s`, in which a fast training has ended."""
    until, files = time.monotonic() + most_s, files + _count(folder)
    while time.monotonic() < until and _count(folder) < files:
        time.sleep(0.005)


def _count(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))


def _end(processes: Iterable[Process]) -> None:
    """What still runs."""
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def decisions(mailbox: str) -> dict[int, list[str]]:
    """Who was in the rounds of an elastic membership that are decided, by round, of those that lie here."""
    found = [json.loads(path.read_bytes())["line"] for path in Path(mailbox).glob("*/round-*/decision.json")]
    return {line["round"]: [*line["sha256"]] for line in found}


def out_until_they_end(
    paths: Mapping[str, str],
    mailbox: str,
    folder: Path,
    draw: random.Random,
    most: int,
    *,
    needed: str = "",
    minimum: int = 1,
    kill_agent: Callable[[str], None] | None = None,
) -> int:
    """Trainings of an elastic membership by site, killed or halted for a while at drawn times at most so
    often in all, each begun again at once, or when the others have gone on without it, until all have ended;
    how many were.

    `mailbox`: where decisions lie first. `needed`: a site without which nothing goes on, `minimum` sites as
    well. `kill_agent`: that of a site, in place of every third training.
    """
    began: dict[str, Process] = {}
    away: dict[str, int] = {}  # sites that stay away until they have missed a round after this one
    kills, until = 0, time.monotonic() + 2 * PATIENCE_S

    def is_back(site: str) -> bool:
        others = [began[each].poll() == 0 for each in paths if each != site and each in began]
        missed = [number for number, members in decisions(mailbox).items() if site not in members]
        return site not in away or max(missed, default=0) > away[site] or (len(others) > 0 and all(others))

    try:
        while any(site not in began or began[site].poll() != 0 for site in paths):
            assert time.monotonic() < until, [(folder / f"{site}.log").read_text()[-2000:] for site in paths]
            for site, path in paths.items():
                code = began[site].poll() if site in began else -9
                assert code in (None, 0, -9), (folder / f"{site}.log").read_text()[-2000:]
                if code == -9 and is_back(site):
                    away.pop(site, None)
                    began[site] = start_alone("atelier.engine.train", path, folder / f"{site}.log")
            time.sleep(draw.uniform(0.1, 0.6))
            alive = [site for site, process in began.items() if process.poll() is None]
            if kills >= (most if decisions(mailbox) else 2) or not alive:
                continue
            kills += 1
            if kill_agent is not None and draw.random() < 0.3:
                kill_agent(draw.choice([*paths]))
                continue
            site = draw.choice(alive)
            if draw.random() < 0.3 and decisions(mailbox):  # it is silent, and goes on late
                began[site].send_signal(signal.SIGSTOP)
                time.sleep(draw.uniform(0, 2))
                began[site].send_signal(signal.SIGCONT)
                continue
            began[site].kill()
            began[site].wait()
            may_miss = site != needed and len(alive) > minimum and decisions(mailbox)
            if may_miss and not away and (kills > most // 2 or draw.random() < 0.7):
                away[site] = max(decisions(mailbox))
    finally:
        _end(began.values())
    return kills


def silent_until_they_end(
    paths: Mapping[str, str],
    mailboxes: Mapping[str, str],
    folder: Path,
    site: str,
    seconds: float,
    send: Callable[[str, signal.Signals], None],
) -> bool:
    """Trainings of these run files by site, of which one, and its agent by `send`, stand still for so long
    from its second message on; whether the others had ended by then.
    """
    began = {each: start_alone("atelier.engine.train", paths[each], folder / f"{each}.log") for each in paths}
    until = time.monotonic() + PATIENCE_S
    try:
        while not [*Path(mailboxes[site]).glob(f"*/round-000002/{site}/message.json")]:
            assert time.monotonic() < until and began[site].poll() is None, f"{site} sends nothing"
            time.sleep(0.01)
        began[site].send_signal(signal.SIGSTOP)
        send(site, signal.SIGSTOP)
        time.sleep(seconds)
        have_ended = all(began[each].poll() == 0 for each in paths if each != site)
        send(site, signal.SIGCONT)
        began[site].send_signal(signal.SIGCONT)
        until = time.monotonic() + PATIENCE_S
        while (codes := {began[each].poll() for each in paths}) != {0}:
            assert time.monotonic() < until and codes <= {None, 0}, codes
            time.sleep(0.1)
    finally:
        _end(began.values())
    return have_ended
