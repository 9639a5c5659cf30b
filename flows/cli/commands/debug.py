"""`atelier debug <run> <task>`: run a task of a past run again, by one process under Python's debugger."""

import json
import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import TypedDict

from atelier import IMPORT_ROOT
from atelier.engine.config.error import ConfigError, printable
from atelier.flows.run.debugging import check_task, moved, recorded, scratch_folder, words_of
from atelier.flows.run.named_run import run_called, runs_called, task_called
from atelier.flows.run.store_check import check_root, open_store
from atelier.infra.launch.supervisor import rank_env
from atelier.infra.store.run_manifest import manifests

STOPPED, BAD_INPUT = 75, ConfigError.exit_code
TERMINAL = ("TERM", "LINES", "INPUTRC")


class Debugged(TypedDict):
    """Output of `atelier debug --json`, which runs nothing. `run` is the run with the run file `run_file`,
    `module` what reads it, `steps` the step at which each role would begin, `split` the axes above 1 of the
    gang that ran it.
    """

    run: str
    task: str
    module: str
    run_file: str
    steps: dict[str, int]
    split: dict[str, int]


def run(options: Namespace) -> int:
    """Debug in the foreground. Returns 0 if the task came to its end or the user left, 2 for bad input, or 1.
    Raises ConfigError for words that mean no task of a run, and for tasks that cannot be run alone.
    """
    check_root(will_write=True)
    store = open_store()
    name, slash, rest = options.run.partition("/")
    task = options.task
    if slash and not task and runs_called(manifests(store), name):
        options.run, task = name, rest
    manifest = run_called(store, options.run, "debug")
    task = task_called(manifest, check_task(manifest, task), "debug")
    found = recorded(store, manifest, task)
    places = [_absolute(word) for word in getattr(options, "break") or ()]
    with scratch_folder(store, task.replace("/", "-")) as folder:
        file, steps = moved(found, folder, step=_step(options.step), on_cpu=options.cpu)
        if options.json:
            split, place = found.split, str(found.place)
            print(
                json.dumps(
                    Debugged(
                        run=found.run,
                        task=task,
                        module=found.module,
                        run_file=place,
                        steps=steps,
                        split=split,
                    ),
                    indent=1,
                )
            )
            return 0
        place = folder / "run.json"
        place.write_text(file.text())
        _say(f"{task} of the run {found.run}, by one process; its files are in {folder} until it ends")
        for role, step in steps.items():
            _say(f"  {role}: from {f'the checkpoint of step {step}' if step else 'step 0'}")
        if found.split:
            axes = ", ".join(f"{axis}={size}" for axis, size in found.split.items())
            _say(f"  it ran on {found.ranks} ranks ({axes}): here sums may differ in their last digits")
        words = words_of(found, place, places, stops_first=options.start)
        return _foreground(words, rank_env(store.root, found.threads))


def _foreground(words: list[str], env: dict[str, str]) -> int:
    """Run the interpreter with these arguments on this terminal; Ctrl-C is its own."""
    env = env | {key: os.environ[key] for key in TERMINAL if key in os.environ}
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = subprocess.Popen(
            [sys.executable, *words], env=env, cwd=IMPORT_ROOT, preexec_fn=_hears_interrupts
        )
        code = child.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    if code in (0, BAD_INPUT):
        return code
    if code == STOPPED:
        _say("stopped")
    return 1


def _hears_interrupts() -> None:
    """In the child: an ignored SIGINT would be inherited."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _step(word: str | None) -> int | None:
    if word is None:
        return None
    if not (word.isascii() and word.isdecimal()):
        raise ConfigError("debug --step", f"{word!r} is no step", "--step 0 begins at the start")
    return int(word)


def _absolute(word: str) -> str:
    """A place with its file's whole path, if the file is there as seen from here."""
    file, colon, line = word.rpartition(":")
    return f"{Path(file).resolve()}:{line}" if colon and Path(file).is_file() else word


def _say(text: str) -> None:
    print(printable(text, 0), file=sys.stderr, flush=True)
