"""How much two sites learn when each is down a tenth of the time: elastic membership beside strict.

python benchmarks/outages.py [--minutes 20] [--outages 10] [--seed 0]     44 minutes; an outage takes 12 s.
With --minutes 100 an outage takes a minute, and all of it 220 minutes.

Each site is a process with one core; both reach one mailbox. Outages are drawn from the seed; all have one
length and take a tenth of the time in all. An outage begins with kill -9. At its end the site's command is
started again; starting and resuming count as lost time. Learned samples are those of the decided rounds
(elastic), or of rounds that both have sent (strict), from the first of these on.

`share`: learned samples as a share of those learned without outages in the same time. `of_own_pace`: as a
share of the pace in the same run while both sites are up, for machines whose speed changes. If each site is
down a tenth of the time and nothing else is lost, it is 0.9. In trainings of days outages are longer than
these, and the loss around them weighs less. Synchronous training stops as often as the strict membership.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep, use_own_code

from atelier.engine.config.model.gpt import GPT
from tests.engine.extensions.sites.test_outer import Sites
from tests.engine.trainings import VOCAB, role, tokens

DOWN, SITES, ROWS, EVERY = 0.1, "ab", 4, 10
LOOK_S = 0.1
BIN_S, AFTER_S = 10, 20.0  # seconds in which samples are counted; after an outage in which they are not
MODEL = GPT(num_layers=4, hidden=96, num_heads=4, vocab=VOCAB)
ELASTIC = {"kind": "elastic", "coordinator": "any", "grace": 2.0, "deadline": 60.0}
Times = dict[str, list[tuple[float, float]]]  # by site: when it is down, from and until, seconds


def drawn(draw: random.Random, seconds: float, outages: int) -> Times:
    """Of each site `outages` of one length, apart from each other, after the first and before the last."""
    length, found = DOWN * seconds / outages, Times()
    for site in SITES:
        free = seconds * (1 - DOWN)
        begins = sorted(draw.uniform(0.02 * free, 0.95 * free) for _ in range(outages))
        found[site] = [(at + number * length, at + (number + 1) * length) for number, at in enumerate(begins)]
    return found


class Run:
    """Both sites' trainings, and the samples that are learned."""

    def __init__(self, folder: Path, membership: dict[str, Any]) -> None:
        link: dict[str, Any] = {"every": EVERY, "membership": membership} if membership else {"every": EVERY}
        sites = Sites(
            folder,
            {"tokens": tokens(folder / "text", num_tokens=2_000_000)},
            rows=dict.fromkeys(SITES, ROWS),
            **link,
        )
        how: dict[str, Any] = {
            "steps": 1_000_000, "checkpoint_every": EVERY, "sequence": 128, "micro_batch": ROWS, "keep": 2,
        }  # fmt: skip
        self.paths = {site: sites.write(site, role(shape=MODEL), **how) for site in SITES}
        self.folder, self.mailbox, self.is_elastic = folder, Path(sites.mailbox("a")), bool(membership)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.rounds: dict[int, int] = {}  # samples by round
        self.seen: dict[int, float] = {}  # when a round was seen first

    def begin(self, site: str) -> None:
        with (self.folder / f"{site}.log").open("ab") as log:
            self.running[site] = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "atelier.engine.train", self.paths[site]],
                cwd=PROJECT, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    def end(self, site: str) -> None:
        process = self.running.pop(site)
        process.kill()
        process.wait()

    def look(self) -> None:
        for folder in self.mailbox.glob("*/round-*"):
            number = int(folder.name.removeprefix("round-"))
            if number in self.rounds:
                self.seen.setdefault(number, time.monotonic())
                continue
            if self.is_elastic and (folder / "decision.json").exists():
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile, as all have passed it
                    members = json.loads((folder / "decision.json").read_bytes())["line"]["sha256"]
                    self.rounds[number] = len(members) * ROWS * EVERY
            elif not self.is_elastic and all((folder / site / "message.json").exists() for site in SITES):
                self.rounds[number] = len(SITES) * ROWS * EVERY

    def learned(self, seconds: float, down: Times) -> tuple[int, int, float | None]:
        """Samples and rounds in so many seconds from the first round on, with these outages; and samples a
        second in those parts of them in which both sites were up and no outage had just ended.
        """
        for site in SITES:
            self.begin(site)
        try:
            while not self.rounds:
                self._check()
                time.sleep(LOOK_S)
            began, self.rounds = time.monotonic(), {}
            self.look()
            before = {*self.rounds}
            while (now := time.monotonic() - began) < seconds:
                for site in SITES:
                    is_down = any(begin <= now < end for begin, end in down.get(site, []))
                    if is_down and site in self.running:
                        self.end(site)
                    elif not is_down and site not in self.running:
                        self.begin(site)
                self._check()
                time.sleep(LOOK_S)
        finally:
            for site in [*self.running]:
                self.end(site)
        counted = {number: samples for number, samples in self.rounds.items() if number not in before}
        return sum(counted.values()), len(counted), self._pace(counted, began, seconds, down)

    def _pace(self, counted: dict[int, int], began: float, seconds: float, down: Times) -> float | None:
        outages = [(begin, end + AFTER_S) for each in down.values() for begin, end in each]
        bins = [float(start) for start in range(0, int(seconds) - BIN_S + 1, BIN_S)]
        quiet = [at for at in bins if not any(at < end and at + BIN_S > begin for begin, end in outages)]
        times = [(self.seen.get(number, 0.0) - began, samples) for number, samples in counted.items()]
        learned = [sum(samples for at, samples in times if start <= at < start + BIN_S) for start in quiet]
        return sum(learned) / len(quiet) / BIN_S if quiet else None

    def _check(self) -> None:
        self.look()
        for site, process in self.running.items():
            if process.poll() is not None:
                raise SystemExit(f"{site} has ended: {(self.folder / f'{site}.log').read_text()[-1000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--outages", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    use_own_code()
    seconds = given.minutes * 60
    down = drawn(random.Random(given.seed), seconds, given.outages)
    found: dict[str, Any] = {}
    undisturbed = 0.0
    for name, membership, outages in (
        ("undisturbed", ELASTIC, {}),
        ("elastic", ELASTIC, down),
        ("strict", {}, down),
    ):
        with tempfile.TemporaryDirectory() as folder:
            lasts = seconds / 5 if name == "undisturbed" else seconds
            samples, rounds, pace = Run(Path(folder), membership).learned(lasts, outages)
        rate = samples / lasts
        undisturbed = undisturbed or rate
        found[name] = {
            "samples_a_second": round(rate, 2),
            "rounds": rounds,
            "share": round(rate / undisturbed, 4),
            "of_own_pace": pace and round(rate / pace, 4),
        }
        print(f"{name:12} {found[name]}", flush=True)
    about = {
        "minutes": given.minutes,
        "outages": given.outages,
        "seconds_each": round(DOWN * seconds / given.outages, 1),
    }
    keep("outages", about | {"params": MODEL.num_params(), "every": EVERY, "seed": given.seed} | found)


if __name__ == "__main__":
    main()
