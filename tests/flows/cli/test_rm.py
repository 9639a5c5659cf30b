"""`atelier rm`: a model goes with what is about it; what others descend from stays."""

import io
import json
from pathlib import Path

import pytest

from atelier.flows.cli.main import run
from atelier.infra.store.alias import aliases, give_alias
from atelier.infra.store.lease import Holder
from atelier.infra.store.run_manifest import Row, RunManifest, write_manifest
from atelier.infra.store.store import Store
from tests.infra.records import Family, family


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Family:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    return family(tmp_path)


def files(store: Store) -> set[str]:
    root = Path(store.root)
    return {str(path.relative_to(root)) for path in root.rglob("*") if "removal" not in path.parts}


def test_a_model_goes_with_its_training_scores_and_aliases_and_nothing_else(
    made: Family, capsys: pytest.CaptureFixture[str]
) -> None:
    store, student = made.shelf.store, made["student_a"]
    give_alias(store.root, student, "best", "a test")
    assert run(["rm", "student_a", "--yes"]) == 0
    assert "removed 4 things" in capsys.readouterr().out
    places = [store.address("model", student.fingerprint), made.segments["student_a"].url]
    assert not any(Path(place).exists() for place in places)
    assert [*aliases(store.root)] == [] and not list(store.records("scores"))
    left = {record.name for record in store.records("model")}
    assert left == {"teacher", "student_b", "control_a"} and Path(made.segments["teacher"].url).exists()


@pytest.mark.parametrize("answer", ["n\n", "", "maybe\n"])
def test_without_a_yes_and_with_dry_run_nothing_goes(
    made: Family, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str
) -> None:
    before = files(made.shelf.store)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    assert run(["rm", "student_a"]) == 0
    assert "nothing was removed" in capsys.readouterr().out
    assert run(["rm", "student_a", "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["removed"] == [] and len(found["goes"]) == 3 and files(made.shelf.store) == before


def test_a_model_that_taught_others_or_began_them_or_is_their_trunk_is_refused(
    made: Family, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(made.shelf.store)
    assert run(["rm", "teacher", "--yes"]) == 2
    said = capsys.readouterr().err
    assert "student_a" in said and "student_b" in said and "descend from teacher" in said
    assert files(made.shelf.store) == before
    made.shelf.publish("model", "grown", {"init": made["control_a"].fingerprint}, step=1)
    assert run(["rm", "control_a", "--yes"]) == 2
    assert "model grown" in capsys.readouterr().err
    trunk = made.segments["student_a"]
    branch = made.shelf.trajectory("longer", {"trunk": trunk.fingerprint}, start=400, end=500)
    assert run(["rm", "student_a", "--yes"]) == 2  # its training goes on, without a model so far
    assert "trajectory longer" in capsys.readouterr().err
    made.shelf.model("longer", branch, {}, step=500)
    assert run(["rm", "student_a", "--yes"]) == 2
    assert "model longer" in capsys.readouterr().err
    assert run(["rm", "longer", "--yes"]) == 0  # the youngest first
    assert Path(trunk.url).exists() and not Path(branch.url).exists()
    assert run(["rm", "student_a", "--yes"]) == 0


def test_while_a_run_is_active_and_for_an_unknown_model_it_is_refused(
    made: Family, capsys: pytest.CaptureFixture[str]
) -> None:
    store = made.shelf.store
    assert run(["rm", "nobody", "--yes"]) != 0
    assert "no model called 'nobody'" in capsys.readouterr().err
    assert run(["rm", "student_a", "--json"]) == 2
    assert "add --yes or --dry-run" in capsys.readouterr().err
    row = Row(fingerprint=made["student_a"].fingerprint, kind="model", name="train")
    alive = RunManifest(id="run-2", flow="score", holder=vars(Holder.me()), tasks=(row,))
    write_manifest(store, alive)
    assert run(["rm", "student_a", "--yes"]) == 2
    assert "a run is active that may read them (run-2)" in capsys.readouterr().err
    write_manifest(store, alive.model_copy(update={"status": "finished"}))
    assert run(["rm", "student_a", "--yes"]) == 0
    assert "these make it again: run-2" in capsys.readouterr().out
