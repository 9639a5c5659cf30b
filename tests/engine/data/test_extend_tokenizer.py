"""A tokenizer that grows keeps its ids, and cuts its old text as before."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Encoder
from tokenizers import models

from atelier.engine.config.data import Tokenizer
from atelier.engine.config.error import ConfigError
from atelier.engine.data.extend_tokenizer import untaught
from atelier.engine.data.learn_tokenizer import learn_tokenizer
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput, open_input
from atelier.engine.io.process import Progress
from tests.engine.trainings import artifact

PROSE = [f"The {n}th of the small boats went over the deep sea before the storm. " * 4 for n in range(60)]
CODE = [f"def read_{n}(self, path):\n    return self.open(path, {n})\n" * 4 for n in range(60)]


def corpus(folder: Path, name: str, texts: list[str]) -> ArtifactInput:
    lines = [
        {"id": str(n), "text": text, "split": "held_out" if n % 5 == 0 else "train", "group": str(n)}
        for n, text in enumerate(texts)
    ]
    raw = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return open_input(artifact(folder / name, "corpus", {"documents.jsonl": raw}, documents=len(lines)))


def learned(
    folder: Path,
    name: str,
    spec: Tokenizer,
    of: ArtifactInput,
    *,
    extends: ArtifactInput | None = None,
    before: list[ArtifactInput] | None = None,
) -> tuple[ArtifactInput, dict[str, Any]]:
    payload = folder / f"made-{name}"
    output = ArtifactOutput(str(payload))
    scratch, progress = folder / "scratch", Progress(io.StringIO())
    summary: dict[str, Any] = {
        **learn_tokenizer(spec, [of], [], output, scratch, progress, extends=extends, before=before)
    }
    files = {path.name: path.read_bytes() for path in payload.iterdir()}
    return open_input(artifact(folder / name, "tokenizer", files, **summary)), summary


def test_ids_stay_old_text_is_cut_alike_and_new_text_in_fewer_tokens(tmp_path: Path) -> None:
    prose, code = corpus(tmp_path, "prose", PROSE), corpus(tmp_path, "code", CODE)
    first, _ = learned(tmp_path, "first", Tokenizer(vocab=330), prose)
    spec = Tokenizer(vocab=400, specials=("<|s0|>",))
    second, summary = learned(tmp_path, "second", spec, code, extends=first, before=[prose])
    old, new = (Vocabulary.of(each, tmp_path / "scratch") for each in (first, second))
    assert [new.token(i) for i in range(old.size)] == [old.token(i) for i in range(old.size)]
    assert old.size < new.size <= 400 and new.special("<|s0|>") == old.size
    assert summary["tokens_added"] == new.size - old.size
    assert len(new.encode(CODE[0])) < 0.7 * len(old.encode(CODE[0]))
    change = summary["cut_before"]
    assert change["documents"] == 12 and change["tokens_after"] <= change["tokens_before"]
    same = [text for text in PROSE if old.encode(text) == new.encode(text)]
    assert change["changed"] == sum(1 for n, text in enumerate(PROSE) if n % 5 == 0 and text not in same)
    for text in [*PROSE, *CODE]:
        assert new.bytes_of(new.encode(text)).decode() == text
    again, _ = learned(tmp_path, "again", spec, code, extends=first)
    assert again.record.fingerprint == second.record.fingerprint


def test_merges_of_the_old_text_come_first(tmp_path: Path) -> None:
    """A new token that would cut old words otherwise is met after the old merges."""
    prose, code = (
        corpus(tmp_path, "prose", PROSE),
        corpus(tmp_path, "code", [t.replace("self", "these") for t in CODE]),
    )
    first, _ = learned(tmp_path, "first", Tokenizer(vocab=400), prose)
    second, summary = learned(tmp_path, "second", Tokenizer(vocab=500), code, extends=first, before=[prose])
    merges = [
        json.loads(one.file("tokenizer.json", tmp_path / "scratch").read_bytes())["model"]["merges"]
        for one in (first, second)
    ]
    assert merges[1][: len(merges[0])] == merges[0] and len(merges[1]) > len(merges[0])
    assert summary["cut_before"]["tokens_after"] <= summary["cut_before"]["tokens_before"]


def test_what_cannot_grow_is_refused(tmp_path: Path) -> None:
    prose = corpus(tmp_path, "prose", PROSE)
    first, _ = learned(tmp_path, "first", Tokenizer(vocab=330), prose)
    with pytest.raises(
        ConfigError, match=r"tokenizer.vocab: 310, but tokenizer.extend has 330 ids; give more"
    ):
        learned(tmp_path, "small", Tokenizer(vocab=310), prose, extends=first)
    words = Encoder(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(ConfigError, match="is not byte-level BPE but WordLevel"):
        untaught(words.to_str().encode(), "tokenizer.extend")
    with pytest.raises(ValueError, match=r"tokenizer.model and tokenizer.extend exclude each other"):
        Tokenizer(model="a", extend="b")


def test_special_tokens_behind_the_vocabulary_keep_their_ids(tmp_path: Path) -> None:
    """As in tokenizers whose special tokens are no entries of their BPE."""
    prose, code = corpus(tmp_path, "prose", PROSE), corpus(tmp_path, "code", CODE)
    first, _ = learned(tmp_path, "first", Tokenizer(vocab=330), prose)
    loaded = Encoder.from_str(first.file("tokenizer.json", tmp_path / "scratch").read_text())
    loaded.add_special_tokens(["<|user|>", "<|turn|>"])
    files = {"tokenizer.json": loaded.to_str().encode()}
    chat = open_input(artifact(tmp_path / "chat", "tokenizer", files))
    second, _ = learned(tmp_path, "second", Tokenizer(vocab=400), code, extends=chat)
    old, new = (Vocabulary.of(each, tmp_path / "scratch") for each in (chat, second))
    assert old.special("<|turn|>") == new.special("<|turn|>") == old.size - 1 == 331
    assert [new.token(i) for i in range(old.size)] == [old.token(i) for i in range(old.size)]
