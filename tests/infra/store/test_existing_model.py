"""Finished models as starting points: those of another version of their kind are shown but never used."""

import json
from pathlib import Path

import pytest

from atelier.engine.config.data import Score, Tokenizer
from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.record import Record
from atelier.engine.io.artifact import open_input
from atelier.engine.model.load import read_weights
from atelier.flows.cli.main import run
from atelier.infra.dag import Node, Reference, scheduling, stop_scheduling
from atelier.infra.report.lineage import lineage
from atelier.infra.store.existing_model import existing_model, looking_in
from atelier.tasks.learn_tokenizer import learn_tokenizer
from atelier.tasks.score import BASELINES, BEGUN, score
from tests.infra.records import Family, family

ERNIE = Ernie(num_layers=2, hidden=32, num_heads=4, vocab=64, nlg=Net(num_layers=1, hidden=16, num_heads=2))
REFUSED = "version 1 of kind ernie; this code computes version 2.*commit c0ffeec0ffee"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Family:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    found = family(tmp_path)
    looking_in(found.shelf.store)
    return found


@pytest.fixture
def old(made: Family) -> Record:
    """A model of version 1, as the code of that time wrote it."""
    data = {key: made["teacher"].parents[key] for key in ("tokens.main", "tokenizer")}
    segment = made.shelf.trajectory("old", data, end=300)
    return made.shelf.model("old", segment, data, step=300, config=ERNIE.model_dump(mode="json"))


def test_a_model_of_another_version_of_its_kind_is_refused_as_a_starting_point(old: Record) -> None:
    for place in ("models", "init", "roles.student_a.init"):
        with pytest.raises(ConfigError, match=f"^{place}: old has {REFUSED}"):
            existing_model("old", place)


def test_the_engine_does_not_read_its_weights(made: Family, old: Record, tmp_path: Path) -> None:
    source = open_input(made.shelf.store.address("model", old.fingerprint))
    with pytest.raises(ConfigError, match=r"config\.json: .*version 1 of kind ernie"):
        read_weights(source, tmp_path / "scratch")


def test_generate_refuses_it(old: Record, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "old"]) == 2
    assert "version 1 of kind ernie" in capsys.readouterr().err


def test_it_is_listed_and_traced(made: Family, old: Record, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models"]) == 0
    assert "old" in capsys.readouterr().out.split()
    graph = lineage(made.shelf.store, "old")
    assert graph.focus == old.fingerprint
    assert {graph.nodes[edge.parent].kind for edge in graph.edges} >= {"corpus", "tokens", "tokenizer"}


@pytest.mark.parametrize(
    ("begin", "version"), [(None, BASELINES), (7, BEGUN)], ids=["texts that begin plainly", "with a token"]
)
def test_only_baselines_of_texts_that_begin_with_a_token_have_a_new_version(
    made: Family, begin: int | None, version: int
) -> None:
    ends = json.dumps({"begin": begin, "ends": [0]}).encode()
    tokenizer = made.shelf.publish("tokenizer", "tokenizer", files={"text_ends.json": ends}, begin=begin)
    data = {"tokens.main": made["teacher"].parents["tokens.main"], "tokenizer": tokenizer.fingerprint}
    made.shelf.model("new", made.shelf.trajectory("new", data, end=300, sequence=64), data, step=300)
    known, nodes = existing_model("new", "models"), list[Node]()
    assert known.tokenizer.is_begun is (begin is not None)

    class Kept:
        def declare(self, node: Node, after: list[Reference]) -> None:
            nodes.append(node)

    token = scheduling(Kept())
    try:
        extended = learn_tokenizer({}, Tokenizer(vocab=512), extends=known.tokenizer)
        for each in (known.tokenizer, extended):  # what extends it begins texts as it does
            score({"new": known.reference}, {}, settings=Score(), tokens=known.tokens, tokenizer=each)
    finally:
        stop_scheduling(token)
    scores = [node.products["baselines"] for node in nodes if node.task == "score"]
    assert [each.version for each in scores] == [version] * 2


def test_a_model_that_another_site_trained_has_no_text_here(made: Family) -> None:
    """The site has sent the model, not the record of its training."""
    store = made.shelf.store
    trajectory = store.address("trajectory", made["teacher"].parents["trajectory"])
    Path(trajectory, "trajectory.json").unlink()
    found = existing_model("teacher", "init")
    assert found.text is None and found.reference.fingerprint == made["teacher"].fingerprint
    with pytest.raises(ConfigError, match=r"init: teacher was adopted, or trained at another site"):
        _ = found.tokens
