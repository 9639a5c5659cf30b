"""Readings equal what a slow recount finds in every batch; changed readers are caught by it."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atelier.engine.config.data_plan import DataPlan
from atelier.engine.config.mixture import EXAMPLES, WINDOWS, Stream, in_order
from atelier.engine.config.schedule import RampUp
from atelier.engine.config.train import Progressive
from atelier.engine.data.audit.readings import DocumentSpans, PlannedData, SpanReading
from atelier.engine.data.blend import BLOCK, Blend, planned
from atelier.engine.data.examples import Examples
from atelier.engine.data.tokens import TokenText, Windows
from tests.engine.data.audit.recount import recount
from tests.engine.data.audit.unique import LINES, ROWS, Unique
from tests.marks import quick

SOURCES = ("main", "second", "third", "fourth")
BROKEN = {
    "windows that begin one token late": (
        Windows, "rows_with", lambda own, b, e, n: WINDOW(own, b + 1, e + 1, n)
    ),
    "later phases ignored": (DataPlan, "later", lambda own: []),
    "draws of the first epoch alone": (Blend, "order", lambda own, number, epoch: ORDER(own, number, 0)),
    "one sample late": (Blend, "places", lambda own, number, draws: PLACES(own, number, draws) + 1),
}  # fmt: skip
WINDOW, ORDER, PLACES = Windows.rows_with, Blend.order, Blend.places


@pytest.fixture(scope="module")
def unique(tmp_path_factory: pytest.TempPathFactory) -> Unique:
    return Unique(tmp_path_factory.mktemp("unique"))


def drawn_plan(draw: random.Random, unique: Unique, *, is_long: bool = False) -> DataPlan:
    """A plan of 1 to 4 sources, or of one with rows of several kinds."""
    sources = draw.sample(SOURCES, draw.randint(1, 4))
    pairs = [(WINDOWS, source) for source in sources]
    if not is_long and draw.random() < 0.7:
        pairs = [(kind, sources[0]) for kind in draw.sample([WINDOWS, *ROWS], draw.randint(1, 4))]
        pairs += [(kind, "main") for kind in draw.sample([*LINES], draw.randint(0, 2))]
    phases = tuple(sorted(draw.sample(range(2, 11), draw.randint(0, 2))))
    assignment = draw.choice(("blocks", "exact"))
    streams = [
        unique.stream(
            kind,
            source,
            weight=draw.choice((0.0, 1.0, 2.0, 0.3)) if number else 1.0,
            later=[draw.choice((0.0, 1.0, 0.2)) if number else 0.5 for _ in phases],
            epochs=draw.choice((0.0, 1.5)) if assignment == "exact" and number else 0.0,
        )
        for number, (kind, source) in enumerate(pairs)
    ]
    batch, growth = (700 if is_long else 16), draw.randrange(3)
    progressive = Progressive()
    if growth == 1:
        progressive = Progressive(steps=6, stages=draw.randint(1, 3), sequence=0.5, batch=0.5)
    elif growth == 2:
        progressive = Progressive(rampup=RampUp(start=batch // 2, by=batch // 4, samples=3 * batch))
    return DataPlan(
        streams=in_order(each for each in streams if each.weight or any(each.later)),
        phases=phases,
        assignment=assignment,
        seed=draw.randrange(1000),
        global_batch=batch,
        sequence=64,
        progressive=progressive,
        last=10**9 if assignment == "blocks" else 14 * batch,
    )


def asked(draw: random.Random, unique: Unique, source: str) -> tuple[np.ndarray, list[set[int]]]:
    """Ranges of a source that do not overlap, and their ids."""
    if source in unique.lines:
        lines = unique.lines[source]
        return np.stack([np.arange(len(lines)), np.arange(len(lines)) + 1], axis=1), lines
    text = TokenText(unique.inputs[source], unique.folder, "train")
    cuts = sorted(draw.sample(range(len(text) + 1), 30))
    cuts = sorted({*cuts, *(64 * n for n in (1, 2, 5)), *(64 * n + 1 for n in (3, 4))})
    ranges = [(a, b) for a, b in pairwise(cuts) if draw.random() < 0.8]
    ids = [set(text.tokens_N[a:b].tolist()) - {0} for a, b in ranges]
    kept = [n for n, own in enumerate(ids) if len(own) == ranges[n][1] - ranges[n][0]]  # without end tokens
    return np.array([ranges[n] for n in kept]), [ids[n] for n in kept]


def found(
    unique: Unique, plan: DataPlan, source: str, ranges: np.ndarray, steps: tuple[int, int], left: list[int]
) -> list[SpanReading]:
    return PlannedData(plan, unique.inputs, unique.folder).readings(source, ranges, *steps, left)


def compared(
    unique: Unique, plan: DataPlan, draw: random.Random, **slow: Any
) -> list[tuple[SpanReading, SpanReading]]:
    steps, pairs = (draw.randrange(4), draw.randint(9, 13)), []
    left = sorted(draw.sample(range(13), 2))
    opened = PlannedData(plan, unique.inputs, unique.folder)
    for source in sorted({stream.input for stream in plan.streams}):
        ranges, ids = asked(draw, unique, source)
        told = found(unique, plan, source, ranges, steps, left)
        blend = slow.get("blend", opened.blend)
        seen = recount(slow.get("plan", plan), blend, source, ids, *steps, left)
        pairs += zip(told, seen, strict=True)
    return pairs


@pytest.mark.parametrize("seed", quick(range(40), 8))
def test_readings_are_those_of_a_slow_recount(unique: Unique, seed: int) -> None:
    draw = random.Random(seed)
    pairs = compared(unique, drawn_plan(draw, unique), draw)
    assert any(slow.times for _, slow in pairs)
    for told, slow in pairs:
        assert told == slow


@pytest.mark.parametrize("seed", quick(range(8), 1))
def test_over_several_blocks_and_many_epochs(unique: Unique, seed: int) -> None:
    draw = random.Random(100 + seed)
    pairs = compared(unique, drawn_plan(draw, unique, is_long=True), draw)
    assert max(slow.times or 0 for _, slow in pairs) > BLOCK // 64
    for told, slow in pairs:
        assert told == slow


@pytest.mark.parametrize("kind", [*ROWS, *LINES])
def test_every_kind_of_rows_tells_what_it_holds(unique: Unique, kind: str) -> None:
    draw = random.Random(3)
    stream = unique.stream(kind, "main")
    plan = DataPlan(streams=(stream,), seed=5, global_batch=9, sequence=48)
    pairs = compared(unique, plan, draw)
    assert sum((slow.times or 0) > 1 for _, slow in pairs) > 4
    for told, slow in pairs:
        assert told == slow


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_reader_is_caught(unique: Unique, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    caught = 0
    for seed in range(6):
        draw = random.Random(seed)
        streams = [unique.stream(WINDOWS, source, later=[n, 1.0]) for n, source in enumerate(SOURCES[:2])]
        plan = DataPlan(
            streams=in_order(streams), phases=(3, 7), seed=seed, global_batch=24, sequence=64, last=10**9
        )
        opened = PlannedData(plan, unique.inputs, unique.folder)
        right = {plan.sequence: opened.blend(plan.sequence)}
        kind, method, other = BROKEN[name]
        ranges, ids = asked(draw, unique, "tokens.main")
        slow = recount(plan, right.__getitem__, "tokens.main", ids, 0, 12)
        with monkeypatch.context() as patch:
            patch.setattr(kind, method, other)
            caught += found(unique, plan, "tokens.main", ranges, (0, 12), []) != slow
    assert caught >= 4


def test_labelled_examples_are_found_by_their_lines(unique: Unique) -> None:
    stream = unique.stream(EXAMPLES, "", num_examples=32, draw=1)
    plan = DataPlan(streams=(stream,), seed=4, global_batch=16, sequence=64)
    examples = Examples(
        unique.inputs["labels"], unique.inputs["tokenizer"], unique.folder, sequence=64, num_examples=32,
        draw=1, seed=4,
    )  # fmt: skip
    ranges, ids = asked(random.Random(0), unique, "labels")
    told = found(unique, plan, "labels", ranges, (0, 5), [])
    slow = recount(plan, lambda sequence: planned(plan, [examples]), "labels", ids, 0, 5)
    assert [each.times for each in told] == [each.times for each in slow]
    assert told == slow
    assert sum(each.times is not None and each.times > 0 for each in told) == 32


def test_rows_that_do_not_tell_what_they_hold_are_unknown_not_unread(
    unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [unique.stream("mlm", "main"), unique.stream(WINDOWS, "second", weight=3.0)]
    plan = DataPlan(streams=in_order(streams), seed=4, global_batch=16, sequence=64)
    monkeypatch.delattr("atelier.engine.data.datasets.mlm.Masked.rows_with")
    [first] = found(unique, plan, "tokens.main", np.array([[0, 9]]), (0, 5), [])
    [second] = found(unique, plan, "tokens.second", np.array([[0, 9]]), (0, 5), [])
    assert (first.times, first.unknown) == (None, "rows of kind mlm do not tell what they hold")
    assert second.times is not None and not second.unknown


def test_a_recount_of_samples_agrees_with_a_record_or_says_where_it_does_not(unique: Unique) -> None:
    streams: list[Stream] = [unique.stream(WINDOWS, "main"), unique.stream("mlm", "main", weight=3.0)]
    plan = DataPlan(streams=in_order(streams), seed=4, global_batch=16, sequence=64)
    data = PlannedData(plan, unique.inputs, unique.folder)
    told = {name: {"samples": n, "epochs": round(e, 6)} for name, (n, e) in data.consumed(2, 9, [4]).items()}
    assert sum(each["samples"] for each in told.values()) == 6 * 16
    assert not data.disagreement(told, 2, 9, [4])
    assert data.disagreement(told, 2, 10, [4]).startswith("main/mlm: recounted")
    assert data.disagreement(told | {"more": told["main"]}, 2, 9, [4]).endswith("the recount does not know")
    assert data.disagreement(None, 2, 9) == "its record does not count the samples that it read"
    assert PlannedData(plan, {}, Path(unique.folder)).plan == plan


def test_spans_of_documents_leave_out_end_tokens_and_those_of_characters_are_exact_or_say_so(
    unique: Unique,
) -> None:
    source = unique.inputs["tokens.main"]
    text = TokenText(source, unique.folder, "train")
    spans = DocumentSpans(source, unique.vocabulary, unique.folder)
    ranges = spans.documents(range(len(spans)))
    assert (ranges == np.stack([text.begins_D, text.ends_D - 1], axis=1)).all()
    [begin, end] = ranges[1].tolist()
    words = unique.text(text.tokens_N[begin:end].tolist())
    third = words.index(" ", words.index(" ", 1) + 1)
    assert spans.characters(1, words, third + 1, third + 2) == (begin + 2, begin + 3, True)
    assert spans.characters(1, words, 0, len(words)) == (begin, end, True)
    assert spans.characters(1, words + " w1", third, third + 2) == (begin, end, False)


def test_no_token_is_read_in_an_empty_range(unique: Unique) -> None:
    plan = DataPlan(streams=(unique.stream(WINDOWS, "main"),), seed=4, global_batch=16, sequence=64)
    [reading] = found(unique, plan, "tokens.main", np.array([[70, 70]]), (0, 50), [])
    assert (reading.times, reading.whole, reading.first) == (0, 0, None)
