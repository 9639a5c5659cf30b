"""Identity: has all that changes a result, and nothing that only moves bits; existing identities
stay valid.
"""

from dataclasses import replace
from typing import Any

import pytest

from atelier.engine.config.base import canonical, fingerprint, parse
from atelier.engine.config.data import Tokenizer
from atelier.engine.config.error import ConfigError
from atelier.engine.config.identity_defaults import ABSENT
from atelier.engine.config.mixture import row_specs
from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.objective.attention import Attention
from atelier.engine.config.objective.chat import Chat
from atelier.engine.config.objective.distance import Distance
from atelier.engine.config.objective.document import DocumentLM
from atelier.engine.config.objective.hidden import Hidden
from atelier.engine.config.objective.knowledge import Knowledge
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.objective.reorder import Reorder
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.optim.muon import Muon
from atelier.engine.config.role import Role
from atelier.engine.config.schedule import Schedule, WeightSchedule
from atelier.engine.config.train import Health, Train
from atelier.engine.config.trajectory import Feed, in_teaching_order, resolve_starts, segments_of

MODEL = {"kind": "gpt", "num_layers": 2, "hidden": 64, "num_heads": 4}
FEED = Feed(parents={"tokens.main": "a" * 64, "tokenizer": "b" * 64}, identity={})


def role(**changes: object) -> Role:
    document = {"model": MODEL, "objective": {"lm": {"kind": "lm"}}, "optim": {"kind": "adamw", "lr": 1e-3}}
    return parse(Role, document | changes, "role")


def train(**changes: object) -> Train:
    return parse(Train, {"steps": 100, "global_batch": 8, "sequence": 64} | changes, "train")


STUDENT = {"objective": {"kd": {"kind": "logits"}}, "teacher": "teacher"}


def fingerprints(roles: dict[str, Role], settings: Train) -> dict[str, list[str]]:
    return {
        name: [part.fingerprint for part in parts]
        for name, parts in segments_of(roles, settings, FEED, {}).items()
    }


def test_a_phase_of_the_data_cuts_trajectories_and_their_trunk_is_that_of_runs_without_it() -> None:
    """Of a teacher and its student; of other phases too. A root that may roll back has no trunk."""
    more = Feed(parents={**FEED.parents, "tokens.more": "c" * 64}, identity={"phases": [[60, {"more": 1.0}]]})
    other = Feed(parents=more.parents, identity={"phases": [[60, {"more": 2.0}]]})
    roles = {"teacher": role(), "student": role(**STUDENT, start=40)}

    def parts(feed: Feed, **changes: object) -> dict[str, list[tuple[int, str, bool]]]:
        found = segments_of(roles, train(**changes), feed, {})
        return {
            name: [(each.end, each.fingerprint, "tokens.more" in each.parents) for each in every]
            for name, every in found.items()
        }

    plain, one, two = parts(FEED), *(parts(replace(FEED, later={60: each})) for each in (more, other))
    for name in roles:
        assert [end for end, _, reads in one[name] if not reads] == [60] and one[name][1][0] == 80
        assert one[name][0] == two[name][0] and one[name][1] != two[name][1]
        assert plain[name][0][:2] == (80, one[name][0][1])
    rolling = parts(replace(FEED, later={60: more}), health={"nan": "rollback"})
    assert [(end, reads) for end, _, reads in rolling["teacher"]] == [(100, True)]


def test_what_exists_keeps_its_identity() -> None:
    """Recorded fingerprints: when one of these changes, every artifact made before is orphaned."""
    assert fingerprint(GPT.model_validate(MODEL).as_identity()) == GOLDEN["gpt"]
    teacher, student = role(), role(**STUDENT, start=40)
    found = fingerprints({"teacher": teacher, "student": student}, train())
    assert [fp[:16] for fp in found["teacher"]] == GOLDEN["teacher"]
    assert [fp[:16] for fp in found["student"]] == GOLDEN["student"]


GOLDEN = {
    "gpt": "162c3666cfe4fb08ac8a35ade479bff3a656bb70482330bb02cb82937cb39abe",
    "teacher": ["e892011e882b9bdd", "f902e8c53e36b6e4"],
    "student": ["5f5fa6fe1abfae44", "16a521648ba99599", "d2a6324eb350d091"],
}


def test_what_defines_rows_is_identified_as_it_was_before_they_had_a_length() -> None:
    assert Reorder().numbers() == {"kind": "reorder", "rows": 1.0, "max_segments": 3}
    assert MLM().numbers().keys() == {"kind", "rows", "rate", "phrase_count", "phrase_bits"}
    assert MLM(sequence=32).numbers() == MLM().numbers() | {"sequence": 32}
    assert MLM(sequence=32).as_identity() != MLM().as_identity()


OBJECTIVES = [LM, Chat, Logits, MLM, DocumentLM, Reorder, Distance, Knowledge, Attention, Hidden]
SPECS = [GPT, Ernie, Net, *OBJECTIVES, Tokenizer, AdamW, Muon, Schedule, Role, Train, Health]


@pytest.mark.parametrize("spec", SPECS)
def test_the_table_of_absent_values_names_only_fields_that_there_are(spec: type) -> None:
    assert set(ABSENT.get(spec.__name__, {})) <= set(spec.model_fields)


def test_a_default_given_by_hand_is_the_same_thing() -> None:
    assert (
        role().as_identity()
        == role(model=MODEL | {"mlp": "swiglu", "tied": True}, teacher="", start=0).as_identity()
    )


@pytest.mark.parametrize(
    "change",
    [
        {"checkpoint_every": 7},
        {"keep": 9},
        {"keep_every": 300},
        {"keep_best": 2},
        {"micro_batch": 2},
        {"eval_every": 3},
        {"eval_sequences": 5},
        {"health": {"patience": 9, "rollbacks": 1, "hang_s": 60, "digest_every": 5, "straggler": 0}},
        {"health": {"nan": "skip", "spike": "off"}},
    ],
)
def test_how_it_is_run_is_not_identity(change: dict[str, object]) -> None:
    assert fingerprints({"m": role()}, train()) == fingerprints({"m": role()}, train(**change))


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"global_batch": 16},
        {"sequence": 128},
        {"precision": "fp32"},
        {"health": {"spike": "skip"}},
        {"health": {"nan": "stop"}},
    ],
)
def test_what_changes_the_result_is_identity(change: dict[str, object]) -> None:
    assert fingerprints({"m": role()}, train()) != fingerprints({"m": role()}, train(**change))


def test_a_role_is_known_by_its_seed_name_not_its_own() -> None:
    one = fingerprints({"a": role()}, train())["a"]
    assert fingerprints({"b": role(seed_name="a")}, train())["b"] == one
    assert fingerprints({"b": role()}, train())["b"] != one


def test_a_teacher_does_not_depend_on_its_students() -> None:
    alone = fingerprints({"teacher": role()}, train())["teacher"]
    taught = fingerprints({"teacher": role(), "s": role(**STUDENT), "t": role(**STUDENT, start=50)}, train())
    assert taught["teacher"] == alone


def test_a_student_depends_on_its_teacher_its_start_and_its_gate() -> None:
    def student(teacher: Role, **changes: object) -> list[str]:
        return fingerprints({"teacher": teacher, "s": role(**STUDENT | changes)}, train())["s"]

    found = [student(role()), student(role(optim={"kind": "adamw", "lr": 2e-3})), student(role(), start=10)]
    found.append(student(role(), gate=0.2))
    assert len({tuple(one) for one in found}) == 4


def test_replay_is_not_identity_and_frozen_is() -> None:
    def student(attach: str) -> list[str]:
        return fingerprints({"teacher": role(), "s": role(**STUDENT, attach=attach)}, train())["s"]

    assert student("refuse") == student("replay") != student("frozen")


def test_a_stable_phase_is_shared_by_longer_runs_and_a_cosine_is_not() -> None:
    def parts(kind: str, steps: int) -> list[str]:
        optim = {"kind": "adamw", "lr": 1e-3, "schedule": {"kind": kind}}
        return fingerprints({"m": role(optim=optim)}, train(steps=steps))["m"]

    assert parts("constant", 100) == parts("constant", 200)
    assert parts("wsd", 100)[0] == parts("wsd", 200)[0] == parts("constant", 100)[0]
    assert parts("wsd", 100)[1] != parts("wsd", 200)[1]
    assert parts("cosine", 100) != parts("cosine", 200)


def test_decays_of_both_shapes_share_a_stable_phase() -> None:
    def parts(**decay: object) -> list[str]:
        schedule = {"kind": "wsd", "decay": 0.25} | decay
        return fingerprints({"m": role(optim={"kind": "adamw", "lr": 1e-3, "schedule": schedule})}, train())[
            "m"
        ]

    line, curve = parts(), parts(shape="exponential")
    assert line[0] == curve[0] == parts(shape="exponential", half_life=7)[0]
    assert len({line[1], curve[1], parts(shape="exponential", half_life=7)[1]}) == 3


def test_a_root_that_may_roll_back_shares_no_trunk_and_its_students_do() -> None:
    constant = {"kind": "adamw", "lr": 1e-3, "schedule": {"kind": "constant"}}

    def parts(steps: int, **optim: object) -> dict[str, list[str]]:
        roles = {"teacher": role(**optim), "s": role(**STUDENT)}
        return fingerprints(roles, train(steps=steps, health={"spike": "rollback"}))

    assert [len(found) for found in parts(100).values()] == [1, 2]
    assert parts(100)["teacher"] != parts(200)["teacher"]
    assert parts(100)["s"][0] != parts(200)["s"][0], "its teacher is another one"
    assert parts(100, optim=constant)["teacher"] != parts(200, optim=constant)["teacher"]


def test_a_student_is_cut_where_its_teacher_first_depends_on_the_end() -> None:
    constant = {"kind": "adamw", "lr": 1e-3, "schedule": {"kind": "constant"}}
    parts = segments_of(
        {"teacher": role(), "s": role(**STUDENT, optim=constant, start=40)}, train(), FEED, {}
    )
    assert [(part.start, part.end) for part in parts["teacher"]] == [(0, 80), (80, 100)]
    assert [(part.start, part.end) for part in parts["s"]] == [(40, 80), (80, 100)]
    assert parts["s"][1].parents["teacher"] == parts["teacher"][1].fingerprint


def test_a_gate_that_measures_otherwise_is_another_training_and_an_open_one_is_as_it_was() -> None:
    def gate(**more: Any) -> Any:
        parts = segments_of({"teacher": role(), "s": role(**STUDENT, **more)}, train(), FEED, {})
        return parts["s"][0].identity.get("gate", "open")

    assert gate() == "open" and gate(gate=0.25) == {"nats": 0.25, "version": 2}


def test_a_lead_that_is_measured_otherwise_is_another_training_where_a_weight_follows_it() -> None:
    def lead(schedule: dict[str, Any]) -> Any:
        objective = {"lm": {"kind": "lm"}, "kd": {"kind": "logits", "schedule": schedule}}
        student = role(**STUDENT | {"objective": objective})
        return segments_of({"teacher": role(), "s": student}, train(), FEED, {})["s"][0].identity.get("lead")

    assert lead({"kind": "lead", "nats": 0.3}) == 2 and lead({"kind": "linear"}) is None


def test_a_fraction_becomes_a_step_and_a_circle_is_refused() -> None:
    assert resolve_starts({"m": role(start=0.5)}, train())["m"].start == 50
    with pytest.raises(Exception, match="cycle"):
        in_teaching_order({"a": role(**STUDENT | {"teacher": "b"}), "b": role(**STUDENT | {"teacher": "a"})})


def test_numbers_have_one_spelling() -> None:
    assert canonical({"b": 1.0, "a": [1, 2e-3]}) == b'{"a":[1,0.002],"b":1.0}'


def test_where_a_student_leaves_is_its_horizon_and_moves_nobody_else() -> None:
    def found(**more: Any) -> dict[str, Any]:
        roles = resolve_starts({"teacher": role(), "s": role(**STUDENT, **more)}, train())
        return segments_of(roles, train(), FEED, {})

    stays, leaves = found(), found(end=0.5)
    assert stays["teacher"] == leaves["teacher"]
    assert leaves["s"][-1].end == 50
    assert stays["s"][-1].fingerprint != leaves["s"][-1].fingerprint
    with pytest.raises(ConfigError, match=r"roles\.s\.end: step 30 is not between its start at 40"):
        found(start=40, end=30)
    with pytest.raises(ConfigError, match=r"roles\.teacher\.end: step 50, but its student s ends"):
        resolve_starts({"teacher": role(end=50), "s": role(**STUDENT)}, train())


@pytest.mark.parametrize("kind", [GPT, Ernie, LM, Logits, MLM, AdamW, Muon, Schedule])
def test_a_changed_meaning_moves_only_what_uses_that_kind(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, student = role(), role(**STUDENT, start=40)
    before = fingerprints({"teacher": teacher, "student": student}, train())
    monkeypatch.setattr(kind, "VERSION", 2)
    after = fingerprints({"teacher": teacher, "student": student}, train())
    moved = {name for name in before if before[name] != after[name]}
    used = {
        GPT: {"teacher", "student"},
        AdamW: {"teacher", "student"},
        Schedule: {"teacher", "student"},
        LM: {"teacher", "student"},  # a student's identity holds its teacher's trajectory
        Logits: {"student"},
    }
    assert moved == used.get(kind, set())


def moving(**schedule: object) -> Role:
    objective = {"lm": {"kind": "lm"}, "kd": {"kind": "logits", "schedule": {"kind": "linear"} | schedule}}
    constant = {"kind": "adamw", "lr": 1e-3, "schedule": {"kind": "constant"}}
    return role(objective=objective, teacher="teacher", optim=constant)


def test_a_weight_that_moves_cuts_a_trajectory_as_a_rate_does() -> None:
    """Before it moves it is a constant one's, in a training of any length."""
    teacher = role(optim={"kind": "adamw", "lr": 1e-3, "schedule": {"kind": "constant"}})

    def of(spec: Role, steps: int = 100) -> list[str]:
        return fingerprints({"teacher": teacher, "s": spec}, train(steps=steps))["s"]

    plain = moving().model_copy(update={"objective": {"kd": Logits(), "lm": LM()}})
    half, longer = of(moving(begin=50)), of(moving(begin=50), 200)
    assert len(half) == len(longer) == 2
    assert half[0] == longer[0] == of(plain)[0] and half[1] != longer[1]
    assert of(moving(begin=20, end=60)) == of(moving(begin=20, end=60), 200), "steps: no end is in it"
    assert of(moving(begin=20, end=60)) != of(plain)
    assert len(of(moving())) == 1 and of(moving()) != of(moving(), 200)
    weaker = moving(begin=50, first=0.5)
    assert (
        of(weaker)[0]
        == of(plain.model_copy(update={"objective": {"kd": Logits(weight=0.25), "lm": LM()}}))[0]
    )


def test_a_weight_that_does_not_move_is_what_it_always_was() -> None:
    assert Logits(schedule=WeightSchedule()).as_identity() == {"kind": "logits"}


def finished(**changes: object) -> Role:
    return role(init="guest", trainable={"kind": "none"}, **changes)


def test_a_student_of_a_finished_model_names_it_and_has_its_identity_whatever_attach_says() -> None:
    def found(model: str, **more: object) -> list[str]:
        roles = {"teacher": finished(), "s": role(**STUDENT | more)}
        parts = segments_of(roles, train(), FEED, {"teacher": model})
        assert parts["teacher"] == []
        assert {part.parents["teacher"] for part in parts["s"]} == {model}
        return [part.fingerprint for part in parts["s"]]

    one = found("c" * 64)
    assert one == found("c" * 64, attach="frozen") == found("c" * 64, attach="replay") != found("d" * 64)


def test_a_finished_model_makes_no_rows_its_students_do() -> None:
    """What makes them is in the student's identity; of the finished model nothing but its weights is."""
    text = {"mlm": {"kind": "mlm"}, "kd": {"kind": "logits"}}
    student = role(objective=text, teacher="teacher")
    same = finished(objective={"mlm": {"kind": "mlm"}})
    assert row_specs({"teacher": same, "s": student}) == row_specs({"s": student})
    other = finished(objective={"mlm": {"kind": "mlm", "rows": 0.9}})
    with pytest.raises(
        ConfigError, match=r"roles.teacher.objective: differs in the rows that it shares with s"
    ):
        row_specs({"teacher": other, "s": student})
    with pytest.raises(ConfigError, match=r"roles.teacher.objective: reads windows, but s"):
        row_specs({"teacher": finished(), "s": student})
    assert row_specs({"teacher": finished(), "s": role(**STUDENT)}) == {}


@pytest.mark.parametrize("idle", [{"start": 0.5}, {"period": 2}, {"seed_name": "x"}])
def test_what_does_nothing_for_a_finished_model_is_refused(idle: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(idle))} does nothing where trainable.kind=none"):
        finished(**idle)
    with pytest.raises(ConfigError, match="give init="):
        role(trainable={"kind": "none"})


def test_only_a_student_with_padding_that_compares_logits_has_another_identity_than_before() -> None:
    """Padding had mass in the comparison."""

    def said(**model: Any) -> Any:
        net = GPT(num_layers=1, hidden=16, num_heads=2, vocab=30, **model)
        roles = {"teacher": role(model=net), "s": role(**STUDENT, model=net)}
        return {
            name: parts[0].identity.get("padding")
            for name, parts in segments_of(roles, train(), FEED, {}).items()
        }

    assert said() == {"teacher": None, "s": None}
    assert said(vocab_padding=4) == {"teacher": None, "s": 2}
