"""Flows, tasks and evaluation sets of a project outside the checkout."""

from pathlib import Path

import pytest

from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError
from atelier.engine.io import evaluation_files
from atelier.engine.io.evaluation_files import QUESTIONS
from atelier.flows.cli import main
from atelier.flows.deployments.form_fields import fields_of
from atelier.flows.run import catalog
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.flows.run.new_files import write_new
from atelier.flows.run.reasons import CODE
from atelier.infra.dag import Node
from atelier.infra.store.store import Store
from tests.projects import CACHED, Make, edit

TINY = ["experiment=tiny"]
COMPUTED = "engine/data/tasks/shorten.py"


@pytest.fixture
def project(make_project: Make) -> Path:
    """A project with a flow `ours` that calls a task `shorten`."""
    folder = make_project("mine")
    write_new("flow", "ours")
    write_new("task", "shorten")
    flow = folder / "flows" / "ours.py"
    edit(
        flow, "    vocabulary = learn", "    corpus = shorten(corpus, longest=limit)\n    vocabulary = learn"
    )
    edit(flow, "    score: Score,\n", "    score: Score,\n    limit: int = 20000,\n")
    edit(flow, "train as train_roles\n", "train as train_roles\n\nfrom mine.tasks.shorten import shorten\n")
    with (folder / "conf" / "ours.yaml").open("a") as file:
        file.write("limit: 20000\n")
    read_again()
    return folder


def read_again() -> None:
    """Forget what was read of the project, as a new process would."""
    for cached in CACHED:
        cached.cache_clear()


def nodes(*words: str) -> dict[str, Node]:
    return {node.name: node for node in collect_nodes(compose("ours", [*TINY, *words]), Store("/nowhere"))}


def product(node: Node) -> str:
    return next(iter(node.products.values())).fingerprint


def test_a_flow_is_listed_composed_and_has_its_own_keys_in_its_form(project: Path) -> None:
    assert "ours" in catalog.flow_names() and "pretrain" in catalog.flow_names()
    assert catalog.flow_text("ours")[1] == "atelier ours experiment=tiny"
    assert [*nodes()][:4] == ["curate", "shorten", "learn_tokenizer", "encode"]
    assert fields_of("ours")["limit"].schema["type"] == "integer"
    assert "limit" not in fields_of("pretrain")
    with pytest.raises(ConfigError, match="did you mean limit"):
        compose("ours", [*TINY, "limmit=3"])


def test_the_code_of_a_task_is_in_its_identity_and_that_of_a_flow_is_not(project: Path) -> None:
    before = nodes()
    assert {*section_of(before["shorten"].products["corpus"].identity["code"])} == {
        "mine/tasks/shorten.py", f"mine/{COMPUTED}"
    }  # fmt: skip
    edit(project / "flows" / "ours.py", "    corpus = curate(", "    # words\n    corpus = curate(")
    edit(project / COMPUTED, '"""Keep the documents', '"""Only keep the documents')
    read_again()
    assert {name: product(node) for name, node in nodes().items()} == {
        name: product(node) for name, node in before.items()
    }
    edit(project / COMPUTED, "> config.longest", ">= config.longest")
    read_again()
    after = nodes()
    changed = [name for name in before if product(before[name]) != product(after[name])]
    assert changed[:2] == ["shorten", "learn_tokenizer"] and "curate" not in changed


def test_a_key_of_a_tasks_code_is_read_as_file_and_function() -> None:
    match = CODE.fullmatch(f"code.mine/{COMPUTED}.kept")
    assert match is not None and (match["file"], match["part"]) == (f"mine/{COMPUTED}", "kept")


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("flows/ours.py", "def ours(", "def (", r"mine/flows/ours\.py:\d+"),
        ("flows/ours.py", "def ours(", "def theirs(", r"mine/flows/ours\.py: has no function ours"),
        ("flows/ours.py", "import shorten\n", "import cut\n", r"mine/flows/ours\.py:\d+: ImportError"),
        ("tasks/shorten.py", "VERSION = 1", "VERSION = 1 / 0", r"mine/tasks/shorten\.py:\d+: ZeroDivision"),
        ("tasks/shorten.py", '"corpus",\n        {', '"corpse",\n        {', "did you mean corpus"),
        (
            "tasks/shorten.py",
            '"shorten",\n',
            '"shortn",\n',
            r"shortn: no root .*tasks/shortn\.py; did you mean shorten",
        ),
    ],
)
def test_a_broken_flow_or_task_is_named_and_others_keep_working(
    project: Path, file: str, old: str, new: str, told: str
) -> None:
    edit(project / file, old, new)
    read_again()
    with pytest.raises(ConfigError, match=told):
        nodes()
    assert "ours" in catalog.flow_names()
    compose("pretrain", TINY)


def test_a_flow_of_a_name_that_is_taken_is_refused_with_both_places(project: Path) -> None:
    for name, told in (("pretrain", "exists already"), ("plan", "is a command"), ("ours", "exists already")):
        with pytest.raises(ConfigError, match=told):
            write_new("flow", name)
    (project / "flows" / "titan.py").write_text("")
    read_again()
    with pytest.raises(ConfigError, match=r"mine/flows/titan\.py: .*flows/titan\.py has the same name"):
        catalog.flow_names()


def test_a_flow_without_its_settings_is_told_by_the_file_that_is_missing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "conf" / "ours.yaml").unlink()
    read_again()
    assert main.run(["ours", "experiment=tiny"]) == 2
    assert capsys.readouterr().err.startswith("atelier: mine/flows/ours.py has no mine/conf/ours.yaml; write")
    with pytest.raises(ConfigError, match=r"^plan: mine/flows/ours\.py has no mine/conf/ours\.yaml"):
        catalog.check_flow("ours", "plan")
    with pytest.raises(ConfigError, match=r"^plan: no flow 'our'"):
        catalog.check_flow("our", "plan")


def test_an_evaluation_set_of_a_project_is_known_by_its_name(project: Path) -> None:
    folder = project / "conf" / "questions"
    folder.mkdir()
    (folder / "ducks.yaml").write_text("source: ducks.jsonl\n")
    (folder / "ducks.jsonl").write_text('{"question": "?", "options": ["a", "b"], "answer": 0}\n')
    read_again()
    assert evaluation_files.is_source("ducks")
    found = evaluation_files.find("ducks", "", (), "evals")
    assert found.files[QUESTIONS] == [str(folder / "ducks.jsonl")]
    with pytest.raises(ConfigError, match="did you mean ducks"):
        evaluation_files.find("duks", "", (), "evals")
