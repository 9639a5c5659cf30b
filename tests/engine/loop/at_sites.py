"""Trainings of several sites on this machine: all at once, and killed."""

import random
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Thread

from atelier.engine.io.fork_server import Process
from tests.forks import start_alone

PATIENCE_S = 120


def all_at_once(sites: Iterable[str], train: Callable[[str], None]) -> None:
    """`train` of each site, in a thread of its own; the first error is raised here."""
    errors: list[BaseException] = []

    def at(site: str) -> None:
        try:
            train(site)
        except BaseException as error:  # raised in the test's own thread
            errors.append(error)

    threads = [Thread(target=at, args=(site,), daemon=True) for site in sites]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), f"a site still trains after {PATIENCE_S} s"


def killed_until_they_end(
    paths: Mapping[str, str],
    folder: Path,
    draw: random.Random,
    most: int,
    kill_agent: Callable[[str], None] | None = None,
) -> int:
    """Trainings of these run files by site, killed at drawn times at most so often in all, each begun again,
    until all have ended; how many were killed. `kill_agent`: that of a site, in place of every second
    training. What still runs when this fails is ended.
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
            time.sleep(draw.uniform(0.05, 0.4))
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
        for process in ranks.values():
            if process.poll() is None:
                process.kill()
                process.wait()
    return kills
