"""A word finds a run by its id, a part of it, its page or its name, and a task by its name or product."""

import pytest

from atelier.engine.config.error import ConfigError
from atelier.flows.run.named_run import run_called, task_called, tasks_of
from atelier.infra.store.lease import Holder
from atelier.infra.store.run_manifest import Row, RunManifest, write_manifest
from atelier.infra.store.store import Store

FIRST, SECOND, THIRD = "20261201-100000-aaaaaa", "20261201-110000-bbbbbb", "20261202-110000-cccccc"
ROWS = (
    Row(fingerprint="1", name="train", task="train", key="model", kind="model", model="nano"),
    Row(fingerprint="2", name="train.scratch", task="train", key="scratch", kind="model", model="plain"),
    Row(fingerprint="3", name="score.nano", task="score", key="nano", kind="scores", model="nano scores"),
    Row(fingerprint="4", name="score.baselines", task="score", key="baselines", kind="scores"),
)


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(str(tmp_path_factory.mktemp("store")))
    for number, (one, name) in enumerate(((FIRST, "mine"), (SECOND, "twice"), (THIRD, "twice"))):
        manifest = RunManifest(
            id=one,
            started=number,
            status="finished",
            config={"name": name},
            overrides=(f"name={name}",),
            links={"flow_run": f"{number}c5d6e7f-0000"},
            tasks=ROWS,
        )
        write_manifest(store, manifest)
    return store


@pytest.mark.parametrize(
    "word",
    [FIRST, "20261201-10", "aaaaaa", "mine", "0c5d6e7f-0000", "http://host/v2/runs/flow-run/0c5d6e7f-0000"],
)
def test_a_run_is_found_by_its_id_a_part_of_it_its_page_and_its_name(store: Store, word: str) -> None:
    assert run_called(store, word, "here").id == FIRST


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("twice", f"here: 2 runs are called twice; give one's id: {SECOND}, {THIRD}"),
        ("2026", "here: 3 runs are called 2026; give one's id"),
        ("mime", "here: no run is called mime; did you mean mine? `atelier runs --all` lists them"),
        ("aa", "here: no run is called aa"),
    ],
)
def test_a_word_for_no_run_or_several_is_refused_with_the_way_out(store: Store, word: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run_called(store, word, "here")
    assert str(refused.value).startswith(said)


def test_of_several_runs_with_a_name_the_one_in_progress_is_meant(store: Store) -> None:
    """A command that is started again to resume makes another run of its name."""
    manifest = run_called(store, SECOND, "here")
    mine = {"status": "running", "holder": vars(Holder.me())}
    write_manifest(store, manifest.model_copy(update=mine))
    assert run_called(store, "twice", "here").id == SECOND
    gone = {"status": "running", "holder": {**vars(Holder.me()), "started": "1"}}
    write_manifest(store, manifest.model_copy(update=gone))
    with pytest.raises(ConfigError, match="2 runs are called twice"):
        run_called(store, "twice", "here")


def test_a_task_is_found_by_its_name_and_by_what_it_makes(store: Store) -> None:
    run = run_called(store, FIRST, "here")
    assert tasks_of(run) == ["train", "train.scratch", "score"]
    found = {word: task_called(run, word, "here") for word in ("score", "nano", "plain", "score.baselines")}
    assert found == {"score": "score", "nano": "train", "plain": "train.scratch", "score.baselines": "score"}


def test_an_unknown_task_is_refused_with_the_nearest_and_all_names(store: Store) -> None:
    with pytest.raises(
        ConfigError, match=r"no task 'trian'; did you mean train\? its tasks: train, train\.s"
    ):
        task_called(run_called(store, FIRST, "here"), "trian", "here")
