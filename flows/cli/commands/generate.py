"""`atelier generate <model>`: a generator process samples text; it is printed here as it arrives."""

import json
import re
import subprocess
import sys
import tempfile
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

from atelier import IMPORT_ROOT
from atelier.engine.config.base import Json, parse
from atelier.engine.config.error import AtelierError, ConfigError, printable
from atelier.engine.config.generation import Generation
from atelier.engine.config.message import Continuation
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.record import Record
from atelier.engine.config.run_file import RunFile
from atelier.flows.run.store_check import open_store
from atelier.infra.launch.machine import num_cores
from atelier.infra.launch.supervisor import rank_env
from atelier.infra.store.existing_model import spec_of
from atelier.infra.store.store import Store

GRACE_S = 5.0
SIZES = {"K": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3}  # GB
INTERRUPTED = 130  # what a shell reports after Ctrl-C


def run(options: Namespace) -> int:
    """Print the continuations of the prompts; the exit code. Raises ConfigError for an unknown model and for
    invalid settings.
    """
    store = open_store()
    given = {key: getattr(options, key) for key in ("max_tokens", "temperature", "top_p", "seed", "best_of")}
    wishes = {key: getattr(options, key) for key in ("genre", "topic", "sentiment", "length")}
    wishes["keywords"] = [word.strip() for word in (options.keywords or "").split(",") if word.strip()]
    config: dict[str, Json] = {key: value for key, value in given.items() if value is not None}
    config["prompts"] = options.prompt or [""]
    if options.memory is not None:
        config["memory_gb"] = gigabytes(options.memory, "--memory")
    config["wishes"] = {key: value for key, value in wishes.items() if value}
    try:
        generation = parse(Generation, config, "")
    except ConfigError as error:
        place = error.place.removeprefix("wishes.").replace("_", "-")
        raise ConfigError(f"--{place}", error.problem, error.way_out) from None
    try:
        record = store.resolve(options.model, "model")
    except AtelierError as error:
        raise ConfigError("generate", str(error)) from None
    spec_of(record, store, "generate", options.model)
    _say_which(record, store, options.model)
    with tempfile.TemporaryDirectory(prefix="atelier-generate-") as scratch:
        run = RunFile(
            schema=1,
            task="generate",
            version=1,
            config=generation.model_dump(mode="json"),
            inputs={"model": store.address("model", record.fingerprint)},
            scratch=scratch,
            layout=Parallel(threads="auto", shard=1),
        )
        place = Path(scratch) / "run.json"
        place.write_text(run.text())
        return _speak(place, generation.prompts, rank_env(store.root, num_cores()))


def gigabytes(word: str, place: str) -> float:
    """A size as people write it: 2GB, 500MB, or a number of GB. Raises ConfigError at `place` for others."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(?:(k|M|G|T)B?)?", word.strip(), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise ConfigError(place, f"{word!r} is no size", "give one like 2GB or 500MB")
    return float(match[1]) * SIZES[(match[2] or "G").upper()]


def _say_which(record: Record, store: Store, word: str) -> None:
    """Where several models have the name that was given, say on stderr that it is the newest's."""
    if word == record.name and (more := sum(one.name == word for one in store.records("model")) - 1):
        others = f"{more} other model{'s' * (more > 1)} of this name: `atelier models`"
        print(printable(f"{word}: {record.fingerprint[:8]}, the newest; {others}", 0), file=sys.stderr)


def _speak(place: Path, prompts: tuple[str, ...], env: dict[str, str]) -> int:
    """Start the generator process and print its text. It leads its own session: Ctrl-C reaches only this
    process.
    """
    with open(place.with_name("err"), "wb") as err:
        child = subprocess.Popen(
            [sys.executable, "-m", "atelier.engine.generate", str(place)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            env=env,
            cwd=IMPORT_ROOT,
            start_new_session=True,
        )
    try:
        _print(child, prompts)
        code = child.wait()
    except KeyboardInterrupt:
        print(flush=True)
        return INTERRUPTED
    finally:
        _end(child)
    if code:
        last = place.with_name("err").read_text(errors="replace").strip().splitlines()[-1:]
        raise AtelierError(
            f"generate: the engine ended with exit code {code}" + (f" ({last[0]})" if last else "")
        )
    return 0


def _print(child: subprocess.Popen[bytes], prompts: tuple[str, ...]) -> None:
    assert child.stdout is not None
    at = -1
    for line in child.stdout:
        message: Continuation = json.loads(line)
        if "error" in message:
            raise (
                ConfigError("generate", message["error"])
                if message.get("exit_code") == 2
                else AtelierError(message["error"])
            )
        if "text" in message:
            prompt = message.get("prompt", 0)
            for number in range(at + 1, prompt + 1):
                print(("\n\n" if number else "") + prompts[number], end="")
            at = max(at, prompt)
            print(printable(message["text"], 0, keep="\n\t"), end="", flush=True)
        elif "done" in message:
            print(flush=True)
            done = message["done"]
            print(f"{done['tokens']} tokens, {done['tokens_per_s']:.0f} a second", file=sys.stderr)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
        child.kill()
        child.wait()
    if child.stdout is not None:
        child.stdout.close()
