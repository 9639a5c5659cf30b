"""`atelier rerun` on whole DAGs: every task of titan and mtnlg with a changed key, killed once; verified."""

import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.infra.dag import Node
from atelier.infra.store.store import Store
from tests.faults.command import CommandStore
from tests.flow.kills import weights_of
from tests.flows.run.past_runs import KEYS, TINY

pytestmark = pytest.mark.slow
WORDS = (*TINY, "train.checkpoint_every=4")
LATE = "roles.student_b.optim.lr=0.003"  # of a student, whose teacher is finished


@pytest.fixture(scope="module", params=list(KEYS))
def base(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, CommandStore]:
    """A flow and a store with its first run."""
    store = CommandStore(tmp_path_factory.mktemp(request.param) / "store")
    code, _, err = store.finish(request.param, *WORDS)
    assert code == 0, err
    return request.param, store


def copied(store: CommandStore, tmp_path: Path) -> CommandStore:
    shutil.copytree(store.root, tmp_path / "store", symlinks=True)
    return CommandStore(tmp_path / "store")


def runs(store: CommandStore) -> list[dict]:
    found = [json.loads(place.read_text()) for place in (store.root / "runs").glob("*.json")]
    return sorted(found, key=lambda one: one["started"])


def nodes_of(flow: str, store: CommandStore, *more: str) -> list[Node]:
    os.environ["ATELIER_ROOT"] = str(store.root)
    return collect_nodes(compose(flow, [*WORDS, *more]), Store(str(store.root)))


def test_every_task_is_computed_again_to_equal_bytes(base: tuple[str, CommandStore]) -> None:
    flow, store = base
    code, out, err = store.finish("rerun", runs(store)[0]["id"], "--verify", "--json")
    assert code == 0, err
    rows = json.loads(out)["artifacts"]
    assert {row["task"] for row in rows} == {node.name for node in nodes_of(flow, store)}
    unequal = {row["name"]: row["differs"] + row["notes"] for row in rows if row["state"] != "equal"}
    assert unequal == {"register": ["it acts outside the store, on a tracker: that is not done again"]}


def test_from_each_task_what_a_key_changes_is_made_and_the_rest_reused(
    base: tuple[str, CommandStore], tmp_path: Path
) -> None:
    flow, first = base
    store = copied(first, tmp_path)
    past = runs(store)[0]
    made_before = {row["fingerprint"] for row in past["tasks"]}
    for key, tasks in KEYS[flow].items():
        names = [node.name for node in nodes_of(flow, store) if node.name in tasks]
        expected = {
            node.name
            for node in nodes_of(flow, store, key)
            if not {p.fingerprint for p in node.products.values()} <= made_before
        }
        words = [key, "roles.student_b.attach=replay"] if key == LATE else [key]
        code, _, err = store.finish("rerun", past["id"], "--from", names[0], *words)
        assert code == 0, err
        new = runs(store)[-1]
        assert new["rerun_of"] == past["id"] and new["overrides"] == [*WORDS, *words]
        assert {name for name, state in new["states"].items() if state == "done"} == expected, key
        assert {state for name, state in new["states"].items() if name not in expected} == {"reused"}
        code, out, _ = store.finish(flow, *WORDS, *words)
        assert code == 0 and "nothing to do" in out  # it is the run of these words
        code, out, _ = store.finish("diff", past["id"], new["id"], "--json")
        assert code == 0 and json.loads(out)["artifacts"] + json.loads(out)["data"]
        changed = [row["key"] for row in json.loads(out)["configuration"]]
        assert key.partition("=")[0] in changed


def test_a_rerun_that_is_killed_and_run_again_has_the_bits_of_one_that_was_not(
    base: tuple[str, CommandStore], tmp_path: Path
) -> None:
    flow, first = base
    key = {"titan": "roles.teacher.optim.lr=0.003", "mtnlg": "train.seed=2"}[flow]
    past = runs(first)[0]["id"]
    whole, killed = (copied(first, tmp_path / name) for name in ("whole", "killed"))
    code, _, err = whole.finish("rerun", past, "--from", "train", key)
    assert code == 0, err
    known = {*killed.root.glob("trajectory/*")}

    def has_begun() -> bool:
        new = {*killed.root.glob("trajectory/*")} - known
        return any(int(p.name[5:]) >= 8 for one in new for p in one.glob("checkpoints/step-*"))

    command = killed.start("rerun", past, "--from", "train", key)
    command.until(has_begun, "a checkpoint of a new training")
    for process in killed.processes():
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    command.wait()
    killed.wait_for_quiet()
    crashed = runs(killed)[-1]
    assert crashed["status"] == "running" and crashed["rerun_of"] == past  # its process could not say more
    code, _, err = killed.finish("rerun", crashed["id"])  # the killed run itself, without keys
    assert code == 0, err
    assert runs(killed)[-1]["rerun_of"] == crashed["id"]
    assert weights_of(killed) == weights_of(whole)
