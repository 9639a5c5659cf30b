"""Open the sample streams of a training, for training and for held-out evaluation; count the data that a role
has read.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from atelier.engine.config.base import Json
from atelier.engine.config.document import whole_of
from atelier.engine.config.error import ConfigError
from atelier.engine.config.mixture import CHAT, EXAMPLES, WINDOWS, Stream
from atelier.engine.config.run_file import Training
from atelier.engine.config.soft_prompt import SoftPrompt
from atelier.engine.data.blend import Blend, Dataset, planned
from atelier.engine.data.corpus import HELD_OUT, TRAIN
from atelier.engine.data.datasets.load import open_stream
from atelier.engine.data.examples import Examples
from atelier.engine.data.tokens import Windows
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.loop.evaluation import Streams


class _Labelled(Dataset, Protocol):
    part: int


class Samples:
    """The streams of a training over its inputs. `unit`: number of which a row's tokens are a multiple."""

    def __init__(
        self, training: Training, inputs: Mapping[str, ArtifactInput], scratch: Path, *, unit: int = 1
    ) -> None:
        self._training, self._inputs, self._scratch, self._unit = training, inputs, scratch, unit
        self._seed = training.train.seed

    def blend(self, sequence: int) -> Blend:
        """The training blend, in rows of `sequence` tokens."""
        plan = self._training.data_plan
        return planned(plan, [self._open(each, TRAIN, sequence) for each in plan.streams], unit=self._unit)

    def held_out(self) -> tuple[Streams, Mapping[str, Streams], dict[str, str]]:
        """Windows of all token sources, or conversations if there are none; rows of each kind; names and
        fingerprints of the sources, in the windows' order. Shares are those of the first phase; 0 for sources
        that are read later.
        """
        sequence = self._training.train.sequence
        shares: dict[str, float] = {}
        rows: dict[str, list[tuple[Dataset, float]]] = {}
        for stream in self._training.streams:
            if stream.kind == EXAMPLES:
                continue
            if stream.input.startswith("tokens"):
                shares[stream.input] = shares.get(stream.input, 0.0) + stream.weight
            if stream.rows is not None and stream.weight:
                opened = self._open(stream, HELD_OUT, sequence)
                rows.setdefault(stream.kind, []).append((opened, stream.weight))
        windows: list[tuple[Dataset, float]] = [
            (Windows(self._input(source), self._scratch, HELD_OUT, sequence), share)
            for source, share in shares.items()
        ]
        if not windows and (windows := rows.pop(CHAT, [])):
            shares = {
                stream.input: stream.weight
                for stream in self._training.streams
                if stream.kind == CHAT and stream.weight
            }
        names = {source: source.partition(".")[2] or source for source in shares}
        return windows, rows, {names[each]: self._input(each).record.fingerprint for each in shares}

    def tokens(self) -> dict[str, int]:
        """Tokens of each text that is read in windows, by source and split, without empty ones."""
        sources = {stream.input: "" for stream in self._training.streams if stream.kind == "windows"}
        found = {
            f"{source.removeprefix('tokens.')}/{split}": whole_of(
                self._input(source).record.summary.get(f"{split}_tokens")
            )
            for source in sources
            for split in (TRAIN, HELD_OUT)
        }
        return {name: size for name, size in found.items() if size}

    def _input(self, key: str) -> ArtifactInput:
        if key not in self._inputs:
            known = ", ".join(self._inputs) or "none"
            raise ConfigError("streams", f"no input {key!r}", f"inputs: {known}")
        return self._inputs[key]

    def _open(self, stream: Stream, split: str, sequence: int) -> Dataset:
        source, scratch = self._input(stream.input), self._scratch
        if stream.kind == "windows":
            return self._numbered(Windows(source, scratch, split, sequence), stream)
        tokenizer = self._input("tokenizer")
        if stream.kind == EXAMPLES:
            return self._examples(stream, split, sequence)
        vocabulary = Vocabulary.of(tokenizer, scratch)
        rows = open_stream(
            stream, source, vocabulary, scratch, split=split, sequence=sequence, seed=self._seed
        )
        return self._numbered(rows, stream)

    def labelled(self, sequence: int) -> list[Examples]:
        """The labelled examples of the training, by stream. Raises DataError if their cut prompts cannot tell
        answers apart.
        """
        streams = [stream for stream in self._training.streams if stream.kind == EXAMPLES]
        found = [self._examples(stream, TRAIN, sequence) for stream in streams]
        for each in found:
            each.check_told_apart()
        return found

    def _examples(self, stream: Stream, split: str, sequence: int) -> Examples:
        is_paired = any(member.role.model.reads_encoder for member in self._training.members.values())
        examples = Examples(
            self._input(stream.input),
            self._input("tokenizer"),
            self._scratch,
            num_examples=stream.num_examples,
            draw=stream.draw,
            split=split,
            sequence=sequence,
            seed=self._seed,
            is_paired=is_paired,
        )
        return examples.prompted(*self._soft_prompt(), is_paired=is_paired)

    def _soft_prompt(self) -> tuple[SoftPrompt, int]:
        """The soft prompt in this training's labelled examples, and its first id."""
        models = {name: member.role.model for name, member in self._training.members.items()}
        found = {name: getattr(model, "soft_prompt", SoftPrompt()) for name, model in models.items()}
        if len(set(found.values())) > 1:
            raise ConfigError(
                "trainable", f"{' and '.join(found)} have different soft prompts", "train them separately"
            )
        first = next(iter(models))
        return found[first], models[first].tokens

    def _numbered(self, rows: Dataset, stream: Stream) -> Dataset:
        """The data set; if the mixture has several parts, rows are labelled with their part."""
        if parts := self._training.parts:
            cast(_Labelled, rows).part = next((n for n, part in enumerate(parts) if part.has(stream)), -1)
        return rows


def consumed(
    training: Training, blend: Callable[[int], Blend], start: int, end: int, left_out: Iterable[int]
) -> Mapping[str, Json]:
    """By stream, the samples, tokens (of windows; rows of other kinds have padding: none) and epochs of the
    steps start <= step < end. `left_out`: steps among them that the role passed over. `blend` opens the
    stream for a sequence length.
    """
    train, streams = training.train, training.streams
    samples, epochs = np.zeros(len(streams), dtype=np.int64), np.zeros(len(streams))
    tokens = np.zeros(len(streams), dtype=np.int64)
    for first, last, sign in _runs(training, start, end, left_out):
        sequence = train.at(first).sequence
        begin, after = (train.progressive.samples_before(step, train.global_batch) for step in (first, last))
        for n, (rows, before, drawn) in enumerate(blend(sequence).drawn(begin, after)):
            count = sign * (drawn - before)
            samples[n] += count
            tokens[n] += count * sequence
            epochs[n] += count / rows
    return {
        stream.name: {
            "samples": samples[n].item(),
            "tokens": tokens[n].item() if stream.kind == WINDOWS else None,
            "epochs": round(epochs[n].item(), 6),
        }
        for n, stream in enumerate(streams)
    }


def _runs(
    training: Training, start: int, end: int, left_out: Iterable[int]
) -> Iterable[tuple[int, int, int]]:
    """Steps first <= step < last of one size, with sign 1; single steps that do not count, with sign -1."""
    firsts = [step for step in training.train.first_steps() if start < step < end]
    for first, last in zip([start, *firsts], [*firsts, end], strict=True):
        yield first, last, 1
    for step in sorted(set(left_out)):
        if start <= step < end:
            yield step, step + 1, -1
