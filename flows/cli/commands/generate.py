"""`atelier generate <model>`: print text as the model samples it."""

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing

from atelier.engine.config.error import ConfigError, printable
from atelier.engine.config.message import Continuation
from atelier.engine.config.parallel import split_of
from atelier.engine.config.record import Record
from atelier.flows.run.generate import SAMPLING, WISHES, continuations, generation_of, model_called
from atelier.flows.run.store_check import open_store
from atelier.infra.store.store import Store

INTERRUPTED = 130  # a shell's exit code after Ctrl-C


def run(options: Namespace) -> int:
    """Print the continuations of the prompts. Returns the exit code. Raises ConfigError for an unknown model
    and for invalid settings.
    """
    store = open_store()
    given = {key: getattr(options, key) for key in (*SAMPLING, *WISHES, "memory", "chat")}
    given["keywords"] = [word.strip() for word in (options.keywords or "").split(",") if word.strip()]
    try:
        generation, layout = (
            generation_of(options.prompt or [""], given),
            split_of(options.split or "", "split"),
        )
    except ConfigError as error:
        raise ConfigError(f"--{error.place.replace('_', '-')}", error.problem, error.way_out) from None
    record = model_called(options.model, store)
    _say_which(record, store, options.model)
    try:
        with closing(continuations(record, generation, store, layout)) as pieces:
            _print(pieces, generation.prompts or ("",) * len(generation.chats))
    except KeyboardInterrupt:
        print(flush=True)
        return INTERRUPTED
    return 0


def _say_which(record: Record, store: Store, word: str) -> None:
    """If several models have the given name, print on stderr that the newest is used."""
    if word == record.name and (more := sum(one.name == word for one in store.records("model")) - 1):
        others = f"{more} other model{'s' * (more > 1)} of this name: `atelier models`"
        print(printable(f"{word}: {record.fingerprint[:8]}, the newest; {others}", 0), file=sys.stderr)


def _print(pieces: Iterator[Continuation], prompts: tuple[str, ...]) -> None:
    at = -1
    for message in pieces:
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
