"""A student of two finished teachers: each on all of the text, or on some sources of it."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.mixture import Stream, check_sources
from atelier.engine.config.objective.hidden import Hidden
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Training
from atelier.engine.config.trajectory import Feed, in_teaching_order, segments_of
from atelier.engine.loop.stage import RoleModel
from atelier.engine.plan.checks import check_teaching
from tests.engine.trainings import TrainingSetup, model, role, tokens, train
from tests.parity.cases import finished_model

STEPS = 6


def taught(
    setup: TrainingSetup, objective: dict[str, ObjectiveSpec], *, lr: float = 1e-2, steps: int = STEPS
) -> Training:
    """`first` and `second` teach a student; text of two sources."""
    if "tokens.more" not in setup.inputs:
        setup.inputs["tokens.more"] = tokens(setup.folder / "more", seed=8)
    members = {
        "first": finished_model(setup, "first", model(32), seed=1),
        "second": finished_model(setup, "second", model(48), seed=2),
        "student": role(16, teacher="first", objective=objective, lr=lr),
    }
    how = train(steps, precision="fp64", global_batch=8, eval_every=STEPS)
    streams = (Stream(input="tokens"), Stream(input="tokens.more", weight=0.5))
    return setup.training(members, how).model_copy(update={"streams": streams})


def steps_of(setup: TrainingSetup) -> list[dict[str, Any]]:
    found = [line["values"] for line in setup.curve("student")]
    assert len(found) == STEPS
    return found


def test_two_teachers_that_are_one_teach_as_it_does(tmp_path: Path) -> None:
    """Half the weight to each role of the same model: the same losses."""
    curves = []
    ways: list[dict[str, ObjectiveSpec]] = [
        {"kd": Logits(weight=1.0)},
        {"kd": Logits(weight=0.25), "again": Logits(weight=0.75, teacher="second")},
    ]
    for number, way in enumerate(ways):
        setup = TrainingSetup(tmp_path / str(number))
        training = taught(setup, {"lm": LM(), **way})
        same = finished_model(setup, "twin", model(32), seed=1)
        setup.train(training.model_copy(update={"members": {**training.members, "second": same}}))
        curves.append([line["loss"] for line in steps_of(setup)])
    assert curves[0] == pytest.approx(curves[1], abs=1e-10)


def test_each_teacher_teaches_its_sources(tmp_path: Path) -> None:
    """The means over two sources are the mean over all rows, in their shares."""
    setup = TrainingSetup(tmp_path)
    objective: dict[str, ObjectiveSpec] = {
        "lm": LM(),
        "kd": Logits(),
        "all": Logits(teacher="second"),
        "more": Logits(teacher="second", sources=("more",)),
        "rest": Logits(teacher="second", sources=("",)),
    }
    setup.train(taught(setup, objective, lr=1e-12))
    shares = []
    for line in steps_of(setup):
        both, more, rest = (line.get(f"objective/{name}") for name in ("all", "more", "rest"))
        if more is None or rest is None:  # the step has rows of one source only
            assert both == pytest.approx(more or rest, abs=1e-12)
            shares.append(8.0 if rest is None else 0.0)
            continue
        assert abs(more - rest) > 1e-3 and abs(line["objective/kd"] - both) > 1e-2
        shares.append(8 * (both - rest) / (more - rest))
    assert shares == pytest.approx([round(share) for share in shares], abs=0.05)  # rows of 15 or 16 labels
    assert 1 < sum(shares) / len(shares) < 5  # a third of eight rows


def test_it_stops_and_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    objective: dict[str, ObjectiveSpec] = {
        "lm": LM(),
        "kd": Logits(),
        "words": Logits(teacher="second", sources=("more",)),
        "states": Hidden(teacher="second"),
    }
    whole, pieces = TrainingSetup(tmp_path / "whole"), TrainingSetup(tmp_path / "pieces")
    whole.train(taught(whole, objective))
    assert pieces.train_in_pieces(taught(pieces, objective), 2) >= 2
    assert whole.weights("student") == pieces.weights("student")


def test_a_teacher_is_asked_in_the_steps_in_which_it_teaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[int] = Counter()
    infer_one = RoleModel.infer_one

    def counted(self: RoleModel, index: int, *more: Any) -> None:
        asked[self.stages[0].model.spec.hidden] += 1
        infer_one(self, index, *more)

    monkeypatch.setattr(RoleModel, "infer_one", counted)
    setup = TrainingSetup(tmp_path)
    training = taught(setup, {"lm": LM(), "kd": Logits(), "words": Logits(teacher="second")})
    late = training.members["student"].role.model_copy(update={"period": 3})
    members = training.members | {"student": training.members["student"].model_copy(update={"role": late})}
    setup.train(training.model_copy(update={"members": members}))
    each = 4  # micro-batches of a step; the first teacher's loss is always needed, for its lead
    assert asked[32] == STEPS * each and asked[48] == 2 * each


def roles(**more: Role) -> dict[str, Role]:
    from atelier.engine.config.role import Trainable

    done = Trainable(kind="none")
    objective = {"lm": LM(), "kd": Logits(), "words": Logits(teacher="second", sources=("main",))}
    return {
        "first": role(32, init="one", trainable=done),
        "second": role(48, init="two", trainable=done),
        "student": role(16, teacher="first", objective=objective),
    } | more


def test_the_record_names_both_models_and_not_their_roles() -> None:
    inits = {"first": "f" * 64, "second": "e" * 64}
    [segment] = segments_of(roles(), train(), Feed({}, {}), inits)["student"]
    assert segment.parents == {"teacher": "f" * 64, "teacher.words": "e" * 64}
    assert "second" not in str(segment.identity)
    renamed = roles(other=roles()["second"])
    del renamed["second"]
    words = Logits(teacher="other", sources=("main",))
    student = renamed["student"]
    renamed["student"] = student.model_copy(update={"objective": {**student.objective, "words": words}})
    found = segments_of(renamed, train(), Feed({}, {}), inits | {"other": "e" * 64})["student"]
    assert found == [segment]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"second": role(48)}, "student.objective.words.teacher: second is trained here"),
        (
            {"pupil": role(16, teacher="second", objective={"lm": LM(), "kd": Logits()})},
            "second is also the teacher of pupil; add a role for the same model, with init=two",
        ),
        (
            {
                "student": role(
                    16,
                    teacher="first",
                    objective={"lm": LM(), "a": Hidden(), "b": Hidden(teacher="second")},
                )
            },
            "compares hidden states with first and second, but has only one projection",
        ),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Role], says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("(", r"\(")):
        check_teaching(roles(**changed))


def test_unknown_names_are_refused_with_the_nearest() -> None:
    objective = {"lm": LM(), "kd": Logits(), "words": Logits(teacher="secnd", sources=("mian",))}
    wrong = roles(student=role(16, teacher="first", objective=objective))
    with pytest.raises(ConfigError, match=r"roles.student.objective.words.teacher.*did you mean second"):
        in_teaching_order(wrong)
    with pytest.raises(ConfigError, match=r"roles.student.objective.words.sources.*did you mean main"):
        check_sources(wrong, ["main", "other"])
    with pytest.raises(ValueError, match="has teacher first but no objective that uses it"):
        role(16, teacher="first", objective={"lm": LM(), "words": Logits(teacher="second")})


def test_vocabularies_that_differ_are_refused_for_either_teacher(tmp_path: Path) -> None:
    setup = TrainingSetup(tmp_path)
    training = taught(setup, {"lm": LM(), "kd": Logits(), "words": Logits(teacher="second")})
    other = model(48).model_copy(update={"vocab": 65})
    members = training.members | {"second": finished_model(setup, "odd", other, seed=3)}
    with pytest.raises(ConfigError, match="65 tokens, the student's 64"):
        setup.train(training.model_copy(update={"members": members}))
