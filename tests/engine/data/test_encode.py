import re
from pathlib import Path

import numpy as np
import pytest

from atelier.engine.data.tokens import token_dtype
from atelier.engine.data.vocabulary import Vocabulary
from tests.checkout import TOP


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_each_document_stands_in_the_file_followed_by_the_end_token_and_decodes_to_its_text(
    workshop, poems, split
):
    corpus = workshop.corpus([*poems, "tricky <|end|> text"], held_out=0.4)
    tokenizer = workshop.tokenizer(corpus)
    tokens = workshop.tokens(corpus, tokenizer)
    vocabulary = Vocabulary.read(Path(tokenizer.url) / "tokenizer.json")
    ids = np.fromfile(Path(tokens.url) / f"{split}.bin", dtype="<u2")
    ends = np.load(Path(tokens.url) / f"{split}.ends.npy")
    texts = [line["text"] for line in workshop.lines(corpus, "documents.jsonl") if line["split"] == split]
    assert ends.dtype == np.int64 and ends[-1] == len(ids) == tokens.record.summary[f"{split}_tokens"]
    parts = np.split(ids, ends)[:-1]
    assert [vocabulary.decode(part[:-1].tolist()) for part in parts] == texts
    assert all(part[-1] == vocabulary.end_id and vocabulary.end_id not in part[:-1] for part in parts)


def test_the_lines_of_the_documentation_read_token_files(workshop, poems, monkeypatch):
    page = (TOP / "docs" / "reference" / "store.md").read_text()
    [lines] = re.findall(r"(?ms)^```python\n(.*?)^```$", page)
    assert len(lines.split("\n\n")) == 2 and lines.count("\n") == 4
    corpus = workshop.corpus(poems)
    tokenizer = workshop.tokenizer(corpus)
    tokens = workshop.tokens(corpus, tokenizer)
    vocabulary = Vocabulary.read(Path(tokenizer.url) / "tokenizer.json")
    monkeypatch.chdir(tokens.url)
    found: dict[str, list[np.ndarray]] = {}
    exec(lines, found)
    texts = [line["text"] for line in workshop.lines(corpus, "documents.jsonl") if line["split"] == "train"]
    assert [vocabulary.decode(ids[:-1].tolist()) for ids in found["documents"]] == texts
    assert {int(ids[-1]) for ids in found["documents"]} == {vocabulary.end_id}


def test_held_out_bytes_are_the_utf8_bytes_of_each_document(workshop, poems):
    corpus = workshop.corpus(poems)
    tokens = workshop.tokens(corpus, workshop.tokenizer(corpus))
    found = np.load(Path(tokens.url) / "held_out.bytes.npy")
    lines = workshop.lines(corpus, "documents.jsonl")
    assert found.tolist() == [len(line["text"].encode()) for line in lines if line["split"] == "held_out"]
    summary = tokens.record.summary
    assert summary["held_out_bytes"] == found.sum()
    assert (summary["dtype"], summary["vocab"]) == ("uint16", 300)
    assert summary["train_documents"] + summary["held_out_documents"] == 40


def test_batches_of_documents_do_not_change_the_files(workshop, poems, monkeypatch):
    corpus = workshop.corpus(poems)
    tokenizer = workshop.tokenizer(corpus)
    whole = workshop.tokens(corpus, tokenizer)
    monkeypatch.setattr("atelier.engine.data.encode.BATCH_BYTES", 100)
    assert workshop.tokens(corpus, tokenizer).record.files == whole.record.files


def test_a_token_takes_two_bytes_up_to_65536_ids_and_four_above():
    assert token_dtype(65536) == "<u2"
    assert token_dtype(65537) == "<u4"
