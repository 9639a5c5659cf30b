"""Labelled examples: rows for fine-tuning, and rows that score every option after one prompt.

With an encoder, the encoder reads prompts and the decoder predicts completions.

Shape letters: B rows, T tokens of a row, U tokens of the encoder.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from atelier.engine.config.batch import ENCODER, NOT_SCORED
from atelier.engine.config.data import UNCUT
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.soft_prompt import SoftPrompt
from atelier.engine.data.corpus import TRAIN, LabelledLine
from atelier.engine.data.counter_rng import Numbers, Permutation
from atelier.engine.data.option_rows import OptionRow, option_batch, option_row, row_size, stacked
from atelier.engine.data.options import JointOptions, any_begins_another, check_apart, continued
from atelier.engine.data.pairs import paired
from atelier.engine.data.tokens import pieces_of
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput


@dataclass(frozen=True, kw_only=True)
class Example:
    """One example as ids: the prompt, and the ids of each option after it; of free text the completion is the
    only one. `answer`: index of the right option; `num_cut`: prompt ids that had no room.
    """

    prompt: tuple[int, ...]
    options: tuple[tuple[int, ...], ...]
    answer: int
    num_cut: int

    @property
    def completion(self) -> tuple[int, ...]:
        return self.options[self.answer]


class Examples:
    """`num_examples` of a split ("train" or "test"; 0 = all), drawn by (seed, draw) alone: a larger draw
    contains the smaller one.

    A row is prompt and completion, encoded as one text. Scored are tokens from the first one on in which the
    texts with the options differ from the prompt alone or from each other. If one option begins another, an
    end token follows each option, otherwise none; one always follows free text. A prompt that does not fit
    loses its beginning, in training and scoring alike. All batches have the same T, the longest row of this
    draw. With `shots` every prompt
    follows that many solved training examples, the same for all, and options have no end token, as in
    continued text (few-shot, 2005.14165, section 2). `is_paired`: prompts for an encoder and completions for
    a decoder, encoded separately.

    Raises DataError if there are fewer examples than requested, options that the tokenizer cannot tell apart,
    or an empty side of a pair; ConfigError if `sequence` has no room for an option.
    """

    def __init__(
        self,
        labels: ArtifactInput,
        tokenizer: ArtifactInput,
        scratch: Path,
        *,
        sequence: int,
        num_examples: int = 0,
        draw: int = 0,
        seed: int = 1,
        split: str = "train",
        shots: int | None = None,
        is_paired: bool = False,
    ) -> None:
        self._vocabulary, self._place = Vocabulary.of(tokenizer, scratch), labels.url
        lines = _lines(labels, split, scratch)
        if num_examples > len(lines) or not lines:
            raise DataError(
                f"{labels.url}: {num_examples} {split} examples were requested, but there are"
                f" {len(lines)}; request fewer or give more"
            )
        order = drawn_lines(len(lines), num_examples, draw=draw, split=split, seed=seed)
        self.options: tuple[str, ...] = tuple(lines[0]["options"])
        self.is_free = not self.options
        self._texts = [self.options or (lines[i]["completion"],) for i in order]
        encode = self._vocabulary.encode_all
        self._alone = {each: tuple(map(tuple, encode(each))) for each in dict.fromkeys(self._texts)}
        self._num_cut = [0] * len(order)
        self.has_ends, self._room = shots is None, sequence + 1 - len(self._vocabulary.before)
        prompts = [lines[i]["prompt"] for i in order]
        if shots:
            room = self._room_before([ids for each in self._alone.values() for ids in each])
            solved, most_cut = self._solved(_lines(labels, "train", scratch), room, shots, seed)
            cut = [self._vocabulary.ended(prompt, room) for prompt in prompts]
            prompts, self._room = [solved + prompt for prompt, _ in cut], UNCUT
            self._num_cut = [max(number, most_cut) for _, number in cut]
        self._asked = list(continued(self._vocabulary, prompts, self._texts, labels.url))
        self._sequence, self._split = sequence, split
        self._answers = [
            options.index(lines[i]["completion"]) for i, options in zip(order, self._texts, strict=True)
        ]
        self._lay_out(SoftPrompt(), 0, is_paired=is_paired)

    def _lay_out(self, soft: SoftPrompt, first: int, *, is_paired: bool) -> None:
        self.is_paired, self.extras = is_paired, ENCODER if is_paired else ()
        if is_paired:
            for options, alone in self._alone.items():
                check_apart(alone, options, f"{self._place}: the tokenizer")
        each = zip(self._asked, self._texts, self._answers, self._num_cut, strict=True)
        self.examples = tuple(self._example(*one, soft, first) for one in each)
        self.length, self.encoder_length = (
            max(len(e.prompt) + len(e.completion) for e in self.examples) - 1,
            0,
        )
        if self.is_paired:
            self.check_sides(self._place)
            self.length = max(len(e.completion) for e in self.examples)
            self.encoder_length = 1 + max(len(e.prompt) for e in self.examples)

    def _example(
        self,
        asked: JointOptions,
        texts: tuple[str, ...],
        answer: int,
        num_cut: int,
        soft: SoftPrompt,
        first: int,
    ) -> Example:
        """Leaves room for the longest option in its prompt. `num_cut`: prompt ids that were cut before."""
        prompt, options = asked.prompt, asked.options
        if self.is_paired:
            prompt, options = asked.whole, self._alone[texts]
        if self.has_ends and (self.is_free or any_begins_another(options)):
            options = tuple((*ids, self._vocabulary.end_id) for ids in options)
        if () in options:
            option = texts[options.index(())]
            raise DataError(f"{self._place}: the tokenizer has no token for {option!r}; rename it")
        room = self._room_before(options) - soft.length
        if room < 1:
            raise ConfigError(
                "trainable.length",
                f"{soft.length} vectors leave no room for a prompt: rows have room for"
                f" {room + soft.length} tokens",
                "give fewer, or a longer sequence",
            )
        found = tuple(soft.put(self._vocabulary.before, prompt[-room:], first))
        if not found and not self.is_paired:
            raise DataError(
                f"{self._place}: the tokenizer merges the whole prompt"
                f" {self._vocabulary.decode(asked.whole)!r} with an option; give it a longer prompt"
            )
        num_cut += max(0, len(prompt) - room)
        return Example(prompt=found, options=options, answer=answer, num_cut=num_cut)

    def _room_before(self, options: Sequence[Sequence[int]]) -> int:
        """Tokens of a prompt that have room before the longest option."""
        longest = max(map(len, options))
        if self._room - longest < 1:
            raise ConfigError(
                "sequence",
                f"{self._room - 1 + len(self._vocabulary.before)} tokens leave no room for a prompt",
                f"options have up to {longest} tokens",
            )
        return self._room - longest

    def check_sides(self, place: str) -> None:
        """Raise DataError for an example with nothing for the encoder or nothing for the decoder."""
        for number, (each, options) in enumerate(zip(self.examples, self._texts, strict=True)):
            for what, text in (("prompt", each.prompt), ("completion", options[each.answer])):
                if not text:
                    raise DataError(
                        f"{place}: example {number} has an empty {what}, but a model with an encoder needs"
                        " both sides; leave the example out"
                    )

    def prompted(self, soft: SoftPrompt, first: int, *, is_paired: bool) -> "Examples":
        """The same examples for a model with a soft prompt, whose first id is `first` and which takes room
        from the text; or for a model with an encoder.
        """
        if not soft.length and is_paired == self.is_paired:
            return self
        found = copy.copy(self)
        found._lay_out(soft, first, is_paired=is_paired)
        return found

    def num_cut(self) -> int:
        """The number of examples whose prompt, or a solved one, lost its beginning."""
        return sum(each.num_cut > 0 for each in self.examples)

    def what_is_cut(self) -> str:
        """A sentence on examples that lost a beginning; '' for none."""
        if not self.num_cut():
            return ""
        needed = self._sequence + max(each.num_cut for each in self.examples)
        return (
            f"labels: {self.num_cut()} of {len(self)} {self._split} prompts have no room in"
            f" sequence={self._sequence} tokens and lose their beginning; sequence={needed} holds all of them"
        )

    def check_told_apart(self) -> None:
        """Raise DataError if every cut prompt equals a cut prompt with another answer: nothing could be
        learned.
        """
        answers: dict[tuple[int, ...], set[int]] = {}
        for each in self.examples:
            answers.setdefault(each.prompt, set()).add(each.answer)
        if self.num_cut() and all(len(each) > 1 for each in answers.values()):
            raise DataError(f"{self.what_is_cut()}: each cut prompt equals one with another answer")

    def _solved(self, lines: list[LabelledLine], room: int, shots: int, seed: int) -> tuple[str, int]:
        """`shots` training examples with completions, each followed by an empty line, and the largest number
        of ids that a prompt lost.
        """
        if shots > len(lines):
            raise DataError(
                f"{shots} solved examples were requested, there are {len(lines)}; request fewer or give more"
            )
        chosen = [lines[i] for i in Permutation(len(lines), seed, "shots")(np.arange(shots))]
        cut = [self._vocabulary.ended(line["prompt"], room) for line in chosen]
        text = "".join(
            f"{prompt}{line['completion']}\n\n" for (prompt, _), line in zip(cut, chosen, strict=True)
        )
        return text, max(number for _, number in cut)

    def __len__(self) -> int:
        return len(self.examples)

    def batch(
        self, indices: Sequence[int] | np.ndarray, epochs: Sequence[int] | np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """The examples at `indices`, the same in all epochs: tokens, positions, documents and labels, each
        [B, length] int64; for pairs also the encoder's [B, encoder_length].
        """
        if self.is_paired:
            some = [self.examples[int(i)] for i in indices]
            return paired(
                [(self._read(each), each.completion) for each in some],
                lengths=(self.encoder_length, self.length),
                start=self._vocabulary.start_id,
                pad=self._vocabulary.pad_id,
            )
        rows = [self._row(self.examples[int(i)]) for i in indices]
        return stacked(rows, self.length, self._vocabulary.pad_id)

    def _row(self, example: Example) -> dict[str, np.ndarray]:
        ids = np.array([*example.prompt, *example.completion], dtype=np.int64)
        labels = ids[1:].copy()
        labels[: len(example.prompt) - 1] = NOT_SCORED
        size = len(labels)
        return {
            "tokens": ids[:-1],
            "positions": np.arange(size),
            "documents": np.zeros(size, dtype=np.int64),
            "labels": labels,
        }

    def _read(self, example: Example) -> list[int]:
        """The ids that an encoder reads of an example."""
        return [*example.prompt, self._vocabulary.end_id]

    def asked(self, index: int) -> list[int]:
        """The ids that a model reads before it writes the completion; an encoder's without the end."""
        return [*self.examples[index].prompt]

    def row_tokens(self, index: int) -> int:
        """Tokens of an example's row: its prompt and all options."""
        example = self.examples[index]
        return row_size(example.prompt, example.options)

    def option_row(self, index: int) -> OptionRow:
        """The example at `index` with all options after its prompt, or for a decoder whose encoder reads the
        prompt.
        """
        example = self.examples[index]
        if self.is_paired:
            start = (self._vocabulary.start_id,)
            return option_row(start, example.options, example.answer, self._read(example))
        return option_row(example.prompt, example.options, example.answer)

    def option_batch(
        self, indices: Sequence[int] | np.ndarray
    ) -> tuple[dict[str, np.ndarray], list[OptionRow]]:
        """Several option rows as one batch [B, T] with `branches_BT`, padded to the longest, and the rows
        with spans and answers.
        """
        rows = [self.option_row(int(i)) for i in indices]
        return option_batch(rows, self._vocabulary.pad_id), rows


class DrawnLines:
    """Rows of labelled examples as engine/data/examples.py orders them: row r is line lines_R[r]."""

    length = 1

    def __init__(
        self, labels: ArtifactInput, scratch: Path, *, num_examples: int, draw: int, seed: int
    ) -> None:
        with open(labels.file(f"{TRAIN}.jsonl", scratch), "rb") as file:
            count = sum(1 for line in file if line.strip())
        if num_examples > count or not count:
            raise DataError(f"{labels.url}: {num_examples} examples were drawn, but there are {count}")
        self.lines_R = drawn_lines(count, num_examples, draw=draw, split=TRAIN, seed=seed)
        self._rows = np.argsort(self.lines_R)
        self._sorted = self.lines_R[self._rows]

    def __len__(self) -> int:
        return len(self.lines_R)

    def batch(self, indices: Numbers, epochs: Numbers | None = None) -> dict[str, np.ndarray]:
        """Its lines as tokens."""
        lines_B1 = self.lines_R[np.asarray(indices, dtype=np.int64)][:, None]
        return {"tokens_BT": lines_B1, "documents_BT": np.zeros_like(lines_B1)}

    def rows_with(self, begin: int, end: int, epoch: int) -> np.ndarray:
        """The rows of a range of training lines (blend.py, Dataset)."""
        found = np.arange(*np.searchsorted(self._sorted, [begin, max(begin, end)]))
        lines = self._sorted[found]
        return pieces_of(self._rows[found], lines, lines + 1)


def drawn_lines(count: int, num_examples: int, *, draw: int, split: str, seed: int) -> np.ndarray:
    """The lines of a draw of `num_examples` (0 = all) of `count` lines, in its order."""
    return Permutation(count, seed, "draw", split, draw)(np.arange(num_examples or count))


def _lines(labels: ArtifactInput, split: str, scratch: Path) -> list[LabelledLine]:
    return cast(list[LabelledLine], labels.lines(f"{split}.jsonl", scratch))
