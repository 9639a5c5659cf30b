"""A small corpus with names, identifiers and phrases, and the inputs of rows of all objectives."""

import json
import random
from io import BytesIO
from pathlib import Path

import numpy as np

from atelier.engine.config.generation import TAGS
from atelier.engine.config.objective.distance import Distance
from atelier.engine.config.objective.document import DocumentLM
from atelier.engine.config.objective.knowledge import Knowledge
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.objective.reorder import Reorder
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.io.artifact import ArtifactInput, open_input
from tests.engine.data.conftest import Workshop
from tests.engine.trainings import artifact

VOCAB = 400
SPECIALS = ("<|mask|>", "<|cls|>", "<|sep|>", *TAGS)
PLACES = ("harbour", "lighthouse", "estuary", "breakwater", "pier", "sandbank", "channel", "anchorage")


def story(n: int) -> str:
    """A document of 3 to 60 sentences that holds its number in each, with names, identifiers and a phrase."""
    draw = random.Random(n)
    lines = [f"Log {n} of the survey."]
    for line in range(draw.randint(2, 60)):
        place, other = draw.sample(PLACES, 2)
        kind = draw.randrange(5)
        lines.append(
            (
                f"On day {line} of log{n} the steam boat left the {place} for the {other}.",
                f"Captain Ada Lovelace wrote {place}_{other}.depth_{n} = {draw.randrange(999)} to the book!",
                f"Was the steam boat in the {place} again?\n",
                f"The {other} near MacKenzie Point is {draw.randrange(99)} fathoms deep.",
                f"Buoy{n}x{line} is a {place} marker of the steam boat.",
            )[kind]
        )
    return " ".join(lines) + "\n"


def harbour(folder: Path, *, sentinels: int = 0) -> dict[str, str]:
    """The inputs of a training: tokens, their tokenizer, triples and attributes of the same documents, and
    pieces of them as if they were imitations and conversations. `sentinels`: how many the tokenizer has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shop = Workshop(folder)
    corpus = shop.corpus([story(n) for n in range(150)], 0.2)
    marks = [f"<|s{n}|>" for n in range(sentinels)]
    tokenizer = shop.tokenizer(corpus, vocab=VOCAB, specials=(*SPECIALS, *marks))
    tokens, triples = shop.tokens(corpus, tokenizer), shop.run("extract", {}, {"corpus": corpus}, "triples")
    described = shop.run("describe", {}, {"corpus": corpus}, "attributes")
    return {
        "tokens.main": tokens.url,
        "tokenizer": tokenizer.url,
        "triples.main": triples.url,
        "attributes.main": described.url,
        "imitations.main": imitations(folder / "imitations", tokens).url,
        "chats.main": chats(folder / "chats", tokens).url,
    }


def imitations(folder: Path, tokens: ArtifactInput) -> ArtifactInput:
    """Pieces of each split's text; as generated stands the piece that follows."""
    lines = []
    for split in ("train", "held_out"):
        ids = np.frombuffer(tokens.file(f"{split}.bin", folder).read_bytes(), "<u2").tolist()
        for first in range(0, len(ids) - 80, 80):
            original, generated = ids[first : first + 40], ids[first + 40 : first + 80]
            lines.append({"split": split, "prefix": 1, "original": original, "generated": generated})
    data = "\n".join(map(json.dumps, lines)).encode()
    return open_input(artifact(folder, "imitations", {"imitations.jsonl": data}))


def chats(folder: Path, tokens: ArtifactInput) -> ArtifactInput:
    """Pieces of each split's text as if they were conversations: what is learned is their second half."""
    files = {}
    for split in ("train", "held_out"):
        ids = np.frombuffer(tokens.file(f"{split}.bin", folder).read_bytes(), "<u2")
        rows = [ids[first : first + 4 + first % 36] for first in range(0, len(ids) - 80, 77)]
        learned = [np.arange(len(row)) >= len(row) // 2 for row in rows]
        ends = BytesIO()
        np.save(ends, np.cumsum([len(row) for row in rows]).astype("<i8"))
        files[f"{split}.bin"] = np.concatenate(rows).tobytes()
        files[f"{split}.learned.bin"] = np.concatenate(learned).astype(np.uint8).tobytes()
        files[f"{split}.ends.npy"] = ends.getvalue()
    return open_input(artifact(folder, "chats", files, vocab=VOCAB))


def every_objective() -> dict[str, ObjectiveSpec]:
    return {
        "document": DocumentLM(weight=0.5, rows=0.4),
        "mlm": MLM(weight=0.25, rows=0.3),
        "knowledge": Knowledge(weight=0.1, rows=0.1),
        "reorder": Reorder(weight=0.1, rows=0.1),
        "distance": Distance(weight=0.05, rows=0.1),
    }
