"""Extend a tokenizer: its ids and merges stay, tokens learned on other text follow."""

import json
from typing import Any, NamedTuple

from tokenizers import Tokenizer as Encoder
from tokenizers import decoders, models, trainers

from atelier.engine.config.error import ConfigError
from atelier.engine.data.vocabulary import Vocabulary, tokenizer_of


class Change(NamedTuple):
    """Effect on the old text's tokens."""

    documents: int
    changed: int  # documents whose ids changed
    tokens_before: int
    tokens_after: int


def untaught(old: bytes, place: str) -> Encoder:
    """An empty BPE with the old tokenizer's word splitting. Raises ConfigError if it is not byte-level
    BPE.
    """
    document, known = json.loads(old), tokenizer_of(old, place)
    if document["model"].get("type") != "BPE" or "ByteLevel" not in json.dumps(document.get("pre_tokenizer")):
        kind = document["model"].get("type")
        raise ConfigError(place, f"is not byte-level BPE but {kind}", "leave extend out to learn a new one")
    fresh = Encoder(models.BPE())
    fresh.pre_tokenizer, fresh.decoder = known.pre_tokenizer, decoders.ByteLevel()
    if known.normalizer is not None:
        fresh.normalizer = known.normalizer
    return fresh


def extended(old: bytes, learned: bytes, specials: tuple[str, ...], vocab: int, place: str) -> bytes:
    """The old tokenizer.json plus learned tokens that it lacks, in order, up to `vocab` ids, and special
    tokens that it lacks. Old merges come first. Raises ConfigError if there is no room.
    """
    document, other = json.loads(old), json.loads(learned)["model"]
    ids: dict[str, int] = document["model"]["vocab"]
    added = {token["content"]: token["id"] for token in document.get("added_tokens") or []}
    first = 1 + max([*ids.values(), *added.values()])
    if vocab <= first:
        raise ConfigError("tokenizer.vocab", f"{vocab}, but {place} has {first} ids", "give more")
    ids |= added  # otherwise the library would renumber them after the longer vocabulary
    known, number = set(ids), first
    for name in specials:
        if name not in known:
            document["added_tokens"] = [*(document.get("added_tokens") or []), _special(name, number)]
            ids[name] = number
            known.add(name)
            number += 1
    special = {token["content"] for token in json.loads(learned).get("added_tokens") or []}
    for token in sorted(other["vocab"], key=lambda each: other["vocab"][each]):
        if number < vocab and token not in known and token not in special:
            ids[token] = number
            known.add(token)
            number += 1
    merges = [_pair(merge) for merge in document["model"]["merges"]]
    there = set(merges)
    more = [
        pair
        for pair in map(_pair, other["merges"])
        if pair not in there and all(part in ids for part in (*pair, "".join(pair)))
    ]
    document["model"]["merges"] = [list(pair) for pair in [*merges, *more]]
    return (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode()


def _pair(merge: Any) -> tuple[str, str]:
    """A merge; older files have it as one string."""
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


def _special(name: str, number: int) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": name, **flags, "special": True}


def trainer(vocab: int, alphabet: list[str]) -> trainers.BpeTrainer:
    """A trainer for a vocabulary that follows another one, without special tokens."""
    return trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet, show_progress=False)


def change_of(old: Vocabulary, new: Vocabulary, texts: list[str]) -> Change:
    """Compare the tokens of texts before and after."""
    before, after = old.encode_all(texts), new.encode_all(texts)
    return Change(
        documents=len(texts),
        changed=sum(one != other for one, other in zip(before, after, strict=True)),
        tokens_before=sum(map(len, before)),
        tokens_after=sum(map(len, after)),
    )
