"""Artifacts in which no word stands twice: tokens, conversations and the lines of other kinds, in one
vocabulary of whole words.
"""

import json
import random
from io import BytesIO
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from atelier.engine.config.data import END, PAD
from atelier.engine.config.generation import TAGS
from atelier.engine.config.mixture import EXAMPLES, Stream
from atelier.engine.config.objective.chat import Chat
from atelier.engine.config.objective.control import Control
from atelier.engine.config.objective.distance import Distance
from atelier.engine.config.objective.document import DocumentLM
from atelier.engine.config.objective.knowledge import Knowledge
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.objective.natural import Natural
from atelier.engine.config.objective.prefix import PrefixLM
from atelier.engine.config.objective.reorder import Reorder
from atelier.engine.config.objective.spans import Spans
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput, open_input
from tests.engine.trainings import artifact

SPECIALS = [END, PAD, "<|mask|>", "<|cls|>", "<|sep|>", *TAGS, *(f"<|s{n}|>" for n in range(40))]
WORDS = 9000
ROWS: dict[str, ObjectiveSpec] = {
    "mlm": MLM(),
    "document": DocumentLM(),
    "prefix": PrefixLM(encoder=24),
    "spans": Spans(encoder=40),
    "reorder": Reorder(),
    "distance": Distance(),
}
LINES: dict[str, ObjectiveSpec] = {
    "chat": Chat(),
    "control": Control(cut=0.0),
    "knowledge": Knowledge(),
    "natural": Natural(),
}


class Unique:
    """Inputs by key, the ids of each line of those that are not tokens, and the vocabulary."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.next, self.draw = folder, len(SPECIALS), random.Random(7)
        self.words = [*SPECIALS, *(f"Ġw{n}{'.' if n % 9 == 0 else ''}" for n in range(WORDS))]
        words = Tokenizer(models.WordLevel({w: n for n, w in enumerate(self.words)}, unk_token=PAD))
        words.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
        words.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
            [
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                pre_tokenizers.Split("Ġ", "merged_with_next"),
            ]
        )
        words.add_special_tokens(SPECIALS)
        self.lines: dict[str, list[set[int]]] = {}
        self.inputs = {"tokenizer": self._made("tokenizer", {"tokenizer.json": words.to_str().encode()})}
        self.vocabulary = Vocabulary.of(self.inputs["tokenizer"], folder)
        for name, size in (("main", 1500), ("second", 900), ("third", 700), ("fourth", 500)):
            self.inputs[f"tokens.{name}"] = self._tokens(name, size)
        self.inputs["chats.main"] = self._chats()
        self.inputs["imitations.main"] = self._imitations()
        self.inputs["attributes.main"] = self._attributes()
        self.inputs["triples.main"] = self._triples()
        self.inputs["labels"] = self._labels()

    def take(self, count: int) -> list[int]:
        """The next ids."""
        self.next += count
        assert self.next <= len(self.words)
        return list(range(self.next - count, self.next))

    def text(self, ids: list[int]) -> str:
        return "".join(self.words[n] for n in ids).replace("Ġ", " ")

    def stream(self, kind: str, source: str, **more: object) -> Stream:
        spec = (ROWS | LINES).get(kind)
        artifact_kind = type(spec).source if spec else "labels" if kind == EXAMPLES else "tokens"
        key = artifact_kind if kind == EXAMPLES else f"{artifact_kind}.{source}"
        return Stream.model_validate({"input": key, "kind": kind, "rows": spec, **more})

    def _made(self, name: str, files: dict[str, bytes], **summary: object) -> ArtifactInput:
        return open_input(artifact(self.folder / name, name.split("-")[0], files, **summary))

    def _tokens(self, name: str, size: int) -> ArtifactInput:
        files = {}
        for split, number in (("train", size), ("held_out", 200)):
            text: list[int] = []
            ends = []
            while len(text) < number:
                text += [*self.take(self.draw.randint(3, 140)), 0]
                ends.append(len(text))
            files[f"{split}.bin"] = np.array(text, dtype="<u2").tobytes()
            files[f"{split}.ends.npy"] = npy(ends)
        return self._made(f"tokens-{name}", files, vocab=len(self.words))

    def _chats(self) -> ArtifactInput:
        files = {}
        for split in ("train", "held_out"):
            rows = [self.take(self.draw.randint(4, 60)) for _ in range(12)]
            files[f"{split}.bin"] = np.concatenate(rows).astype("<u2").tobytes()
            files[f"{split}.learned.bin"] = np.ones(sum(map(len, rows)), dtype=np.uint8).tobytes()
            files[f"{split}.ends.npy"] = npy(np.cumsum([len(row) for row in rows]).tolist())
            self.lines.setdefault("chats.main", [set(row[:-1]) for row in rows])  # the last is predicted only
        return self._made("chats", files, vocab=len(self.words))

    def _imitations(self) -> ArtifactInput:
        lines = []
        for split in ("train",) * 15 + ("held_out",) * 5:
            ids, other = self.take(12), self.take(12)
            lines.append(
                {"split": split, "prefix": 1, "temperature": 1.0, "original": ids, "generated": other}
            )
            if split == "train":
                self.lines.setdefault("imitations.main", []).extend([set(other), set(ids)])
        return self._made("imitations", {"imitations.jsonl": jsonl(lines)})

    def _attributes(self) -> ArtifactInput:
        lines = []
        for split in ("train",) * 20 + ("held_out",) * 5:
            ids = self.take(10)
            about = {"genre": "prose", "topic": "", "keywords": [], "sentiment": "", "text": self.text(ids)}
            lines.append({**about, "split": split})
            if split == "train":
                self.lines.setdefault("attributes.main", []).append(set(ids))
        return self._made("attributes", {"attributes.jsonl": jsonl(lines)})

    def _triples(self) -> ArtifactInput:
        lines = []
        for split in ("train",) * 20 + ("held_out",) * 5:
            parts = [self.take(n) for n in (1, 2, 1, 8)]
            fields = dict(zip(("head", "relation", "tail", "text"), map(self.text, parts), strict=True))
            lines.append({**fields, "split": split})
            if split == "train":
                self.lines.setdefault("triples.main", []).append({one for part in parts for one in part})
        return self._made("triples", {"triples.jsonl": jsonl(lines)})

    def _labels(self) -> ArtifactInput:
        files, options = {}, [self.text(self.take(1)) for _ in range(2)]
        for split, count in (("train", 60), ("test", 5)):
            lines = []
            for n in range(count):
                ids = self.take(6)
                lines.append({"prompt": self.text(ids), "completion": options[n % 2], "options": options})
                if split == "train":
                    self.lines.setdefault("labels", []).append(set(ids))
            files[f"{split}.jsonl"] = jsonl([{**line, "group": str(n)} for n, line in enumerate(lines)])
        return self._made("labels", files)


def npy(ends: list[int]) -> bytes:
    buffer = BytesIO()
    np.save(buffer, np.array(ends, dtype="<i8"))
    return buffer.getvalue()


def jsonl(lines: list) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()
