"""Tokenizers of other makers: texts are what their own decoder writes, original bytes are counted."""

import functools
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from atelier.engine.config.data import TextEnds
from atelier.engine.config.error import DataError
from atelier.engine.data.ngram import gzip_bits
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.data.words import Spelling
from atelier.engine.evaluate import Exam, baselines
from atelier.engine.inference.scoring import read_held_out
from atelier.engine.io.artifact import open_input
from tests.engine.data.conftest import Workshop
from tests.engine.trainings import artifact

TEXTS = ["Read the naïve path, and return it again. \N{FISH} Größe"] * 4 + [
    "The lead says seven fathoms."
] * 4
TEXT = "read the path, return the lead again."


@functools.cache  # its trainer draws lots
def wordpiece() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # pyright: ignore[reportCallIssue]
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=90, special_tokens=["[UNK]", "</s>"])
    )
    return made


@functools.cache
def word_end() -> Tokenizer:
    made = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.BPEDecoder(suffix="</w>")
    how = {"special_tokens": ["<unk>", "</s>"], "end_of_word_suffix": "</w>"}
    made.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=90, **how))
    return made


def bytes_by(part: str) -> Tokenizer:
    """Byte-level, by a normalizer or a pre-tokenizer."""
    made = Tokenizer(models.BPE())
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if part == "normalizer":
        made.normalizer = normalizers.ByteLevel()
    else:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["</s>"], initial_alphabet=alphabet)
    made.train_from_iterator(TEXTS, trainer)
    return made


def words() -> Tokenizer:
    made = Tokenizer(models.WordLevel({"</s>": 0, "?": 1, "read": 2, "the": 3, "path": 4}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


MADE = {
    "WordPiece": wordpiece,
    "BPE with </w>": word_end,
    "bytes by a normalizer": lambda: bytes_by("normalizer"),
    "bytes": lambda: bytes_by("pre_tokenizer"),
    "words without a decoder": words,
}


def vocabulary_of(made: Tokenizer) -> Vocabulary:
    end = made.token_to_id("</s>")
    assert end is not None
    return Vocabulary.parse(made.to_str().encode(), "t", TextEnds(ends=(end,)))


@pytest.mark.parametrize("name", MADE)
def test_the_text_of_ids_is_that_of_the_tokenizers_own_decoder(name: str) -> None:
    made, vocabulary = MADE[name](), vocabulary_of(MADE[name]())
    ids = made.encode(TEXT, add_special_tokens=False).ids
    assert vocabulary.bytes_of(ids).decode() == made.decode(ids)
    for cut in range(len(ids)):
        whole = "".join(vocabulary.stream(ids[:cut], ids[cut:]))
        assert whole == vocabulary.behind(ids[:cut], ids[cut:])
        if "byte" not in name:
            assert made.decode(ids[:cut]) + whole == made.decode(ids)


def test_a_long_text_streams_as_it_is_written_whole() -> None:
    for name in ("WordPiece", "BPE with </w>", "words without a decoder"):
        vocabulary = vocabulary_of(MADE[name]())
        ids = vocabulary.encode(TEXT) * 150
        pieces = list(vocabulary.stream([], iter(ids)))
        assert len(pieces) > 300 and "".join(pieces) == vocabulary.behind([], ids)


@pytest.mark.parametrize("word", ["naïve", "đem", "\N{FISH}", "<0xC3>"])
@pytest.mark.parametrize("name", ["bytes", "bytes by a normalizer"])
def test_an_added_word_is_its_own_text(name: str, word: str) -> None:
    made = MADE[name]()
    made.add_tokens([AddedToken(word, special=False, normalized=False)])
    vocabulary = vocabulary_of(made)
    text = f"a {word} b{word}"
    ids = vocabulary.encode(text)
    assert vocabulary.bytes_of(ids).decode() == text and vocabulary.is_exact(text, ids)
    assert "".join(vocabulary.stream([], ids)) == text


def test_a_word_begins_where_the_tokenizer_says_so() -> None:
    for name, inner in (("WordPiece", "##"), ("BPE with </w>", "")):
        vocabulary = vocabulary_of(MADE[name]())
        spelled = Spelling(vocabulary)
        for number in range(2, vocabulary.size):
            token = vocabulary.token(number)
            bare = token.removeprefix(inner) if inner else token.removesuffix("</w>")
            assert vocabulary.spellings()[number].strip() == bare.encode()
            if inner and token.isalnum():
                assert spelled.is_spaced_V[number]


def test_compressors_read_the_text_as_it_was_where_a_tokenizer_changes_it(
    workshop: Workshop, tmp_path: Path
) -> None:
    texts = [f"Poem {n}: The SEA is {n * 7} Fathoms deep, Größe {n}." for n in range(40)]
    corpus = workshop.corpus(texts, held_out=0.4)
    held_out = [
        line["text"] for line in workshop.lines(corpus, "documents.jsonl") if line["split"] == "held_out"
    ]
    vocabulary, path = vocabulary_of(wordpiece()), tmp_path / "tokenizer.json"
    path.write_text(wordpiece().to_str())
    tokenizer = workshop.run("learn_tokenizer", {"tokenizer": {"load": str(path)}}, {}, "tokenizer")
    tokens = workshop.tokens(corpus, tokenizer)
    assert dict(tokens.record.summary)["held_out_changed"] == len(held_out)
    raw = "".join(held_out).encode()
    assert (Path(tokens.url) / "held_out.txt").read_bytes() == raw
    text = read_held_out(tokens, vocabulary, tmp_path, 10**6)
    assert text.num_bytes == len(raw) and text.original == raw
    cut = read_held_out(tokens, vocabulary, tmp_path, 5)
    assert cut.original is not None and held_out[0].encode().startswith(cut.original)
    assert (
        cut.num_bytes == len(cut.original)
        and vocabulary.encode(cut.original.decode()) == cut.tokens_N.tolist()
    )
    exam = Exam(sequence=8, prompt="", vocabulary=vocabulary, text=text, tokens="", examples={}, heads=None)
    assert baselines(exam, text, tokens, tmp_path)["gzip"] == gzip_bits(raw)


def test_bytes_that_older_tokens_do_not_hold_are_not_counted(workshop: Workshop, tmp_path: Path) -> None:
    corpus = workshop.corpus(
        [f"Poem {n}: The SEA is {n * 7} Fathoms deep, Größe {n}." for n in range(40)], held_out=0.4
    )
    vocabulary, path = vocabulary_of(wordpiece()), tmp_path / "tokenizer.json"
    path.write_text(wordpiece().to_str())
    tokenizer = workshop.run("learn_tokenizer", {"tokenizer": {"load": str(path)}}, {}, "tokenizer")
    now = workshop.tokens(corpus, tokenizer)
    files = {name: (Path(now.url) / name).read_bytes() for name in now.names() if name != "held_out.txt"}
    older = open_input(artifact(tmp_path / "older", "tokens", files, **now.record.summary))
    text = read_held_out(older, vocabulary, tmp_path, 10**6)
    assert text.num_bytes == read_held_out(now, vocabulary, tmp_path, 10**6).num_bytes
    with pytest.raises(DataError, match=r"older: .*bytes of held-out text.* held_out.txt is missing.*; move"):
        text.raw(vocabulary)
    with pytest.raises(DataError, match=r"held_out\.txt is missing"):
        read_held_out(older, vocabulary, tmp_path, 5)
