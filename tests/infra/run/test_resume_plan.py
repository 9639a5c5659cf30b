"""Refusals before a gang starts: a student that comes after its start, by plan and run."""

import hashlib
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.record import FileEntry, Record
from atelier.engine.config.trajectory import Segment
from atelier.engine.io.storage import join, write_bytes
from atelier.engine.io.weight_files import WEIGHTS, shard_name
from atelier.flows.cli.main import run
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.infra.code import code_change
from atelier.infra.code.code_change import Map, digest_of, files_of
from atelier.infra.code.code_map import maps_of
from atelier.infra.dag import Node
from atelier.infra.run.resume_plan import Resume, _code_of, members, other_code, resume_plan
from atelier.infra.store.lease import Holder
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import code_place
from atelier.tasks import train

ACCEPTED = Resume(accept_code=True)  # the checkpoints here are empty: they do not say by which code
WORDS = ("experiment=tiny", "tracker=none")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
    return Store(str(tmp_path / "store"))


def late(store: Store, *words: str) -> Node:
    """The training of a teacher that is past the start of its students."""
    nodes = collect_nodes(compose("distill", [*WORDS, *words]), store)
    node = next(node for node in nodes if node.task == "train" and len(node.products) > 1)
    roles, _, parts = train.unpack(node)
    starts = [parts[name][0].start for name, role in roles.items() if role.teacher]
    step = max(starts) + 1
    part = next(part for part in parts["teacher"] if part.start < step <= part.end)
    folder = join(store.address("trajectory", part.fingerprint), "checkpoints", f"step-{step:08d}")
    write_bytes(join(folder, "manifest.json"), b"")  # of whose code nothing is known
    return node


def test_a_student_that_comes_too_late_is_refused_by_the_survey_the_plan_and_the_run(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    node = late(store)
    found = train.plan_resume(node, store, ACCEPTED)
    students = {name for name, role in train.unpack(node)[0].items() if role.teacher}
    assert found.refused == students and students
    assert run(["plan", "distill", *WORDS, "--accept-code"]) == 2
    assert "attach=replay" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="attach=frozen"):
        train.run(node, cast(Any, SimpleNamespace(store=store, resume=ACCEPTED)))


def test_who_says_how_to_attach_is_not_refused(store: Store) -> None:
    node = late(store, "roles.student_a.attach=replay")
    assert train.plan_resume(node, store, ACCEPTED).refusals == ()


BEHIND = (
    "experiment=detector", "tracker=none", "roles.student_a.start=40",
    "roles.student_a.objective.replaced.delay=3",
)  # fmt: skip


@pytest.mark.parametrize(
    ("at", "drawn", "replay_from", "from_step"),
    [
        ((37,), (), None, 37),  # it draws what is missing
        ((37, 38), (37,), None, 38),
        ((30, 38), (36,), 30, 30),
        ((37, 40), (37, 38, 39), None, 40),
        ((37, 40), (38, 39), 37, 37),
        ((37, 41), (38, 39, 40), 37, 37),  # past its start
    ],
)
def test_a_role_that_detects_begins_where_its_generator_has_the_tokens_that_it_learns_from(
    store: Store, at: tuple[int, ...], drawn: tuple[int, ...], replay_from: int | None, from_step: int
) -> None:
    nodes = collect_nodes(compose("distill", [*BEHIND]), store)
    node = next(node for node in nodes if node.task == "train" and len(node.products) > 1)
    part = train.unpack(node)[2]["teacher"][0]
    for step in at:
        values = [[["drawn", str(each), "ids"], [1]] for each in drawn] if step == at[-1] else []
        manifest = json.dumps({"values": [[["counts", "tokens"], 3], *values]}).encode()
        address = store.address("trajectory", part.fingerprint)
        write_bytes(join(address, "checkpoints", f"step-{step:08d}", "manifest.json"), manifest)
    found = train.plan_resume(node, store, ACCEPTED)
    assert found.from_step == from_step
    told = [str(each) for each in found.refusals]
    assert len(told) == (replay_from is not None)
    if replay_from is not None:
        assert "past step 37, whose lessons its first step, 40, needs; attach=replay trains" in told[0]
        assert f"again from step {replay_from} " in told[0] and "frozen" not in told[0]


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_teacher_is_replayed_to_the_digest_of_its_weights_in_one_file_or_in_shards(
    store: Store, num_shards: int
) -> None:
    node = late(store, "roles.student_a.attach=replay")
    roles = train.unpack(node)[0]
    product = node.products["teacher"]
    names = [shard_name(n + 1, num_shards) for n in range(num_shards)] if num_shards > 1 else [WEIGHTS]
    files = tuple(
        FileEntry(path=f"payload-1/{name}", bytes=1, sha256=f"{n:064d}") for n, name in enumerate(names)
    )
    record = Record(
        kind=product.kind, name=product.name, fingerprint=product.fingerprint, version=product.version,
        identity=product.identity, parents=product.parents, files=files,
    )  # fmt: skip
    store.publish(record, Holder.me())
    maps = maps_of(node)
    found = train.plan_resume(node, store, ACCEPTED)
    teacher = members(found, roles, train.models_of(node), store, {}, 300, maps, ACCEPTED)["teacher"]
    assert teacher.mode == "replay"
    lines = "".join(f"{name} {n:064d}\n" for n, name in enumerate(names))
    over_shards = hashlib.sha256(lines.encode()).hexdigest()
    assert teacher.digest == ("0" * 64 if num_shards == 1 else over_shards)


CHAIN = (
    "+role@roles.pupil=student", "roles.pupil.teacher=student_a", "roles.pupil.start=20", "train.steps=40",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(24))
def test_who_takes_steps_has_a_teacher_that_does_or_is_taken_as_finished(store: Store, seed: int) -> None:
    """Three roles, each the teacher of the next, as drawn: finished or not, with what checkpoints."""
    draw = random.Random(seed)
    attach = {name: draw.choice(("replay", "replay", "frozen")) for name in ("student_a", "pupil")}
    words = [f"roles.{name}.attach={how}" for name, how in attach.items()]
    nodes = collect_nodes(compose("distill", [*WORDS, *CHAIN, *words]), store)
    node = next(node for node in nodes if node.task == "train" and len(node.products) > 1)
    roles, _, parts = train.unpack(node)
    finished = [name for name in ("teacher", "student_a") if draw.random() < 0.7]
    for name in ("teacher", "student_a", "pupil"):
        kept = [40] if name in finished and draw.random() < 0.7 else []
        for step in [*draw.sample((12, 16, 20, 30), draw.randint(0, 2)), *kept]:
            part = next((part for part in parts[name] if part.start < step <= part.end), None)
            if part is not None:
                address = store.address("trajectory", part.fingerprint)
                write_bytes(join(address, "checkpoints", f"step-{step:08d}", "manifest.json"), b"")
    found = resume_plan(
        roles, parts, train.models_of(node), store, node=node.name, maps=maps_of(node), resume=ACCEPTED,
        finished=finished,
    )  # fmt: skip
    moving = {name for name, one in found.situations.items() if one.has_steps}
    assert "pupil" in moving
    for name in moving:
        teacher = roles[name].teacher
        is_frozen = teacher in finished and attach.get(name) == "frozen"
        assert not teacher or (teacher in moving) != is_frozen
        assert not teacher or (found.situations[teacher].mode == "frozen") == is_frozen
        assert (
            found.from_step in found.situations[name].standing.steps
            or found.from_step <= parts[name][0].start
        )
    assert [name for name in roles if name in found.situations] == [*found.situations]


OLD = {"engine/spec/a.py": {"": "before"}}
NEW = {"engine/config/a.py": {"": "now"}}


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """OLD became NEW by moving alone."""
    before = {"engine/spec/a.py": [files_of(OLD)["engine/spec/a.py"], "engine/config/a.py"]}
    monkeypatch.setattr(code_change, "_table", lambda: (before, files_of(NEW)))


def begun(store: Store, codes: list[str], maps: dict[int, Map]) -> list[Segment]:
    """A role's trunk and branch; a checkpoint of the branch says by which codes, segments keep these maps."""
    node = next(n for n in collect_nodes(compose("distill", [*WORDS]), store) if n.task == "train")
    segments = max(train.unpack(node)[2].values(), key=len)
    assert len(segments) > 1
    branch = store.address("trajectory", segments[-1].fingerprint)
    manifest = json.dumps({"codes": codes}).encode()
    write_bytes(join(branch, "checkpoints", f"step-{segments[-1].end:08d}", "manifest.json"), manifest)
    for index, code in maps.items():
        place = code_place(store.address("trajectory", segments[index].fingerprint), digest_of(code))
        write_bytes(place, json.dumps(code).encode())
    return segments


@pytest.mark.parametrize("index", [0, -1], ids=["in the trunk", "in the branch"])
def test_moved_code_goes_on_under_the_digest_that_it_had(store: Store, table: None, index: int) -> None:
    segments = begun(store, [digest_of(OLD)], {index: OLD})
    assert _code_of(segments, NEW, store) == (segments[-1].end, digest_of(OLD), ())
    assert other_code("train", "teacher", segments, NEW, store, None) is None


def test_a_training_whose_code_is_lost_is_refused(store: Store, table: None) -> None:
    refused = other_code("train", "teacher", begun(store, [digest_of(OLD)], {}), NEW, store, None)
    assert refused is not None and refused.changes == ("engine/config/a.py (new)",)
    unknown = other_code("train", "teacher", begun(store, [], {}), NEW, store, None)
    assert unknown is not None and "its code was not recorded" in str(unknown)


def test_moved_code_that_was_changed_besides_is_refused(store: Store, table: None) -> None:
    changed = {"engine/config/a.py": {"": "changed"}}
    segments = begun(store, [digest_of(OLD)], {-1: OLD})
    refused = other_code("train", "teacher", segments, changed, store, None)
    assert refused is not None and refused.changes == ("engine/config/a.py",)


def test_every_setting_of_a_score_is_part_of_what_it_is(store: Store) -> None:
    def fingerprints(*words: str) -> set[str]:
        nodes = collect_nodes(compose("pretrain", [*WORDS, *words]), store)
        products = (p for node in nodes if node.task == "score" for key, p in node.products.items())
        return {p.fingerprint for p in products if p.name != "baselines"}

    usual = fingerprints()
    assert usual
    for word in ("score.sample=once", "score.max_tokens=999", "score.sequence=16"):
        assert not usual & fingerprints(word), word
