"""`atelier rerun --verify`: what is computed again is compared with the store, which does not change."""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import StoppedError
from atelier.flows.cli.main import run
from atelier.flows.run import verify
from atelier.flows.run.compose import compose
from atelier.flows.run.contexts import open_context
from atelier.flows.run.rerun import rerun
from atelier.flows.run.work import work
from atelier.infra.dag import Node
from atelier.infra.store.gc import Collector
from atelier.infra.store.store import Store
from tests.flows.run.past_runs import PAST, past

WORDS = ("experiment=tiny", "tracker=none", "data.held_out=0.1")
MADE = ("curate", "learn_tokenizer")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run of pretrain whose first two tasks are finished."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "text").mkdir()
    for number in range(40):
        (folder / "text" / f"{number}.txt").write_text(f"the {number} words of a text {number * 7}\n" * 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATELIER_ROOT", str(folder / "store"))
        store = Store(str(folder / "store"))
        words = (*WORDS, f"data.source={folder / 'text'}")
        _, nodes = past(store, "pretrain", *words)
        context = open_context(compose("pretrain", list(words)), store, "", PAST, lambda *_: None)
        for node in nodes:
            if node.name in MADE:
                work(node, context, {}, {})
    return folder / "store"


@pytest.fixture
def root(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "store"
    shutil.copytree(made, root)
    monkeypatch.setenv("ATELIER_ROOT", str(root))
    return root


def files(root: Path) -> dict[str, bytes]:
    """The files of the store apart from scratch and locks."""
    found = {str(p.relative_to(root)): p for p in root.rglob("*") if p.is_file()}
    return {
        name: p.read_bytes()
        for name, p in found.items()
        if name.split("/")[0] in ("corpus", "tokenizer", "runs")
    }


def twin(change: Callable[[dict[str, Any]], None]) -> Callable[..., dict[str, str]]:
    """A task that computes something else under the same fingerprint, as changed code would."""

    def work_otherwise(node: Node, *rest: Any) -> dict[str, str]:
        config = json.loads(json.dumps(node.config))
        change(config)
        return work(node.model_copy(update={"config": config}), *rest)

    return work_otherwise


def test_equal_artifacts_are_told_with_their_digest_and_leave_nothing(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(root)
    assert run(["rerun", PAST, "--verify", "--from", "learn_tokenizer"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("equal    learn_tokenizer ") and "(sha256 " in out
    assert "1 equal, 0 differs, 1 in all" in out
    assert files(root) == before and not list(root.glob("scratch/verify-*"))


def test_a_task_whose_code_computes_something_else_is_found_with_file_and_place(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(root)
    monkeypatch.setattr(verify, "work", twin(lambda config: config["tokenizer"].update(vocab=300)))
    assert run(["rerun", PAST, "--verify", "--from", "learn_tokenizer", "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)["artifacts"]
    assert row["state"] == "differs" and row["name"] == "learn_tokenizer"
    assert any(text.startswith("tokenizer.json: key ") for text in row["differs"])
    assert any(text.startswith("summary vocab: ") and text.endswith("| 300") for text in row["differs"])
    assert list(Path(row["kept"]).rglob("tokenizer.json"))  # to look at
    assert Collector(Store(str(root))).living == set()  # what is kept is no active run for gc
    assert files(root) == before


def test_a_damaged_file_of_the_store_is_not_equal(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place,) = root.glob("tokenizer/*/payload-*/tokenizer.json")
    place.write_bytes(place.read_bytes()[:-1] + b"?")
    assert run(["rerun", PAST, "--verify", "--from", "learn_tokenizer"]) == 1
    assert "damaged in the store: " in capsys.readouterr().out


def test_what_is_not_finished_or_has_lost_an_input_is_unknown_and_not_equal(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["rerun", PAST, "--verify", "--from", "encode"]) == 1
    assert "it is not finished: there is nothing to compare" in capsys.readouterr().out
    shutil.rmtree(root / "corpus")
    assert run(["rerun", PAST, "--verify", "--from", "learn_tokenizer"]) == 1
    assert "its input corpus_0 no longer exists" in capsys.readouterr().out


@pytest.mark.slow
def test_a_task_that_cannot_be_computed_is_told_and_the_others_go_on(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        verify, "work", twin(lambda config: config.clear() if "tokenizer" not in config else None)
    )
    assert run(["rerun", PAST, "--verify"]) == 1
    out = capsys.readouterr().out
    assert "failed   curate " in out and "equal    learn_tokenizer " in out


def test_a_stop_leaves_no_scratch(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, stop = Store(str(root)), threading.Event()
    found = rerun(store, PAST)

    def stopped(*_: Any) -> None:
        raise StoppedError("stopped")

    monkeypatch.setattr(verify, "work", stopped)
    nodes = [node for node in found.nodes if node.name == "curate"]
    with pytest.raises(StoppedError):
        list(verify.verify(found.frozen, found.past, nodes, store, lambda *_: None, stop))
    assert not list(root.glob("scratch/verify-*"))


def test_what_the_flow_makes_no_longer_is_not_compared(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = next((root.parent).rglob("runs")) / f"{PAST}.json"
    document = json.loads(place.read_text())
    source = Path(document["config"]["data"]["source"])
    (source / "new.txt").write_text("one more document\n")
    try:
        assert run(["rerun", PAST, "--verify"]) == 2
        assert f"the flow makes other things now than run {PAST} did: curate, " in capsys.readouterr().err
        assert run(["rerun", PAST, "--verify", "--from", "curate"]) == 2
        assert "rerun --from curate: it makes another thing now" in capsys.readouterr().err
    finally:
        (source / "new.txt").unlink()
