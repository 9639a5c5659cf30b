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


def killed_until_they_end(paths: Mapping[str, str], folder: Path, draw: random.Random, most: int) -> int:
    """Trainings of these run files by site, killed at drawn times at most so often in all, each begun again,
    until all have ended; how many were killed.
    """

    def begin(site: str) -> Process:
        return start_alone("atelier.engine.train", paths[site], folder / f"{site}.log")

    ranks = {site: begin(site) for site in paths}
    kills, until = 0, time.monotonic() + PATIENCE_S
    while running := [site for site, process in ranks.items() if process.poll() is None]:
        assert time.monotonic() < until, [(folder / f"{site}.log").read_text()[-2000:] for site in running]
        time.sleep(draw.uniform(0.05, 0.4))
        site = draw.choice(running)
        if kills < most and ranks[site].poll() is None:
            ranks[site].kill()
            ranks[site].wait()
            kills += 1
        for site, process in ranks.items():
            if process.poll() not in (None, 0):
                assert process.poll() == -9, (folder / f"{site}.log").read_text()
                ranks[site] = begin(site)
    return kills
