"""`atelier watch <training> <set>`: examine a training's checkpoints while it goes on; a line for each of
them, and the curve at the end.
"""

import json
import os
import shlex
import sys
from argparse import Namespace
from typing import cast

from atelier.engine.config.base import Json, JsonObject
from atelier.engine.config.error import ConfigError, printable
from atelier.engine.config.message import Message
from atelier.flows.run.outcome import RunOutcome
from atelier.flows.run.store_check import check_root
from atelier.flows.run.watched import Watched, end_of, watched
from atelier.flows.run.watching import Told, Watcher
from atelier.infra.report.exams import exam_line, exam_result
from atelier.infra.store.store import Store, default_root

LOWEST = 19  # priority of processes: a training's come first


def run(options: Namespace) -> int:
    """Watch until the training has ended. Returns the exit code. Raises ConfigError for a word that is no
    training, or sets that cannot be asked.
    """
    every = _every(options.every)
    check_root(will_write=True)
    store = Store(default_root())
    os.nice(LOWEST - os.nice(0))  # with all processes that it starts
    words = [word for word in options.set if "=" in word]
    evals = [word for word in options.set if "=" not in word]
    trainings = watched(store, options.what)
    pages = Pages(store, trainings, is_json=options.json)
    watcher = Watcher(
        store,
        trainings,
        evals,
        words,
        every=every,
        command=shlex.join(["atelier", "watch", options.what, *options.set]),
        tell=pages.tell,
        listener=pages.hear,
    )
    watcher.watch(once=options.once)
    outcome = watcher.report()
    pages.end({each.one.name: each.seen for each in watcher.progress}, outcome, has_ended=not options.once)
    return 1 if outcome is not None and outcome.failure is not None else 0


def _every(word: str | None) -> int:
    if word is not None and not (word.isascii() and word.isdecimal() and int(word)):
        raise ConfigError(
            "--every", f"{word!r} is no number of checkpoints", "--every 2 examines every second one"
        )
    return int(word or 1)


class Pages:
    """What a watcher prints: lines for people, or JSON lines."""

    def __init__(self, store: Store, trainings: list[Watched], *, is_json: bool) -> None:
        self.store, self.is_json, self.has_several = store, is_json, len(trainings) > 1

    def tell(self, told: Told) -> None:
        """Print what became of a checkpoint."""
        step, exams = told.place.step, [(each, exam_result(each, self.store)) for each in told.exams]
        if self.is_json:
            document: dict[str, Json] = {
                "name": told.name,
                "trajectory": told.place.trajectory,
                "step": step,
                "state": told.state,
                "damage": told.damage,
                "exams": [
                    {"fingerprint": each.fingerprint, **cast(JsonObject, exam)} for each, exam in exams
                ],
            }
            print(json.dumps(document, ensure_ascii=False), flush=True)
            return
        text = "; ".join(exam_line(exam) for _, exam in exams)
        if told.state != "examined":
            text = f"damaged: {told.damage}" if told.damage else "gone (removed before it was read)"
        name = f"{told.name} " if self.has_several else ""
        print(printable(f"{name}step {step}: {text}", 0), flush=True)

    def hear(self, node: str, message: Message) -> None:
        """Print warnings, and what is waited for."""
        if text := message.get("warning") or message.get("waiting"):
            print(printable(f"{node}: {text}", 0), file=sys.stderr, flush=True)

    def end(self, seen: dict[str, dict[int, str]], outcome: RunOutcome | None, *, has_ended: bool) -> None:
        """Print how the trainings ended, and where the curve is."""
        ends = {name: end_of(self.store, steps) for name, steps in seen.items()} if has_ended else {}
        report = _report_of(outcome, self.store)
        if outcome is not None and outcome.failure is not None:
            print(printable(f"report: {outcome.failure}", 0), file=sys.stderr)
        for text in outcome.untracked if outcome is not None else ():
            print(printable(text, 0), file=sys.stderr)
        if self.is_json:
            print(json.dumps({"ended": ends, "report": report}, ensure_ascii=False), flush=True)
            return
        for name, text in ends.items():
            print(printable(f"{name}: the training has ended; {text}", 0))
        if report:
            print(printable(f"curve    {report}", 0))


def _report_of(outcome: RunOutcome | None, store: Store) -> str:
    """The page with the curve; '' if there is none."""
    for node in outcome.nodes if outcome is not None else ():
        for product in node.products.values() if node.task == "report" else ():
            record = store.find(product.kind, product.fingerprint)
            pages = [each.path for each in record.files if each.path.endswith(".html")] if record else []
            if pages:
                return f"{store.address(product.kind, product.fingerprint)}/{pages[0]}"
    return ""
