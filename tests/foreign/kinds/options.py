"""Options after prompts with drawn tokenizers: the scored ids are those of the joint text."""

import json
import random
from contextlib import AbstractContextManager
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any
from unittest import mock

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.data import examples
from atelier.engine.data.examples import Examples
from atelier.engine.data.option_rows import OptionRow
from atelier.engine.data.options import JointOptions
from atelier.engine.io.artifact import open_input
from tests.engine.trainings import artifact

COUNT = 25
TEXT = [
    "Is the sea deep? yes no maybe: yes, no. Answer: Label: red green blue red green dark blue",
    "the lead says so; it is nine, or eight fathoms deep. Question: is it? No! Naïve answers 1 2 3 12 23",
] * 3
LEVELS = {  # kind of model, its normaliser, its pre-tokenizer
    "bytes": ("bpe", None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "bytes with a space before": ("bpe", None, pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "bytes of whole texts": ("bpe", None, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
    "prepend": ("fallback", [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")], None),
    "replace": ("fallback", [normalizers.Replace(" ", "▁")], None),
    "metaspace": ("fallback", None, pre_tokenizers.Metaspace(prepend_scheme="always")),
    "metaspace first": ("fallback", None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
    "unigram": ("unigram", None, pre_tokenizers.Metaspace(prepend_scheme="always")),
    "unigram whole": (
        "unigram",
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")],
        pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
    ),
    "wordpiece": (
        "wordpiece", [normalizers.BertNormalizer(lowercase=False)], pre_tokenizers.BertPreTokenizer(),
    ),
    "wordpiece lower": (
        "wordpiece", [normalizers.BertNormalizer(lowercase=True)], pre_tokenizers.BertPreTokenizer(),
    ),
    "stripped": ("bpe", [normalizers.Strip()], pre_tokenizers.ByteLevel(add_prefix_space=False)),
}  # fmt: skip
PROMPTS = [
    "Is the sea deep?", "Is it?\n\nLabel:", "Label: ", "Answer:", "the lead says: '", "x", "a b", "是吗", "n",
    "Question: is it\u00a0", "e", "1", "12", "f(", "\n", "  ", "Answer:\t", "naïve?", "Is", "🚢",
    "deep " * 12,
]  # fmt: skip
OPTIONS = [
    " yes", " no", "yes", "no", "Yes", " red", " green", " dark blue", " dark", "red", "ep", "s", "3", "23",
    "\u0301", " 是", "不是", ")", ".", " .", "\nyes", "\n", " ", "  yes", "🚢", " ye", "ye", "\u200b", "yes ",
]  # fmt: skip


def draw(rng: random.Random) -> dict[str, Any]:
    options = sorted(rng.sample(OPTIONS, rng.randint(2, 4)))
    lines = [
        {
            "prompt": "".join(rng.choice(PROMPTS) for _ in range(rng.randint(1, 3))),
            "completion": rng.choice(options),
        }
        for _ in range(rng.randint(2, 5))
    ]
    case = {
        "tokenizer": rng.choice(list(LEVELS)),
        "has_begin": rng.random() < 0.6,
        "options": options,
        "lines": lines,
        "shots": rng.choice((None, None, 0, 1, 2)),
        "sequence": 1024,
    }
    return case if case["shots"] else case | {"sequence": rng.choice((1024, 1024, 24, 6))}


def check(case: dict[str, Any], folder: Path) -> str:
    made, options = tokenizer(case["tokenizer"]), case["options"]
    names = made.get_vocab(with_added_tokens=True)
    begin, end = names["<s>"] if case["has_begin"] else None, names["</s>"]
    files = {
        "tokenizer.json": made.to_str().encode(),
        "text_ends.json": json.dumps({"ends": [end], "begin": begin}).encode(),
    }
    rows = [{**one, "options": options, "group": str(number)} for number, one in enumerate(case["lines"])]
    lines = "".join(json.dumps(one) + "\n" for one in rows).encode()
    labels = artifact(folder / "labels", "labels", {"train.jsonl": lines, "test.jsonl": lines})
    source = open_input(artifact(folder / "tokenizer", "tokenizer", files))
    before = () if begin is None else (begin,)
    wanted = {text: _joint(made, before, text, case, end) for text in _texts(case)}
    try:
        found = Examples(
            open_input(labels), source, folder, sequence=case["sequence"], split="test", shots=case["shots"]
        )
    except (DataError, ConfigError) as error:
        assert any(isinstance(one, str) and one in str(error) for one in wanted.values()), f"refused: {error}"
        return "refused"
    if not case["shots"]:
        assert not any(isinstance(one, str) for one in wanted.values()), f"is not refused: {wanted}"
    for number in range(len(found)):
        prompt, ids = read(found, number)
        assert (prompt, ids) in wanted.values(), f"{prompt}, {ids} is of no text of {wanted}"
        labels_T = found.batch([number])["labels_BT"][0]
        assert tuple(labels_T[labels_T >= 0]) == ids[found.option_row(number).answer]
    return "works"


def _texts(case: dict[str, Any]) -> list[str]:
    """What may stand before an option: each prompt, behind any solved examples."""
    solved = [f"{one['prompt']}{one['completion']}\n\n" for one in case["lines"]]
    chosen = permutations(range(len(solved)), case["shots"] or 0)
    contexts = {"".join(solved[n] for n in each) for each in chosen}
    return [context + one["prompt"] for context in contexts for one in case["lines"]]


def _joint(
    tokenizer: Tokenizer, before: tuple[int, ...], text: str, case: dict[str, Any], end: int
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]] | str:
    """The prompt that is read and what is scored of each option, or part of the reason why not."""

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False).ids)

    alone, each = ids(text), [ids(text + option) for option in case["options"]]
    shared = 0
    while all(len(one) > shared and one[: shared + 1] == alone[: shared + 1] for one in each):
        if shared == len(alone):
            break
        shared += 1
    behind = tuple(one[shared:] for one in each)
    if len(set(behind)) < len(behind):
        return "alike"
    begins = any(one != other and other[: len(one)] == one for one in behind for other in behind)
    if case["shots"] is None and begins:
        behind = tuple((*one, end) for one in behind)
    if () in behind:
        return "no token for"
    room = case["sequence"] + 1 - len(before) - max(map(len, behind))
    if room < 1:
        return "no room"
    prompt = (*before, *(alone[:shared] if case["shots"] else alone[:shared][-room:]))
    return (prompt, behind) if prompt else "merges the whole prompt"


def read(examples: Examples, number: int) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """The prompt and the scored ids of each option, as a model reads a row."""
    row: OptionRow = examples.option_row(number)
    places = row.tokens_T[row.branches_T == 0]
    prompt = (*places.tolist(), int(row.tokens_T[row.spans[0][0]]))
    ids = tuple(tuple(row.labels_T[begin:end].tolist()) for begin, end in row.spans)
    for branch, own in enumerate(ids, start=1):
        seen = row.tokens_T[row.branches_T == branch].tolist()
        assert seen == [prompt[-1], *own[:-1]]
    return prompt, ids


@cache
def tokenizer(name: str) -> Tokenizer:
    kind, normalizer, pre_tokenizer = LEVELS[name]
    special, letters = ["<unk>", "<s>", "</s>"], sorted({letter for text in TEXT for letter in text})
    odd = [f"<0x{number:02X}>" for number in range(256)]
    if kind == "unigram":
        made = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(vocab_size=150, special_tokens=special, unk_token="<unk>")
    elif kind == "wordpiece":
        made = Tokenizer(models.WordPiece(unk_token="<unk>"))
        trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=special)
    else:
        made = Tokenizer(models.BPE(byte_fallback=kind == "fallback", unk_token=None))
        more = odd if kind == "fallback" else []
        alphabet = letters if kind == "fallback" else pre_tokenizers.ByteLevel.alphabet()
        size = len(special) + len(more) + (500 if kind == "fallback" else 350)
        trainer = trainers.BpeTrainer(
            vocab_size=size, special_tokens=[*special, *more], initial_alphabet=alphabet
        )
    if normalizer:
        made.normalizer = normalizers.Sequence(normalizer)
    if pre_tokenizer:
        made.pre_tokenizer = pre_tokenizer
    made.decoder = decoders.ByteLevel() if kind == "bpe" else decoders.Metaspace()
    words = [word for text in TEXT for word in text.split()]
    made.train_from_iterator(words if kind == "fallback" else TEXT, trainer)
    document = json.loads(made.to_str())  # bytes are tokens of the model, not special ones
    document["added_tokens"] = [one for one in document["added_tokens"] if one["content"] in special]
    return Tokenizer.from_str(json.dumps(document))


def broken() -> AbstractContextManager[object]:
    """Options are encoded apart from their prompt."""

    def apart(
        vocabulary: Any, prompts: list[str], options: tuple[str, ...], place: str
    ) -> list[JointOptions]:
        own = tuple(tuple(vocabulary.encode(option)) for option in options)
        whole = [tuple(vocabulary.encode(prompt)) for prompt in prompts]
        return [JointOptions(prompt=each, options=own, whole=each) for each in whole]

    return mock.patch.object(examples, "continued", apart)
