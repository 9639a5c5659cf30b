"""Roles that detect replaced tokens: their rows, and equal bits after any stop."""

import math
import random
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.objective.hidden import Hidden
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Role, Trainable
from atelier.engine.config.schedule import WeightSchedule
from atelier.engine.extensions.detection.config.objective.replaced import Replaced
from atelier.engine.plan.checks import check_layout, check_teaching
from tests.engine.extensions.detection.detection import (
    MASKED,
    MIXED,
    SIZES,
    STEPS,
    detector,
    ernie,
    generator,
)
from tests.engine.extensions.sites.at_sites import killed_until_they_end
from tests.engine.row_inputs import harbour
from tests.engine.trainings import ONE, TrainingSetup, role, train

AT_REST = generator().model_copy(update={"optim": role(lr=1e-12).optim})
SHARE, LOSS = "objective/share/replaced", "objective/replaced"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return harbour(tmp_path_factory.mktemp("text"))


def trained(folder: Path, text: dict[str, str], roles: dict[str, Role], **more: Any) -> TrainingSetup:
    setup = TrainingSetup(folder, dict(text))
    setup.train(setup.training(roles, train(more.pop("steps", STEPS), **(SIZES | more))))
    return setup


def values(setup: TrainingSetup, name: str, key: str) -> dict[int, float]:
    return {line["step"]: line["values"][key] for line in setup.curve(name)}


def test_a_step_reads_what_its_generator_drew_a_fixed_number_of_steps_before(
    tmp_path: Path, text: dict[str, str]
) -> None:
    """How many tokens are replaced is a matter of the rows and the generator's weights alone."""
    late = {f"late{delay}": detector(delay) for delay in (1, 3)}
    setup = trained(tmp_path, text, {"generator": generator(), "now": detector(), **late})
    now = values(setup, "now", SHARE)
    assert len(set(now.values())) > STEPS // 2 and max(now.values()) < 0.4
    for delay in (1, 3):
        found = values(setup, f"late{delay}", SHARE)
        assert found == {step + delay: share for step, share in now.items() if step + delay <= STEPS}
        told = setup.summary(f"late{delay}")
        assert told["teacher_steps"] == [0, STEPS - delay - 1] and told["started_at"] == delay
        assert told["tokens"] == (STEPS - delay) * SIZES["global_batch"] * SIZES["sequence"]


def test_tokens_are_drawn_from_the_weights_of_that_step(tmp_path: Path, text: dict[str, str]) -> None:
    """A generator that does not move draws as one that does in its first step alone, and its training's seed
    draws others.
    """
    found = [
        values(trained(tmp_path / name, text, {"generator": each, "d": detector()}, **how), "d", LOSS)
        for name, each, how in (
            ("moves", generator(), {}),
            ("rests", AT_REST, {}),
            ("other", AT_REST, {"seed": 5}),
        )
    ]
    assert found[0][1] == found[1][1] != found[2][1]
    assert found[0][4] != found[1][4]


def test_a_generator_has_the_same_bits_whoever_detects(tmp_path: Path, text: dict[str, str]) -> None:
    more = {"now": detector(), "late": detector(2), "both": detector(own=MASKED)}
    found, forwards = set(), set()
    for number in (0, 1, 3):
        roles = {"generator": generator(), **dict(list(more.items())[:number])}
        setup = trained(tmp_path / str(number), text, roles)
        found.add((setup.weights("generator"), repr(setup.curve("generator"))))
        forwards.add(setup.summary("generator")["forwards"])
    assert len(found) == 1 and forwards == {2 * STEPS}


def test_rows_of_other_kinds_are_not_read(tmp_path: Path, text: dict[str, str]) -> None:
    """Their labels are the next tokens, which would count as replaced."""
    roles = {"generator": generator(MIXED), "d": detector()}
    setup = trained(tmp_path, text, roles)
    assert 0 < max(values(setup, "d", SHARE).values()) < 0.4
    assert values(setup, "d", "loss") == values(setup, "d", LOSS)


def test_a_detector_learns(tmp_path: Path, text: dict[str, str]) -> None:
    """More than how many tokens are replaced: one that says the same of all of them knows no more."""
    wide = detector().model_copy(update={"model": ernie(32, classes={"replaced": 1})})
    how = {"precision": "fp32", "global_batch": 16, "micro_batch": 16, "checkpoint_every": 100}
    setup = trained(tmp_path, text, {"generator": AT_REST, "d": wide}, steps=36, **how)
    lines = [line["values"] for line in setup.curve("d")][-20:]
    loss, share = (sum(line[key] for line in lines) / 20 for key in (LOSS, SHARE))
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    print(f"{loss:.3f} nats, {entropy:.3f} of a guess")
    assert loss < entropy - 0.1


@pytest.mark.parametrize("every", [pytest.param(3, marks=pytest.mark.slow), 5])
def test_stopped_and_begun_again_all_have_the_same_bits(
    tmp_path: Path, text: dict[str, str], every: int
) -> None:
    roles = {"generator": generator(), "now": detector(), "late": detector(3), "both": detector(1, MASKED)}
    whole, parts = (TrainingSetup(tmp_path / name, dict(text)) for name in ("whole", "parts"))
    whole.train(whole.training(roles, train(STEPS, **SIZES)))
    assert parts.train_in_pieces(parts.training(roles, train(STEPS, **SIZES)), every) >= 1
    for name in roles:
        assert parts.weights(name) == whole.weights(name), name
        assert parts.curve(name) == whole.curve(name)


def test_killed_and_begun_again_all_have_the_same_bits(tmp_path: Path, text: dict[str, str]) -> None:
    roles = {"generator": generator(), "now": detector(), "late": detector(2)}
    how = train(12, **(SIZES | {"checkpoint_every": 3}))
    whole, killed = (TrainingSetup(tmp_path / name, dict(text)) for name in ("whole", "killed"))
    whole.train(whole.training(roles, how))
    run = killed.run_file(killed.training(roles, how), layout=ONE)
    path = tmp_path / "killed.json"
    path.write_text(run.model_dump_json(by_alias=True))
    assert killed_until_they_end({"here": str(path)}, tmp_path, random.Random(3), 4) >= 2
    for name in roles:
        assert killed.weights(name) == whole.weights(name)
        assert killed.curve(name) == whole.curve(name)


def test_a_finished_generator_draws(tmp_path: Path, text: dict[str, str]) -> None:
    setup = trained(tmp_path, text, {"generator": generator()})
    before = setup.weights("generator")
    setup.inputs["finished"] = setup.as_input("generator")
    frozen = setup.member(
        "generator", generator(), STEPS, mode="frozen", output=False, segments=(), init="finished"
    )
    roles = {"generator": frozen, "d": detector(attach="frozen")}
    setup.train(setup.training(roles, train(STEPS, **SIZES)))
    assert setup.weights("generator") == before
    assert [line["step"] for line in setup.curve("d")] == list(range(1, STEPS + 1))


def test_a_student_of_a_detector_reads_what_it_reads(tmp_path: Path, text: dict[str, str]) -> None:
    pupil = role(8, shape=ernie(8), objective={"h": Hidden()}, teacher="d", start=1)
    alone = trained(tmp_path / "alone", text, {"generator": generator(), "d": detector(1)})
    setup = trained(tmp_path / "with", text, {"generator": generator(), "d": detector(1), "pupil": pupil})
    assert setup.weights("d") == alone.weights("d")
    assert setup.curve("pupil")[-1]["step"] == STEPS


ROWS = {"rows": {"a": 2, "b": 2}, "every": 5, "site": "a", "mailbox": "/x"}
ELASTIC = {"membership": {"kind": "elastic"}}
FINISHED = generator(trainable=Trainable(kind="none"), init="finished")
NO_HEAD = detector().model_copy(update={"model": ernie(16)})
LEAD = {"replaced": Replaced(schedule=WeightSchedule(kind="lead", nats=0.1))}


@pytest.mark.parametrize(
    ("roles", "how", "layout", "problem"),
    [
        ({"d": detector(2, start=1)}, {}, {}, "roles.d.start: step 1; .* in step 2; roles.d.start=2"),
        ({"generator": generator(start=1)}, {}, {}, r"roles.d.start: step 0; .* roles.d.start=1"),
        ({"d": detector(1, attach="frozen")}, {}, {}, "delay: 1, but generator is finished .* delay=0"),
        ({"d": NO_HEAD}, {}, {}, r"roles.d.model.classes: .* needs a head of its name with one logit"),
        ({"d": detector(gate=0.1, own=MASKED)}, {}, {}, "roles.d.gate: 0.1, but a detector"),
        ({"d": detector(period=2, own=MASKED)}, {}, {}, "roles.d.period: 2, but a detector"),
        ({"d": detector(own={"kd": Logits()})}, {}, {}, "roles.d.objective.kd: compares with generator"),
        ({"d": detector(own={"more": Replaced()})}, {}, {}, "objective.more: occurs twice"),
        ({"d": detector().model_copy(update={"objective": LEAD})}, {}, {}, "replaced: follows a lead"),
        ({"generator": generator({"lm": LM()})}, {}, {}, "d.teacher: generator must draw .* learns lm"),
        ({}, {"health": {"nan": "rollback"}}, {}, "train.health: rollback cannot be combined with"),
        ({}, {"link": ROWS}, {}, "train.link.rows: sites that average a model cannot"),
        ({}, {"link": ROWS | ELASTIC}, {}, "train.link.rows: sites that average a model cannot"),
        ({"generator": FINISHED}, {"link": ROWS | ELASTIC}, {}, "train.link.rows: .* with the detector d"),
        ({}, {}, {"roles": {"d": {"shard": 1}}}, "parallel.roles.d: .* their own layout"),
        ({"d": detector(1)}, {}, {"assignment": "static"}, "parallel.assignment: static, but d reads"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    roles: dict[str, Role], how: dict[str, Any], layout: dict[str, Any], problem: str
) -> None:
    good = {"generator": generator(), "d": detector()}

    def check(found: dict[str, Role], where: Parallel, **more: Any) -> None:
        check_layout(where, found, train(STEPS, **(SIZES | more)))
        check_teaching(found)

    check(good, ONE)
    with pytest.raises(ConfigError, match=problem):
        check(good | roles, Parallel.model_validate({"shard": 1} | layout), **how)


def test_another_vocabulary_is_refused() -> None:
    other = detector().model_copy(
        update={"model": ernie(16, classes={"replaced": 1}).model_copy(update={"vocab": 99})}
    )
    with pytest.raises(ConfigError, match="vocabulary of 400, but has 99"):
        check_teaching({"generator": generator(), "d": other})
