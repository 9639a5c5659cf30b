"""Traffic between sites in a report equals the sum of the metric lines."""

import random
from typing import Any

import pytest

from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.config.train.link import Link
from atelier.infra.report.link_use import LinkForm, form_of_link, link_use
from atelier.infra.tracking.curve import points

CODECS = (Codec(), Codec(kind="int8"), Codec(kind="int4"))
LINK = Link(rows={"a": 1, "b": 1}, every=6, delay=2, choose=CODECS)


def drawn(draw: random.Random, steps: int) -> list[Any]:
    """Lines of a training that sends every sixth step and takes the round two steps later."""
    lines: list[Any] = []
    for step in range(1, steps + 1):
        timing: dict[str, float] = {"step_s": draw.uniform(0.1, 0.2), "link_s": draw.uniform(0, 0.01)}
        if step % 6 == 0:
            timing |= {"link_bytes": draw.randrange(10**6), "link_codec": draw.randrange(3)}
        if step % 6 == 2 and step > 2:
            timing |= {"link_received_bytes": draw.randrange(10**6), "link_round": step // 6}
            timing |= {"link_delay_steps": 2, "link_wait_s": 0.01}
        lines.append({"step": step, "tokens": step, "values": {"loss": 1.0}, "timing": timing})
    return lines


@pytest.mark.parametrize("seed", range(20))
def test_bytes_seconds_and_codecs_are_those_of_the_lines(seed: int) -> None:
    draw = random.Random(seed)
    lines = drawn(draw, draw.randint(8, 90))
    use = link_use(lines, form_of_link(LINK))
    assert use is not None
    timings = [line["timing"] for line in lines]
    assert use.sent == sum(each.get("link_bytes", 0) for each in timings)
    assert use.received == sum(each.get("link_received_bytes", 0) for each in timings)
    assert use.messages == sum(use.codecs.values()) == len(lines) // 6
    assert {*use.codecs} <= {codec.text for codec in CODECS}
    linked, stepped = (sum(each[key] for each in timings) for key in ("link_s", "step_s"))
    assert use.stall == pytest.approx(linked / (linked + stepped)) and use.staleness == 2


def line(role: str, step: int, **timing: float) -> Any:
    return {"step": step, "role": role, "values": {}, "timing": timing}


def test_a_codec_that_the_link_does_not_have_is_a_number() -> None:
    """Of a model whose link is of another version."""
    use = link_use([line("m", 1, step_s=1.0, link_s=0.1, link_bytes=8, link_codec=2)], LinkForm())
    assert use is not None and use.codecs == {"codec 2": 1}


def test_the_stalls_of_all_roles_of_a_training_add_up_to_its_stall() -> None:
    """Each role's own seconds of contributions, those of all in each line of answers; another gang's steps do
    not count.
    """
    step_s, own = (1.0, 1.25), {"teacher": 0.5, "student": 0.25}
    curves = {
        role: [line(role, n + 1, step_s=each, link_s=link_s, link_bytes=8) for n, each in enumerate(step_s)]
        for role, link_s in own.items()
    }
    other = [line("alone", 1, step_s=0.75, link_s=9.0)]
    every = [*(one for lines in curves.values() for one in lines), *curves["teacher"], *other]
    uses = [link_use(lines, form_of_link(LINK), every) for lines in curves.values()]
    assert [use.seconds for use in uses if use] == [1.0, 0.5]
    assert sum(use.stall for use in uses if use) == pytest.approx(1.5 / (1.5 + sum(step_s)))
    apart = LinkForm(has_roles=True)
    same = {
        role: [line(role, n + 1, step_s=each, link_s=0.5, link_bytes=8) for n, each in enumerate(step_s)]
        for role in own
    }
    every = [one for lines in same.values() for one in lines]
    uses = [link_use(lines, apart, every) for lines in same.values()]
    assert sum(use.seconds for use in uses if use) == 1.0 and uses[0] and uses[0].cells[3:5] == ["", ""]
    assert sum(use.stall for use in uses if use) == pytest.approx(1.0 / (1.0 + sum(step_s)))


def test_a_training_at_one_site_has_no_such_row() -> None:
    lines: list[Any] = [{"step": 1, "values": {}, "timing": {"step_s": 0.1}}]
    assert link_use(lines, LinkForm()) is None and link_use([], LinkForm()) is None


def test_every_round_is_drawn_however_thin_its_curve_is() -> None:
    """Seconds of steps without one are as thin as the rest."""
    lines = drawn(random.Random(1), 6000)
    found = points(lines, set(), start=0, now=0.0)
    sent = {step: value for key, value, step, _ in found if key == "link/bytes_sent"}
    assert sent == {
        line["step"]: line["timing"]["link_bytes"] for line in lines if "link_bytes" in line["timing"]
    }
    assert {key for key, *_ in found if key.startswith("link/")} == {
        f"link/{name}"
        for name in (
            "seconds",
            "wait_seconds",
            "bytes_sent",
            "bytes_received",
            "codec",
            "round",
            "delay_steps",
        )
    }
    assert sum(key == "link/seconds" for key, *_ in found) < 0.6 * len(lines)
