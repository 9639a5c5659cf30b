"""Schedule of rounds, and fragments of the weights, for drawn links and models."""

import math
import random

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.gpt import GPT
from atelier.engine.extensions.sites.config.train.link import Link
from atelier.engine.extensions.sites.rounds import Rounds, cut


def drawn(seed: int) -> tuple[Link, int]:
    """A link, and the steps of its training."""
    draw = random.Random(seed)
    fragments = draw.randint(1, 5)
    every = fragments * draw.randint(1, 6)
    link = Link(rows={"a": 1}, every=every, fragments=fragments, delay=draw.randrange(every))
    return link, every * draw.randint(1, 5)


@pytest.mark.parametrize(
    ("every", "fragments", "interval"), [(50, 1, 50), (50, 5, 10), (12, 12, 1), (6, 2, 3), (1, 1, 1)]
)
def test_a_message_comes_every_so_many_steps_by_its_number_of_fragments(
    every: int, fragments: int, interval: int
) -> None:
    link = Link(rows={"a": 1}, every=every, fragments=fragments)
    assert link.interval == interval and Link().interval == Link().every
    rounds = Rounds(link, 2 * every)
    assert [rounds.step_of(number) for number in (1, 2)] == [interval, 2 * interval]
    assert rounds.last == 2 * fragments


@pytest.mark.parametrize("seed", range(60))
def test_each_round_is_sent_once_and_taken_once_as_many_steps_later_all_by_the_end(seed: int) -> None:
    link, steps = drawn(seed)
    rounds = Rounds(link, steps)
    sent = {step: rounds.sent_at(step) for step in range(1, steps + 1) if rounds.sent_at(step)}
    taken = {number: step for step in range(1, steps + 1) for number in rounds.due_at(step)}
    assert list(sent.values()) == list(range(1, rounds.last + 1)) == sorted(taken)
    for step, number in sent.items():
        assert rounds.step_of(number) == step and taken[number] == min(steps, step + link.delay)
    for step in range(steps + 1):
        done = [number for number in taken if taken[number] <= step]
        assert rounds.done_by(step) == len(done) == max(done, default=0)


@pytest.mark.parametrize("seed", range(60))
def test_each_fragment_is_exchanged_once_in_every_so_many_steps_and_all_weights_in_the_last_round(
    seed: int,
) -> None:
    """And it is taken before it is sent again."""
    link, steps = drawn(seed)
    rounds = Rounds(link, steps)
    for begin in range(1, steps - link.every, link.every):
        numbers = [rounds.sent_at(step) for step in range(begin, begin + link.every) if rounds.sent_at(step)]
        found = [rounds.fragment(number) for number in numbers]
        assert sorted(found) == (list(range(1, link.fragments + 1)) if link.fragments > 1 else [0])
    assert rounds.fragment(rounds.last) == 0
    for number in range(1, rounds.last - link.fragments):
        assert rounds.due(number) < rounds.step_of(number + link.fragments)


@pytest.mark.parametrize("seed", range(20))
def test_blocks_stay_whole_and_no_fragment_has_more_than_the_least_and_a_block(seed: int) -> None:
    draw = random.Random(seed)
    spec = GPT(num_layers=draw.randint(1, 12), hidden=16, num_heads=2, vocab=draw.choice([10, 500]))
    sizes = {name: math.prod(shape) for name, shape in spec.shapes().items()}
    fragments = draw.randint(1, spec.num_layers)
    found = cut(sizes, fragments)
    assert len(found) == fragments and sorted(name for part in found for name in part) == sorted(sizes)
    blocks: dict[str, set[int]] = {}
    for number, part in enumerate(found):
        for name in part:
            if name.startswith("blocks."):
                blocks.setdefault(name.split(".")[1], set()).add(number)
    assert len(blocks) == spec.num_layers and all(len(held) == 1 for held in blocks.values())
    filled = [sum(sizes[name] for name in part) for part in found]
    block = sum(size for name, size in sizes.items() if name.startswith("blocks.0."))
    assert max(filled) - min(filled) <= max(block, sizes["embed.weight"])
    shuffled = list(sizes.items())
    draw.shuffle(shuffled)
    assert cut(dict(shuffled), fragments) == found


def test_more_fragments_than_blocks_are_refused() -> None:
    sizes = {"embed.weight": 4, "blocks.0.a": 1, "blocks.0.b": 1, "blocks.1.a": 1}
    assert cut(sizes, 3) == [{"embed.weight"}, {"blocks.0.a", "blocks.0.b"}, {"blocks.1.a"}]
    with pytest.raises(ConfigError, match=r"fragments: 4, and there are 3 blocks and weights outside"):
        cut(sizes, 4)
