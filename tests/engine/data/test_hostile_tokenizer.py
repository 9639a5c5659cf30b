"""A foreign tokenizer.json loads, or gives one line of error, in bounded time and memory."""

import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import AtelierError, DataError
from atelier.engine.data import tokenizer_check
from atelier.engine.data.vocabulary import Vocabulary
from tests.engine.data.conftest import Workshop

MODEL: dict[str, Any] = {"type": "BPE", "vocab": {"a": 0, "b": 1, "</s>": 2}, "merges": []}
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
REGEX = {"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * 10}
WORD = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}


def made(**parts: Any) -> dict[str, Any]:
    return {"version": "1.0", "added_tokens": [], "model": MODEL} | parts


def vocab(**ids: Any) -> dict[str, Any]:
    return made(model={**MODEL, "vocab": MODEL["vocab"] | ids})


def replaced(*pairs: tuple[str, str]) -> dict[str, Any]:
    rules = [{"type": "Replace", "pattern": {"String": one}, "content": other} for one, other in pairs]
    return {"type": "Sequence", "normalizers": rules}


def split(pattern: str) -> dict[str, Any]:
    return made(pre_tokenizer={**SPLIT, "pattern": {"Regex": pattern}})


HOSTILE: dict[str, tuple[Any, str]] = {
    "a huge id": (vocab(c=4_000_000_000), "model.vocab: the token 'c' has the id 4000000000; ids are 0 to"),
    "an id beyond any integer": (vocab(c=10**400), "model.vocab: the token 'c' has the id 1000"),
    "a negative id": (vocab(c=-1), "model.vocab: the token 'c' has the id -1"),
    "an id of text": (vocab(c="3"), "model.vocab: the token 'c' has the id 3"),
    "an id that is true": (vocab(c=True), "the id True"),
    "an id twice": (vocab(c=1), "the tokens 'b' and 'c' have the same id, 1"),
    "a huge added id": (
        made(added_tokens=[{**WORD, "id": 4_000_000_000, "content": "x"}]),
        "added_tokens: the token 'x' has the id 4000000000",
    ),
    "added words of another type": (made(added_tokens={"x": 7}), "added_tokens: is not a list of objects"),
    "a token of megabytes": (vocab(**{"x" * (1 << 21): 3}), "is not a text of at most 65536 characters"),
    "rules that replace, one after another": (
        made(normalizer=replaced(*[("a", "aaaaaaaaaa")] * 10)),
        "normalizer: its rules make a text up to 1e+10 times as long",
    ),
    "patterns that replace, one after another": (
        made(normalizer={"type": "Sequence", "normalizers": [REGEX] * 9}),
        "normalizer: its rules make a text up to 1e+09 times as long",
    ),
    "rules that write again": (
        made(decoder={"type": "Sequence", "decoders": replaced(*[("a", "a" * 99)] * 5)["normalizers"]}),
        "decoder: its rules make a text up to 9.51e+09 times as long",
    ),
    "a pattern that backtracks": (split("(a+)+$"), "retry-limit-in-match over"),
    "a pattern that backtracks on words": (split(r"(\w+\s?)*:"), "retry-limit-in-match over"),
    "a pattern that is none": (split("(a"), r"not a tokenizer.json"),
    "lots that are drawn": (made(model={**MODEL, "dropout": 0.5}), "model.dropout: is 0.5"),
    "a list": ([], "it has no model"),
    "no model": ({"version": "1.0"}, "it has no model"),
    "an unknown model": (made(model={"type": "Nothing", "vocab": {}}), "not a tokenizer.json"),
    "a model of models": (made(model={"vocab": [[[["a"]]]], "type": "Unigram"}), "is not a text of at most"),
    "no end": (made(model={**MODEL, "vocab": {"a": 0}}), "has no end token"),
}  # fmt: skip
RAW: dict[str, tuple[bytes, str]] = {
    "depth": (b'{"model": ' + b"[" * 200_000, "not a tokenizer.json (maximum recursion depth"),
    "half a file": (json.dumps(made()).encode()[:-9], "not a tokenizer.json ("),
    "no text": (b"\xff\xfe{}", "not a tokenizer.json ("),
    "nothing": (b"", "not a tokenizer.json ("),
}


def test_many_rules_of_which_none_reads_what_another_wrote_are_taken() -> None:
    letters = [(letter, f"<{letter.upper()}>") for letter in "acdefghijklmnop"]
    tokenizer_check.checked(json.dumps(made(normalizer=replaced(*letters))).encode(), "t", None)


def refusal(data: bytes, check: Callable[..., object] = tokenizer_check.checked) -> str:
    """What is said of a file, here or by the process that is started for it."""
    with pytest.raises(AtelierError) as caught:
        check(data, "t", None)
    [line] = str(caught.value).splitlines()
    return line


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_tokenizer_is_refused_in_one_line(what: str) -> None:
    document, says = HOSTILE[what]
    assert says in refusal(json.dumps(document).encode())


def test_a_file_is_refused_by_a_process_as_it_is_here() -> None:
    for document in (HOSTILE["a huge id"][0], HOSTILE["a pattern that backtracks"][0]):
        data = json.dumps(document).encode()
        line = refusal(data, tokenizer_check.check_tokenizer)
        assert line.startswith("t: ") and refusal(data) in line
        assert line.endswith("; give the tokenizer.json that the model was published with")


@pytest.mark.parametrize("what", RAW)
def test_what_is_no_json_is_refused_in_one_line(what: str) -> None:
    data, says = RAW[what]
    assert says in refusal(data)


def test_what_takes_too_much_memory_or_time_ends_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizer_check, "MEMORY", 256 << 20)
    monkeypatch.setattr(tokenizer_check, "CPU_S", 0.4)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = {"type": "Replace", "pattern": {"Regex": "a"}, "content": "a" * 60}
    texts = [
        made(model={**MODEL, "vocab": {f"{n}": n for n in range(400_000)} | {"</s>": 400_001}}),
        made(
            normalizer={
                "type": "Sequence",
                "normalizers": [{"type": "NFKD"}, grown, *[{"type": "NFC"}] * 9999],
            }
        ),
    ]
    for document in texts:
        began = time.monotonic()
        line = refusal(json.dumps(document).encode(), tokenizer_check.check_tokenizer)
        assert "MiB of memory" in line or "seconds of processor time" in line
        assert time.monotonic() - began < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # KiB


def test_a_token_that_only_looks_like_a_byte_is_text(workshop: Workshop, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(
        json.dumps(
            vocab(**{"<0xZZ>": 3, "<0x41>": 4})
            | {"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}}
        )
    )
    vocabulary = Vocabulary.read(path)
    assert [vocabulary.bytes_of([number]) for number in (3, 4)] == [b"<0xZZ>", b"A"]
    config = {"tokenizer": {"load": str(path)}, "files": []}
    assert workshop.run("learn_tokenizer", config, {}, "tokenizer").record.summary["vocab"] == 5


def test_a_panic_of_the_library_is_one_line_wherever_a_text_is_encoded() -> None:
    vocabulary = Vocabulary.parse(json.dumps(split("(a+)+$")).encode(), "t")
    text = "a" * 40 + "!"
    for encode in (
        vocabulary.encode,
        lambda text: vocabulary.encode_all([text]),
        lambda t: vocabulary.begun(t, 1),
    ):
        with pytest.raises(DataError, match=r"the tokenizer cannot encode .*retry-limit-in-match over"):
            encode(text)


def test_a_tokenizer_that_is_loaded_is_checked_before_it_is_read(workshop: Workshop, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(vocab(c=4_000_000_000)))
    config = {"tokenizer": {"load": str(path)}, "files": []}
    with pytest.raises(AtelierError, match="has the id 4000000000"):
        workshop.run("learn_tokenizer", config, {}, "tokenizer")
