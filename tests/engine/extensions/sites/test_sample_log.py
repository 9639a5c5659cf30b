"""The sample log: every sample is learned once, and samples that a site missed are assigned again."""

import random

import pytest

from atelier.engine.extensions.sites.sample_log import (
    RoundSamples,
    SampleLog,
    joined,
    size_of,
    taken,
    without,
)

ROWS = {"a": 3, "b": 1, "c": 2}


def rounds(seed: int, every: int = 4, count: int = 30) -> list[tuple[RoundSamples, set[str]]]:
    """Drawn rounds of which sites are missing, with who was in each."""
    draw = random.Random(seed)
    log, found = SampleLog(ROWS, every), list[tuple[RoundSamples, set[str]]]()
    for _ in range(count):
        expected = [*log.assigned]
        members = {site for site in expected if draw.random() < 0.7} or {draw.choice(expected)}
        following = members | {site for site in ROWS if draw.random() < 0.3}
        line = log.decided(members, following)
        found.append((line, members))
        log = SampleLog(ROWS, every, RoundSamples.model_validate_json(line.model_dump_json()))
    return found


def numbers(spans: tuple[tuple[int, int], ...]) -> list[int]:
    return [number for first, end in spans for number in range(first, end)]


@pytest.mark.parametrize("seed", range(50))
def test_every_sample_is_learned_once_or_is_to_be_assigned_again(seed: int) -> None:
    learned: list[int] = []
    for line, members in rounds(seed):
        for site, spans in line.assigned.items():
            assert size_of(spans) == 4 * ROWS[site]
            if site in members:
                learned += numbers(spans)
        following = [number for spans in line.next.values() for number in numbers(spans)]
        assert len(following) == len({*following}) and not {*following} & {*learned}
        waiting = numbers(line.again)
        assert sorted(learned + waiting + following) == [*range(line.fresh)]  # none lost, none twice


@pytest.mark.parametrize("seed", range(10))
def test_what_was_missed_comes_first(seed: int) -> None:
    before: tuple[tuple[int, int], ...] = ()
    for line, members in rounds(seed):
        missed = [
            number
            for site, spans in line.assigned.items()
            if site not in members
            for number in numbers(spans)
        ]
        due = sorted([*missed, *numbers(before)])
        following = sorted(number for spans in line.next.values() for number in numbers(spans))
        assert following[: len(due)] == due[: len(following)]
        before = line.again


def test_with_all_sites_nothing_is_assigned_again() -> None:
    log = SampleLog(ROWS, 4)
    for number in range(5):
        assert {site: [*spans] for site, spans in log.assigned.items()} == {
            "a": [(24 * number, 24 * number + 12)],
            "b": [(24 * number + 12, 24 * number + 16)],
            "c": [(24 * number + 16, 24 * number + 24)],
        }
        assert log.of_step("a", 2) == [24 * number + 6, 24 * number + 7, 24 * number + 8]
        log = SampleLog(ROWS, 4, log.decided(ROWS, ROWS))


@pytest.mark.parametrize("seed", range(30))
def test_spans_are_sets_of_samples(seed: int) -> None:
    draw = random.Random(seed)
    held, out = ({number for number in range(60) if draw.random() < 0.5} for _ in range(2))
    one, other = (
        joined((number, number + 1) for number in held),
        joined((number, number + 1) for number in out),
    )
    assert numbers(one) == sorted(held) and size_of(one) == len(held)
    assert numbers(without(one, other)) == sorted(held - out)
    skip, count = draw.randrange(20), draw.randrange(20)
    assert taken(one, skip, count) == sorted(held)[skip : skip + count]
