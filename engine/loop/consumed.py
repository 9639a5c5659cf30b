"""Samples, tokens and epochs that a role has read from each stream, counted from the assignment alone."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from atelier.engine.config.base import Json
from atelier.engine.config.mixture import WINDOWS, Stream
from atelier.engine.config.run_file import Training
from atelier.engine.data.blend import Blend


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
        _name(stream): {
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


def _name(stream: Stream) -> str:
    """Name of a stream in the record: its source; for other rows than windows, also their kind."""
    name = stream.source or stream.input
    return name if stream.kind == WINDOWS else f"{name}/{stream.kind}"
