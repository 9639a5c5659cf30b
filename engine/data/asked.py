"""The questions of an evaluation set as ids for one model.

Contexts and continuations are encoded as one text and cut where the context alone ends, as in lm-eval
(`TemplateLM._encode_pair`), so that likelihoods can be compared with published ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, cast

from atelier.engine.config.base import parse
from atelier.engine.config.error import DataError, printable
from atelier.engine.config.evaluation_set import QUESTIONS, SET, SHOTS, EvaluationSet, QuestionLine, ShotLine
from atelier.engine.config.soft_prompt import SoftPrompt
from atelier.engine.data.option_rows import row_size
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput

AT_ONCE = 256  # questions encoded together
LONGEST = 512  # tokens of a row of several requests: attention within a row grows with its square
LEAST = 16  # ids in common: for fewer, reading them once costs more than it saves


@dataclass(frozen=True)
class PosedSet:
    """An evaluation set as its files have it."""

    settings: EvaluationSet
    questions: list[QuestionLine]
    shots: list[ShotLine]
    url: str

    @staticmethod
    def of(source: ArtifactInput, scratch: Path) -> "PosedSet":
        settings = parse(EvaluationSet, source.json(SET, scratch), f"{source.url}: {SET}")
        questions = cast(list[QuestionLine], source.lines(QUESTIONS, scratch))
        shots = cast(list[ShotLine], source.lines(SHOTS, scratch)) if SHOTS in source.names() else []
        return PosedSet(settings, questions, shots, source.url)

    def context(self, question: QuestionLine, own: str | None = None) -> str:
        """All that a model is asked: description, solved examples, and the question's own context, or `own`
        in its place.
        """
        solved = "".join(self.shots[number]["text"] for number in question["shots"])
        return self.settings.description + solved + (question["context"] if own is None else own)

    def pairs(self, question: QuestionLine, prior: str | None) -> list[tuple[str, str]]:
        """Each continuation after its context, or after `prior`."""
        options = self.continuations(question)
        if prior is not None:
            return [(prior, option) for option in options]
        if "contexts" in question:
            each = [self.context(question, own) for own in question["contexts"]]
            return list(zip(each, options, strict=True))
        return [(self.context(question), option) for option in options]

    def continuations(self, question: QuestionLine) -> list[str]:
        """The texts whose likelihood is asked."""
        return question["options"] or question["targets"]


@dataclass(frozen=True)
class PromptOptions:
    """A prompt and its continuations as ids. With an encoder the prompt is what it reads, without its end."""

    prompt: tuple[int, ...]
    options: tuple[tuple[int, ...], ...]


@dataclass
class ModelQuestion:
    """One question as ids: requests, which together have its options in order. Options share a prompt where
    the tokenizer encodes it alike before them. `cut`: ids of the context that had no room.
    """

    question: QuestionLine
    requests: list[PromptOptions] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)  # UTF-8 of each option
    cut: int = 0


class Reader:
    """Encodes for one model. `room`: most ids of a prompt with its continuation, less the last; `None`: no
    limit. `begin`: the prompt of a text without one. `soft`: the model's soft prompt; `first`: its first id.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        room: int | None,
        *,
        is_paired: bool,
        place: str,
        soft: SoftPrompt | None = None,
        first: int = 0,
    ) -> None:
        self.vocabulary, self.room, self.is_paired, self.place = vocabulary, room, is_paired, place
        self._soft, self._first = soft or SoftPrompt(), first
        self.begin = vocabulary.before or (vocabulary.end_id,)

    def asked(self, posed: PosedSet, *, prior: str | None = None) -> Iterator[ModelQuestion]:
        """The questions of a set in order; with `prior` this context in place of each question's own."""
        for begin in range(0, len(posed.questions), AT_ONCE):
            some = posed.questions[begin : begin + AT_ONCE]
            pairs = [
                _apart(context, option)
                for question in some
                for context, option in posed.pairs(question, prior)
            ]
            encoded = iter(self._encoded(pairs))
            for question in some:
                options = posed.continuations(question)
                each = [next(encoded) for _ in options]
                yield self._asked(question, options, each)

    def prompts(self, posed: PosedSet, most: int) -> Iterator[tuple[list[int], int]]:
        """The ids of each question's context with room for `most` ids behind it, and the number cut off."""
        for begin in range(0, len(posed.questions), AT_ONCE):
            some = posed.questions[begin : begin + AT_ONCE]
            encoded = self.vocabulary.encode_all([posed.context(each) for each in some])
            for question, ids in zip(some, encoded, strict=True):
                room = self._room(0 if self.is_paired else most)
                if room is not None and room < 1:
                    raise self._no_room(question, f"answers have up to {most} tokens (max_tokens)")
                kept = ids if room is None else ids[-room:]
                yield [*self._prompt(kept)], len(ids) - len(kept)

    def _room(self, longest: int) -> int | None:
        """Ids of a context before `longest` more ids; None = no limit."""
        return None if self.room is None else self.room - longest - len(self._before) - self._soft.length

    def _prompt(self, kept: Sequence[int]) -> tuple[int, ...]:
        """The ids that a model reads of a context."""
        whole = self._soft.put(self._before, kept, self._first)
        return tuple(whole or ([] if self.is_paired else self.begin))

    def _no_room(self, question: QuestionLine, why: str) -> DataError:
        return DataError(
            f"{self.place}: question {printable(question['id'])}: {why}, which leaves no room for a context"
            f" in {self.room}; leave it out, or give a larger examine.sequence"
        )

    @property
    def _before(self) -> tuple[int, ...]:
        return () if self.is_paired else self.vocabulary.before

    def _encoded(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        """Ids of the context and of the continuation, of each pair."""
        contexts = list(dict.fromkeys(context for context, _ in pairs))
        known = dict(zip(contexts, self.vocabulary.encode_all(contexts), strict=True))
        if self.is_paired:
            said = self.vocabulary.encode_all([option for _, option in pairs])
            return [(known[context], ids) for (context, _), ids in zip(pairs, said, strict=True)]
        whole = self.vocabulary.encode_all([context + option for context, option in pairs])
        return [
            (ids[: len(known[context])], ids[len(known[context]) :])
            for (context, _), ids in zip(pairs, whole, strict=True)
        ]

    def _asked(
        self, question: QuestionLine, options: Sequence[str], encoded: Sequence[tuple[list[int], list[int]]]
    ) -> ModelQuestion:
        # as in lm-eval, without the blank before an option
        sizes = [len((option[1:] if option[:1].isspace() else option).encode()) or 1 for option in options]
        found = ModelQuestion(question, bytes=sizes)
        longest = max(len(ids) for _, ids in encoded)
        for option, (context, ids) in zip(options, encoded, strict=True):
            if not ids:
                raise DataError(
                    f"{self.place}: question {printable(question['id'])}: the tokenizer has no token for the"
                    f" option {printable(option)!r}; rename it"
                )
            room = self.room if self.is_paired else self._room(longest - 1)
            if room is not None and room < (1 if context or not self._before else 0):
                raise self._no_room(question, f"its longest option has {longest} tokens")
            kept = context if room is None else context[max(0, len(context) - room) :]
            found.cut = max(found.cut, len(context) - len(kept))
            prompt = self._prompt(kept)
            last = found.requests[-1] if found.requests else None
            if last is not None and last.prompt == prompt:
                found.requests[-1] = PromptOptions(prompt, (*last.options, tuple(ids)))
            else:
                found.requests.append(PromptOptions(prompt, (tuple(ids),)))
        return found


def _apart(context: str, option: str) -> tuple[str, str]:
    """Blanks at the end of a context are encoded with the option."""
    bare = context.rstrip()
    return bare, context[len(bare) :] + option


def windows(ids: Sequence[int], begin: Sequence[int], room: int, overlap: float) -> Iterator[PromptOptions]:
    """A text as requests that together score each of its ids once, each of at most `room` ids without the
    last. The first one follows `begin`; of each later one a share `overlap` was scored before.
    """
    at, size = 0, max(1, room + 1 - len(begin))
    while at < len(ids):
        end = min(len(ids), at + size)
        kept = room + 1 - (end - at)
        known = [*(begin if at < kept else ()), *ids[max(0, at - kept) : at]]
        yield PromptOptions(tuple(known[-kept:]), (tuple(ids[at:end]),))
        at, size = end, max(1, round(room * (1 - overlap)))


class PromptRow(NamedTuple):
    """Requests that are one row: their numbers, and how many ids of their prompts are its branch 0."""

    numbers: tuple[int, ...]
    shared: int
    size: int  # tokens of the row


def joined(requests: Sequence[PromptOptions], skipped: int, *, is_paired: bool) -> list[PromptRow]:
    """All requests in order as rows, without the first `skipped` ids. Neighbours are one row where that saves
    at least LEAST tokens; with an encoder each is its own.
    """
    found: list[PromptRow] = []
    for number, each in enumerate(requests):
        own = PromptRow((number,), len(each.prompt), row_size(each.prompt, each.options) - skipped)
        both = None if is_paired or not found else _both(requests, found[-1], own, skipped)
        if both is not None and both.size <= min(LONGEST, found[-1].size + own.size - LEAST):
            found[-1] = both
        else:
            found.append(own)
    return found


def _both(
    requests: Sequence[PromptOptions], one: PromptRow, other: PromptRow, skipped: int
) -> PromptRow | None:
    before, after = requests[one.numbers[0]].prompt, requests[other.numbers[0]].prompt
    most = min(one.shared, len(after))
    shared = skipped + _num_alike(before[skipped:most], after[skipped:most])
    if shared < skipped + LEAST:
        return None
    numbers = one.numbers + other.numbers
    size = shared - skipped - 1
    for each in (requests[number] for number in numbers):
        size += (len(each.prompt) - shared) * len(each.options) + sum(map(len, each.options))
    return PromptRow(numbers, shared, size)


def _num_alike(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def shared_ids(requests: Sequence[PromptOptions]) -> tuple[int, ...]:
    """The ids that all prompts begin with, each prompt's last one left out; none where they are few."""
    prompts = [each.prompt[:-1] for each in requests]
    size = _num_alike(min(prompts), max(prompts)) if len(prompts) > 1 else 0  # all lie between these two
    return prompts[0][:size] if size >= LEAST else ()
