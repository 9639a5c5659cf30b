"""Which training a word means, which of its checkpoints are examined, and when it has ended."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import AtelierError, ConfigError
from atelier.flows.run.watched import end_of, is_going, watched
from atelier.flows.run.watching import due
from atelier.infra.store.checkpoints import checkpoint_called, checkpoint_word, steps_there
from atelier.infra.store.lease import Holder, take
from atelier.infra.store.run_manifest import Row, RunManifest, write_manifest
from atelier.infra.store.store import Store
from tests.infra.records import Family, Shelf, family

NET = {"kind": "gpt", "num_layers": 1, "hidden": 32, "num_heads": 2}


@pytest.fixture
def made(tmp_path: Path) -> Family:
    return family(tmp_path / "store")


def run(store: Store, number: str, rows: dict[str, tuple[str, ...]], **more: Any) -> RunManifest:
    tasks = tuple(
        Row(
            fingerprint="f" * 60 + number[-4:],
            name=f"train.{name}",
            key=name,
            kind="model",
            model=name,
            keeps=kept,
        )
        for name, kept in rows.items()
    )
    manifest = RunManifest(id=number, flow="distill", tasks=tasks, started=time.time(), **more)
    write_manifest(store, manifest)
    return manifest


@pytest.mark.parametrize(
    ("steps", "examined", "every", "is_over", "expected"),
    [
        ([100, 200, 300], [], 1, False, [100, 200, 300]),
        ([100, 200, 300], [], 2, False, [200]),
        ([100, 200, 300], [200], 2, False, []),
        ([100, 200, 300, 400], [200], 2, False, [400]),
        ([300, 400], [200], 2, False, [400]),  # the examined one was removed since
        ([100, 200, 300], [], 2, True, [200, 300]),  # the last one, too
        ([100, 200, 300], [300], 2, True, [200]),
        ([], [], 1, True, []),
    ],
)
def test_every_nth_checkpoint_counts_from_the_last_that_was_examined(
    steps: list[int], examined: list[int], every: int, is_over: bool, expected: list[int]
) -> None:
    assert due(steps, examined, every, is_over=is_over) == expected


def test_a_role_is_that_of_the_newest_run_and_a_run_has_all_its_models(made: Family) -> None:
    store = made.shelf.store
    run(store, "20260101-000000-aaaaaa", {"student_a": ("1" * 64,)}, status="failed")
    run(store, "20260102-000000-bbbbbb", {"student_a": ("2" * 64, "3" * 64), "teacher": ("4" * 64,)})
    assert [each.trajectories for each in watched(store, "student_a")] == [("2" * 64, "3" * 64)]
    found = watched(store, "20260102-000000-bbbbbb")
    assert [each.name for each in found] == ["student_a", "teacher"]
    with pytest.raises(ConfigError, match="trains no model"):
        run(store, "20260103-000000-cccccc", {})
        watched(store, "20260103-000000-cccccc")


def test_a_model_or_a_trajectory_without_a_run_is_found(made: Family) -> None:
    store, teacher = made.shelf.store, made.segments["teacher"].fingerprint
    assert watched(store, "teacher")[0].trajectories == (teacher,)
    assert watched(store, teacher[:10])[0].trajectories == (teacher,)
    with pytest.raises(ConfigError, match="did you mean teacher"):
        watched(store, "taecher")


def test_a_branch_continues_its_trunk(made: Family) -> None:
    store, trunk = made.shelf.store, made.segments["teacher"]
    branch = made.shelf.trajectory("teacher", {"trunk": trunk.fingerprint}, trunk_step=200)
    made.shelf.checkpoint(branch, 300)
    chain = (trunk.fingerprint, branch.fingerprint)
    assert steps_there(store, chain) == {200: chain[0], 300: chain[1]}
    assert steps_there(store, (trunk.fingerprint, "5" * 64)) == {200: chain[0], 400: chain[0]}
    (Path(branch.url) / "checkpoints" / "step-00000300" / "manifest.json").unlink()
    assert steps_there(store, chain) == {200: chain[0]}


def test_a_training_goes_on_while_its_lease_is_held_or_its_run_owes_the_model(made: Family) -> None:
    store, segment = made.shelf.store, made.segments["teacher"]
    [one] = watched(store, "teacher")
    assert not is_going(store, one)
    lease = take(segment.url, Holder.me("train"))
    assert lease is not None and is_going(store, one)
    lease.release()
    assert not is_going(store, one)
    me = vars(Holder.me())
    number = "20260102-000000-bbbbbb"
    manifest = run(store, number, {"teacher": (segment.fingerprint,)}, holder=me)
    assert is_going(store, one)
    write_manifest(store, manifest.model_copy(update={"holder": me | {"pid": os.getpid(), "started": "1"}}))
    assert not is_going(store, one)  # killed
    write_manifest(store, manifest.model_copy(update={"status": "finished"}))
    assert not is_going(store, one)
    assert end_of(store, {400: segment.fingerprint}) == "its model is finished, at step 400"
    assert end_of(store, {200: "9" * 64}) == "at step 200"


def shelved(tmp_path: Path, **identity: Any) -> tuple[Store, str]:
    shelf = Shelf(Store(str(tmp_path / "store")))
    tokenizer = shelf.publish("tokenizer", "bpe", summary={"vocab": 512})
    segment = shelf.trajectory(
        "model", {"tokenizer": tokenizer.fingerprint}, **{"model": NET, "sequence": 64} | identity
    )
    return shelf.store, segment.fingerprint


def test_a_checkpoint_has_the_network_and_tokenizer_of_its_trajectory(tmp_path: Path) -> None:
    store, trajectory = shelved(tmp_path)
    found = checkpoint_called(store, checkpoint_word(trajectory[:8], 40), "here")
    assert (found.step, found.sequence, found.model.vocab, found.model.hidden) == (40, 64, 512, 32)
    assert found.url.endswith(f"trajectory/{trajectory[:16]}/checkpoints/step-00000040")


@pytest.mark.parametrize(
    ("identity", "word", "said"),
    [
        ({"trainable": {"kind": "lora"}}, "{}@4", "do not hold the whole network .trainable=lora."),
        ({"model": {"kind": "gbt"}}, "{}@4", "no model of kind 'gbt'"),
        ({"model": NET | {"version": 9}}, "{}@4", "version 9"),
        ({}, "abcd@x", "is no checkpoint"),
        ({}, "0000000000@4", "no trajectories begin with 0000000000"),
    ],
)  # fmt: skip
def test_what_cannot_be_examined_is_refused(
    tmp_path: Path, identity: dict[str, Any], word: str, said: str
) -> None:
    store, trajectory = shelved(tmp_path, **identity)
    with pytest.raises(AtelierError, match=said):
        checkpoint_called(store, word.format(trajectory[:8]), "here")
