import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Encoder
from tokenizers import models, pre_tokenizers, trainers

from atelier.engine.config.base import parse
from atelier.engine.config.data import Tokenizer
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.data.vocabulary import Vocabulary


def test_the_vocabulary_has_the_size_asked_for_and_the_end_token_is_id_0_and_padding_1(workshop, poems):
    tokenizer = workshop.tokenizer(workshop.corpus(poems), vocab=320)
    vocabulary = Vocabulary.read(Path(tokenizer.url) / "tokenizer.json")
    assert (vocabulary.size, vocabulary.end_id, vocabulary.pad_id) == (320, 0, 1)
    assert tokenizer.record.summary["vocab"] == 320
    assert tokenizer.record.summary["bytes_per_token"] > 1


def test_any_text_survives_encoding_also_bytes_never_learnt_and_the_text_of_a_special_token(workshop, poems):
    vocabulary = Vocabulary.read(Path(workshop.tokenizer(workshop.corpus(poems)).url) / "tokenizer.json")
    for text in ("深い海", "a<|end|>b<|pad|>", "\x00\t ", "🎈\n\n"):
        ids = vocabulary.encode(text)
        assert vocabulary.decode(ids) == text
        assert vocabulary.bytes_of(ids) == text.encode()
        assert b"".join(vocabulary.spellings()[each] for each in ids) == text.encode()
        assert not {0, 1} & set(ids)
        assert vocabulary.encode_all([text]) == [ids]
    assert vocabulary.spellings()[:2] == [b"", b""]


NAMES = ("<|mask|>", "<|cls|>", "<|sep|>")


def test_special_tokens_come_after_end_and_padding_and_no_text_is_cut_into_them(workshop, poems):
    corpus = workshop.corpus(poems)
    vocabulary = Vocabulary.read(
        Path(workshop.tokenizer(corpus, vocab=320, specials=NAMES).url) / "tokenizer.json"
    )
    assert (vocabulary.end_id, vocabulary.pad_id, *map(vocabulary.special, NAMES)) == (0, 1, 2, 3, 4)
    assert vocabulary.size == 320
    assert not {2, 3, 4} & set(vocabulary.encode("a<|mask|>b <|cls|><|sep|>"))
    assert vocabulary.bytes_of([2, 3, 4]) == b""


def test_a_special_token_that_is_not_there_is_named_with_the_setting_that_adds_it(workshop, poems):
    vocabulary = Vocabulary.read(Path(workshop.tokenizer(workshop.corpus(poems)).url) / "tokenizer.json")
    with pytest.raises(ConfigError, match=r"tokenizer.specials: .*no <\|mask\|>.*add <\|mask\|> to"):
        vocabulary.special("<|mask|>")


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"specials": ["<|end|>"]}, "holds a name twice"),
        ({"specials": ["<|a|>", "<|a|>"]}, "holds a name twice"),
        ({"vocab": 300, "specials": [f"<|{n}|>" for n in range(43)]}, "give 301 or more"),
    ],
)
def test_special_tokens_that_clash_or_do_not_fit_are_refused(document, problem):
    with pytest.raises(ConfigError, match=problem):
        parse(Tokenizer, document, "tokenizer")


def test_the_held_out_split_teaches_the_tokenizer_nothing(workshop, poems):
    marked = [poem.replace("Poem", "zqzqzqzq") for poem in poems]
    corpus = workshop.corpus(poems)
    lines = workshop.lines(corpus, "documents.jsonl")
    mixed = [
        line | {"text": line["text"].replace("Poem", "zqzqzqzq")} if line["split"] == "held_out" else line
        for line in lines
    ]
    plain = workshop.tokenizer(corpus, vocab=400)
    target = Path(corpus.url)
    (target / "documents.jsonl").write_text(
        "".join(json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n" for line in mixed)
    )
    _reseal(workshop, target)
    changed = workshop.tokenizer(workshop.publish(target, "corpus"), vocab=400)
    learnt = workshop.tokenizer(workshop.corpus(marked), vocab=400)
    assert changed.entry("tokenizer.json").sha256 == plain.entry("tokenizer.json").sha256
    assert learnt.entry("tokenizer.json").sha256 != plain.entry("tokenizer.json").sha256


def _reseal(workshop, target):
    from atelier.engine.io.storage import digest_of

    body = json.loads((target / "body.json").read_text())
    body["files"] = [digest_of(str(target / "documents.jsonl")).model_dump()]
    (target / "body.json").write_text(json.dumps(body))


def test_learning_gives_the_same_bytes_whatever_the_threads(workshop, poems, tmp_path):
    corpus = workshop.corpus([f"{poem} {n * 31 % 97} {poem[::-1]}" for n, poem in enumerate(poems * 5)])
    found = set()
    for n, threads in enumerate(("1", "1", "2", "4")):
        run = {
            "schema": 1, "task": "learn_tokenizer", "version": 1, "config": {"tokenizer": {"vocab": 600}},
            "inputs": {"corpus_0": corpus.url}, "outputs": {"tokenizer": str(tmp_path / f"t{n}")},
            "scratch": str(tmp_path / "scratch"),
        }  # fmt: skip
        (tmp_path / "run.json").write_text(json.dumps(run))
        environment = dict(os.environ, RAYON_NUM_THREADS=threads, PYTHONHASHSEED=str(n))
        subprocess.run(
            [sys.executable, "-m", "atelier.engine.prepare", str(tmp_path / "run.json")],
            check=True,
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        found.add((tmp_path / f"t{n}" / "tokenizer.json").read_bytes())
    assert len(found) == 1


def test_several_corpora_are_learnt_together(workshop, poems):
    one, two = (
        workshop.corpus(poems[:20]),
        workshop.corpus(["xylophone " * 5, "xylophone " * 6, "xylophone " * 7]),
    )
    both = Vocabulary.read(Path(workshop.tokenizer(one, two, vocab=400).url) / "tokenizer.json")
    alone = Vocabulary.read(Path(workshop.tokenizer(one, vocab=400).url) / "tokenizer.json")
    assert len(both.encode(" xylophone")) < len(alone.encode(" xylophone"))


def _given(workshop, path, files=()):
    config = {"tokenizer": Tokenizer(load=str(path)).model_dump(), "files": list(files)}
    return workshop.run("learn_tokenizer", config, {}, "tokenizer")


def test_a_given_tokenizer_is_taken_byte_for_byte_and_checked_against_its_plan(workshop, poems, tmp_path):
    learnt = Path(workshop.tokenizer(workshop.corpus(poems)).url) / "tokenizer.json"
    digest = workshop.tokenizer(workshop.corpus(poems)).entry("tokenizer.json").sha256
    taken = _given(workshop, learnt, [[str(learnt), digest]])
    assert (Path(taken.url) / "tokenizer.json").read_bytes() == learnt.read_bytes()
    with pytest.raises(DataError, match="changed since"):
        _given(workshop, learnt, [[str(learnt), "0" * 64]])


def test_a_foreign_tokenizer_ends_documents_by_its_own_token_and_its_highest_id_counts(tmp_path):
    encoder = Encoder(models.WordLevel({"</s>": 2, "▁sea": 9, "<0xE2>": 4, "<unk>": 0}, unk_token="<unk>"))
    encoder.pre_tokenizer = pre_tokenizers.Metaspace()
    encoder.add_special_tokens(["</s>"])
    vocabulary = Vocabulary.parse(encoder.to_str().encode(), "x")
    assert (vocabulary.end_id, vocabulary.pad_id, vocabulary.size) == (2, 2, 10)
    assert vocabulary.bytes_of([9, 4, 2]) == b" sea\xe2"


def test_a_tokenizer_without_an_end_token_or_that_is_none_is_refused(workshop, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(Encoder(models.WordLevel({"a": 0}, unk_token="a")).to_str())
    with pytest.raises(
        ConfigError, match=r"has no end token among <\|end\|>, <\|endoftext\|>, <\|end_of_text\|>, </s>"
    ):
        _given(workshop, path)
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r"not a tokenizer\.json"):
        _given(workshop, path)
    with pytest.raises(ConfigError, match=r"tokenizer\.load: .*cannot be read"):
        _given(workshop, tmp_path / "nothing.json")
    with pytest.raises(ConfigError, match="neither a corpus to learn from nor a file to load"):
        workshop.tokenizer()


def test_an_endless_word_is_learned_in_parts_in_time_as_its_length(workshop, poems):
    draw = random.Random(2)
    word = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=300_000))
    corpus = workshop.corpus([*poems, word, f"{word}!", " " * 300_000 + "x"])
    begin = time.process_time()
    tokenizer = workshop.tokenizer(corpus, vocab=2000)
    assert time.process_time() - begin < 8  # without parts 30 s
    lines = workshop.lines(corpus, "documents.jsonl")
    learned = [line["text"] for line in lines if line["split"] == "train"]
    cut = sum(len(re.findall(r"\w{1025,}|\s{1025,}", text)) for text in learned)
    assert tokenizer.record.summary["cut_pieces"] == cut > 0
    assert "have more than 1024 bytes" in workshop.said
    vocabulary = Vocabulary.of(tokenizer, workshop.folder / "scratch")
    assert max(len(vocabulary.bytes_of([n])) for n in range(vocabulary.size)) <= 1024
    assert vocabulary.decode(vocabulary.encode(word)) == word


def test_short_pieces_give_the_tokenizer_that_the_library_alone_learns(workshop, poems):
    corpus = workshop.corpus([*poems, "z" * 1000 + " é" * 400, "\n" * 1000])
    found = json.loads((Path(workshop.tokenizer(corpus, vocab=400).url) / "tokenizer.json").read_text())
    plain = Encoder(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>", "<|pad|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    lines = workshop.lines(corpus, "documents.jsonl")
    plain.train_from_iterator([line["text"] for line in lines if line["split"] == "train"], trainer)
    known = json.loads(plain.to_str())
    assert found["model"] == known["model"] and found["pre_tokenizer"] == known["pre_tokenizer"]
