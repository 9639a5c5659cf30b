"""Continue texts with a finished model: a child process samples and streams the tokens."""

import re
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import cast

from atelier.engine.config.base import Json, parse
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.generation import Generation, messages_of
from atelier.engine.config.message import Continuation
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.record import Record
from atelier.engine.config.run_file import RunFile, root_places
from atelier.engine.io.machine import num_cores
from atelier.flows.run.engine_command import follow
from atelier.infra.launch.supervisor import rank_env
from atelier.infra.store.existing_model import spec_of
from atelier.infra.store.store import Store

SIZES = {"K": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3}  # GB
SAMPLING = ("max_tokens", "temperature", "top_p", "seed", "best_of")
WISHES = ("genre", "topic", "keywords", "sentiment", "length")


def generation_of(prompts: list[str], given: Mapping[str, Json]) -> Generation:
    """Settings by the command's names; None and '' mean not given. Raises ConfigError at a name."""
    there = {key: value for key, value in given.items() if value is not None}
    config: dict[str, Json] = {key: there[key] for key in SAMPLING if key in there}
    config["prompts"] = prompts
    if chats := there.get("chat"):
        config |= {"prompts": [], "chats": chats}
        for chat in chats if isinstance(chats, list) else ():
            messages_of(str(chat))
        taken = [name for name in (*WISHES, "best_of") if there.get(name)] + ["prompt"] * any(prompts)
        if taken:
            raise ConfigError(taken[0], "does nothing beside a chat", "leave it out")
    if "memory" in there:
        config["memory_gb"] = gigabytes(str(there["memory"]), "memory")
    config["wishes"] = {key: there[key] for key in WISHES if there.get(key)}
    try:
        return parse(Generation, config, "")
    except ConfigError as error:
        place = error.place.removeprefix("wishes.")
        raise ConfigError(place, error.problem, error.way_out) from None


def gigabytes(word: str, place: str) -> float:
    """Parse a size: 2GB, 500MB, or a number of GB. Raises ConfigError at `place` for others."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(?:(k|M|G|T)B?)?", word.strip(), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise ConfigError(place, f"{word!r} is not a size", "give one like 2GB or 500MB")
    return float(match[1]) * SIZES[(match[2] or "G").upper()]


def model_called(word: str, store: Store) -> Record:
    """The model that `generate` was given. Raises ConfigError if there is none, or if this code computes
    another version of its kind.
    """
    try:
        record = store.resolve(word, "model")
    except AtelierError as error:
        raise ConfigError("generate", str(error)) from None
    spec_of(record, store, "generate", word)
    return record


def continuations(
    record: Record, generation: Generation, store: Store, layout: Parallel
) -> Generator[Continuation, None, None]:
    """Pieces of the prompts' continuations as they are sampled; the last message is `done`. Closing the
    iterator ends the process. Raises ConfigError or AtelierError when the process reports an error or dies.
    """
    with tempfile.TemporaryDirectory(prefix="atelier-generate-") as scratch:
        run = RunFile(
            schema=1,
            task="generate",
            version=1,
            config=generation.model_dump(mode="json"),
            inputs={"model": store.address("model", record.fingerprint)},
            scratch=scratch,
            layout=layout,
            roots=root_places(),
        )
        place = Path(scratch) / "run.json"
        place.write_text(run.text())
        messages = follow("generate", place, rank_env(store.root, num_cores()))
        yield from cast(Generator[Continuation, None, None], messages)
