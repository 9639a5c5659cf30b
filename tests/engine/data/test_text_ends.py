"""Begin and end tokens of texts: as transformers adds them, and as the model ends a text."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from atelier.engine.config.data import AdoptedEnds, TextEnds
from atelier.engine.config.data import Tokenizer as Tokens
from atelier.engine.config.error import ConfigError
from atelier.engine.data.text_ends import text_ends
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.foreign_folder import texts_of

transformers = pytest.importorskip("transformers")

NAMES = ("<s>", "</s>", "<|im_end|>", "<|endoftext|>")


def tokenizer_of(*, own: bool = False, names: tuple[str, ...] = NAMES) -> Tokenizer:
    """Bytes and some special tokens; `own`: it puts <s> before a text by itself."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={token: n for n, token in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    made.add_special_tokens(list(names))
    if own:
        begin = ("<s>", made.token_to_id("<s>"))
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[begin])  # pyright: ignore[reportAttributeAccessIssue]
    return made


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("said", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
def test_texts_begin_as_transformers_begins_them(tmp_path: Path, own: bool, said: dict[str, bool]) -> None:
    tokenizer = tokenizer_of(own=own)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", **said
    ).save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)("x").input_ids
    documents = [{"eos_token_id": 1}, {}, {"bos_token": "<s>", **said}]
    found = text_ends(texts_of(documents), tokenizer, "here")
    vocabulary = Vocabulary(tokenizer, found)
    assert [*vocabulary.before, *vocabulary.encode("x")] == theirs


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        (257, {}, ("</s>",)),
        ([257, 258], {}, ("</s>", "<|im_end|>")),
        (258, {"eos_token_id": [258, 259]}, ("<|endoftext|>", "<|im_end|>")),  # documents end as they did
        (258, {}, ("<|im_end|>",)),
        (None, {}, ("<|endoftext|>",)),
    ],
)
def test_a_text_ends_with_any_token_that_its_model_ends_it_with(
    config: Any, generation: dict[str, Any], ends: tuple[str, ...]
) -> None:
    tokenizer = tokenizer_of()
    found = text_ends(texts_of([{"eos_token_id": config}, generation, {}]), tokenizer, "here")
    assert found == TextEnds(ends=tuple(tokenizer.token_to_id(name) for name in ends))


def test_what_the_tokenizer_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="here: eos_token_id: 900, but the tokenizer has no such id"):
        text_ends(AdoptedEnds(ends=(900,)), tokenizer_of(), "here")
    with pytest.raises(ConfigError, match="here: bos_token: '<b>', which the tokenizer lacks"):
        text_ends(AdoptedEnds(begin="<b>", ends=(257,)), tokenizer_of(), "here")
    with pytest.raises(ConfigError, match="the tokenizer has no end-of-text token"):
        text_ends(AdoptedEnds(), tokenizer_of(names=("<s>",)), "here")
    two = tokenizer_of()
    pairs = [(name, two.token_to_id(name)) for name in NAMES[:2]]
    two.post_processor = processors.TemplateProcessing(single="<s> </s> $A", special_tokens=pairs)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigError, match="puts 2 tokens before every text"):
        text_ends(AdoptedEnds(ends=(257,)), two, "here")


def test_documents_begin_and_end_so_in_tokens(workshop: Any, poems: Any, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer_of(own=True).to_str())
    spec = Tokens(load=str(tmp_path / "tokenizer.json")).model_dump(mode="json")
    texts = AdoptedEnds(ends=(258, 259)).model_dump(mode="json")
    tokenizer = workshop.run("learn_tokenizer", {"tokenizer": spec, "texts": texts}, {}, "tokenizer")
    made = workshop.tokens(workshop.corpus(poems), tokenizer)
    ids_N = np.fromfile(made.file("train.bin", tmp_path), "<u2")
    ends = np.load(made.file("train.ends.npy", tmp_path))
    assert (ids_N[[0, *ends[:-1]]] == 256).all() and (ids_N[ends - 1] == 259).all()
    assert (ids_N == 256).sum() == (ids_N == 259).sum() == len(ends) > 1


@pytest.mark.parametrize(
    ("config", "pad", "start"),
    [
        ({"decoder_start_token_id": 0, "pad_token_id": 0}, "[PAD]", 0),
        ({"pad_token_id": 3}, {"content": "[PAD]"}, 3),
        ({}, None, 0),
        ({"decoder_start_token_id": 5, "pad_token_id": 0}, "<pad>", 5),
        ({"decoder_start_token_id": 0, "pad_token_id": 0}, "<pad>", None),  # found by its name, as ever
        ({"pad_token_id": 0, "is_encoder_decoder": False}, "[PAD]", None),
    ],
)
def test_a_decoder_begins_with_the_padding_of_its_model_whatever_its_name(
    config: dict[str, Any], pad: Any, start: int | None
) -> None:
    documents = [{"is_encoder_decoder": True, "eos_token_id": 257, **config}, {}, {"pad_token": pad}]
    texts, tokenizer = texts_of(documents), tokenizer_of()
    assert texts.start == start and ("start" in texts.told()) == (start is not None)
    found = text_ends(texts, tokenizer, "here")
    assert Vocabulary(tokenizer, found).start_id == (found.ends[0] if start is None else start)


def test_a_decoder_that_begins_with_an_id_of_no_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="decoder_start_token_id: 900, but the tokenizer has no such id"):
        text_ends(AdoptedEnds(ends=(257,), start=900), tokenizer_of(), "here")
