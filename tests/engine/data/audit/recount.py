"""Recount readings the slow way, to check `readings.py`: make every batch of a training and look for tokens
in its rows. It shares no inverse with it. Only for text in which no id stands twice.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np

from atelier.engine.config.batch import NOT_SCORED, PADDING
from atelier.engine.config.data_plan import DataPlan
from atelier.engine.data.audit.readings import MOST_STEPS, SpanReading
from atelier.engine.data.blend import Blend

HIDDEN = ("mlm", "knowledge")  # rows whose labels are hidden tokens, in whose places others may stand
PAIRED = ("prefix", "spans")  # rows that hold what their decoder predicts


def recount(
    plan: DataPlan,
    blend: Callable[[int], Blend],
    source: str,
    ids: Sequence[Collection[int]],
    start: int,
    end: int,
    left_out: Collection[int] = (),
) -> list[SpanReading]:
    """The reading of each of these sets of ids, which stand nowhere else in any source. `blend` opens the
    rows of a sequence length.
    """
    owner = {one: number for number, own in enumerate(ids) for one in own}
    times = [dict[str, int]() for _ in ids]
    steps = [list[int]() for _ in ids]
    held: dict[tuple[int, int, int, int], set[int]] = {}
    drawn, before, first = list[int](), 0, 0
    for step in range(end):
        size = plan.progressive.batch_at(step, plan.global_batch)
        sequence = plan.progressive.sequence_at(step, plan.sequence)
        rows = blend(sequence)
        if sequence != before:  # with caps, shares before depend on the number of rows, hence on their length
            chosen = [stream for stream, _ in rows.samples(0, first)]
            drawn, before = [chosen.count(n) for n in range(len(plan.streams))], sequence
        is_read = step >= start and step not in left_out
        batch = rows.batch(first, size) if is_read else {}
        for place, (stream, _) in enumerate(rows.samples(first, size)):
            epoch = drawn[stream] // len(rows.dataset(stream))
            drawn[stream] += 1
            if not is_read or plan.streams[stream].input != source:
                continue
            kind = plan.streams[stream].kind
            found = {one for one in _ids(batch, place, kind) if one in owner}
            for number in {owner[one] for one in found}:
                times[number][kind] = times[number].get(kind, 0) + 1
                steps[number].append(step)
                key = (number, sequence, stream, epoch)
                held.setdefault(key, set()).update(one for one in found if owner[one] == number)
        first += size
    whole = [sum(key[0] == n and own == set(ids[n]) for key, own in held.items()) for n in range(len(ids))]
    return [_reading(times[n], sorted(set(steps[n])), whole[n]) for n in range(len(ids))]


def _reading(times: dict[str, int], steps: list[int], whole: int) -> SpanReading:
    return SpanReading(
        times=sum(times.values()),
        whole=whole,
        first=steps[0] if steps else None,
        last=steps[-1] if steps else None,
        steps=tuple(steps[:MOST_STEPS]),
        num_steps=len(steps),
        kinds=times,
    )


def _ids(batch: dict[str, np.ndarray], row: int, kind: str) -> set[int]:
    labels = batch["labels_BT"][row] if kind in (*HIDDEN, *PAIRED) else np.zeros(0)
    is_label = labels != NOT_SCORED
    found = set(labels[is_label].tolist())
    for side, dim in (("", "T"), ("encoder_", "U")):
        if f"{side}tokens_B{dim}" in batch:
            is_text = batch[f"{side}documents_B{dim}"][row] != PADDING
            is_text &= ~is_label if kind in HIDDEN and not side else True
            found |= set(batch[f"{side}tokens_B{dim}"][row][is_text].tolist())
    return found
