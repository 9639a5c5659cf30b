"""Refusals of layouts that cannot assign samples by cost, and of logs that do not fit; keys of the
assignment.
"""

from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.base import FieldPlace, parse
from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import Experts
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.router.topk import TopK
from atelier.engine.config.sections import extensions_of, keys_with, value_of
from tests.engine.plan.test_checks import check
from tests.engine.trainings import ONE, TrainingSetup, laid_out, role, student, train

REFUSED = {
    "samples by cost in a pipeline": (
        {"pipeline": 2, "assignment": "static"},
        {},
        "parallel.assignment: static, but pipeline=2 needs micro-batches of one shape",
    ),
    "samples by cost for a student elsewhere": (
        {"tensor": 2, "assignment": "static", "roles": {"s": {"shard": 2}}},
        {},
        "parallel.assignment: static, but s have their own layout",
    ),
    "samples by cost in compiled blocks": (
        {"assignment": "measured", "compile": "block"},
        {},
        "parallel.assignment: measured, but compile=block needs micro-batches of one shape",
    ),
    "samples by cost, whose tokens compete": (
        {"assignment": "static"},
        {"num_experts": 4, "experts": Experts(router=TopK(capacity=1.0))},
        "parallel.assignment: static splits groups of rows whose tokens compete for experts of teacher",
    ),
    "speeds of equal numbers": (
        {"speed_log": ((0, 1.0),)},
        {},
        "parallel.speed_log: is given, but parallel.assignment is rows; use parallel.assignment=static",
    ),
    "speeds of other ranks": (
        {"shard": 2, "assignment": "static", "speed_log": ((0, 1.0),)},
        {},
        "parallel.speed_log: [0.0, 1.0] must be a step and 2 speeds above 0, one per data rank; "
        "for example [[0, 1, 1]]",
    ),
    "speeds that go back": (
        {"assignment": "static", "speed_log": ((4, 1.0), (2, 1.0))},
        {},
        "parallel.speed_log: its steps [4, 2] are not ascending; sort them",
    ),
}


@pytest.mark.parametrize(("layout", "model", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_assigned_by_cost_is_refused(
    layout: dict[str, Any], model: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check(model, **layout)
    assert problem in str(refused.value)


def test_a_replay_with_measured_speeds_is_refused_before_it_ends_in_other_bits(
    tmp_path: Path,
) -> None:
    training_setup = TrainingSetup(tmp_path)
    teacher = training_setup.member("teacher", role(), 8, mode="replay", output=False, digest="0" * 64)
    training = training_setup.training({"teacher": teacher, "s": student()}, train(8))
    with pytest.raises(ConfigError, match=r"measured, but teacher is replayed.*; use assignment=static"):
        training_setup.train(training, layout=laid_out(assignment="measured"))


def test_a_key_is_a_word_or_a_list_in_documents_and_errors() -> None:
    layout = laid_out(assignment="static", speed_log=[[0, 2.0]])
    said = layout.model_dump(mode="json")
    assert said["assignment"] == "static" and said["speed_log"] == [[0, 2.0]]
    assert Parallel.model_validate(said) == layout and extensions_of(layout) == {"assignment"}
    assert value_of(layout, "assignment") == "static" and keys_with(layout, "names_ranks") == ["speed_log"]
    with pytest.raises(ConfigError, match=r"^parallel.assignment: .*'rows', 'static' or 'measured'.*'cost'"):
        parse(Parallel, {"assignment": "cost"}, "parallel")
    with pytest.raises(ConfigError, match=r"^parallel.speed_log.0.1: .*number.*'fast'"):
        parse(Parallel, {"speed_log": [[0, "fast"]]}, "parallel")
    place = FieldPlace("parallel", Parallel, {}).down("assignment")
    assert place is not None and place.field is not None and place.spec is None
    assert place.choices() == ["rows", "static", "measured"] and place.field.default == "rows"
    assert place.about.startswith("samples of a data rank: ")


def test_what_an_older_record_says_of_a_default_is_the_default() -> None:
    assert laid_out(assignment="rows", speed_log=[]) == ONE
    assert not extensions_of(ONE) and value_of(ONE, "assignment") is None
