"""Atelier from Python equals the command line: the same JSON, the same errors, the same store."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from atelier import api
from atelier.engine.config.error import DamageError
from atelier.flows.deployments.run_process import error_of, failure_of
from tests.checkout import TOP
from tests.flow.command import Atelier

IS_STORY = True  # each test goes on from the store that the ones before have left
WORDS = ("experiment=tiny", "tracker=none", "score.baselines=false", "train.steps=8")
VALUES: dict[str, Any] = {
    "experiment": "tiny",
    "tracker": "none",
    "score": {"baselines": False},
    "train": {"steps": 8},
}
HEAVY = ("torch", "mlflow", "prefect", "hydra", "numpy", "pydantic")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api")


def in_a_new_process(script: str, **env: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_import_is_quick_and_brings_nothing_heavy() -> None:
    script = (
        "import json, sys, time; began = time.process_time(); import atelier.api;"
        f"print(json.dumps([time.process_time() - began, [m for m in {HEAVY} if m in sys.modules]]))"
    )
    took, loaded = in_a_new_process(script)
    assert took < 0.5 and loaded == []


def test_a_plan_loads_neither_torch_nor_mlflow_nor_prefect(tmp_path: Path) -> None:
    script = (
        "import json, sys; from atelier.api import plan; rows = plan('distill', experiment='tiny').tasks;"
        f"print(json.dumps([len(rows), [m for m in {HEAVY[:3]} if m in sys.modules]]))"
    )
    rows, loaded = in_a_new_process(script, ATELIER_ROOT=str(tmp_path))
    assert rows == 10 and loaded == []


def test_a_run_returns_what_its_records_say_and_prints_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(root))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    capfd.readouterr()
    before = dict(os.environ)

    async def inside_an_event_loop() -> api.RunResult:
        return api.run("pretrain", **VALUES)

    result = asyncio.run(inside_an_event_loop())
    assert capfd.readouterr() == ("", "") and dict(os.environ) == before
    [record] = Atelier(root).records("model", "model")
    model = result.models["model"]
    assert result.artifacts["train"] == model and result.status == "finished" and result.flow == "pretrain"
    assert model.fingerprint == record["fingerprint"] and model.summary == record["summary"]
    assert Path(model.url, "record.json").exists() and not model.is_reused
    assert model.parents == record["parents"]
    assert result.manifest.command == "atelier pretrain " + " ".join(WORDS)
    assert list(result.artifacts) == [row["name"] for row in api.plan("pretrain", **VALUES).tasks]


def test_the_same_run_again_reuses_everything_and_shows_its_progress_when_asked(
    atelier: Atelier, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    result = api.run("pretrain", *WORDS, progress=True)
    out, err = capsys.readouterr()
    assert all(one.is_reused for one in result.artifacts.values())
    assert set(result.manifest.states.values()) == {"reused"}
    assert "0 to make" in out and "\x1b" not in out and not err


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (WORDS, VALUES),
        (
            ("experiment=tiny", "train.steps=9", "train.seed=3"),
            {"experiment": "tiny", "train": {"steps": 9, "seed": 3}},
        ),
        (("experiment=tiny", "optim.lr=1e-05"), {"experiment": "tiny", "optim": {"lr": 1e-5}}),
    ],
)
def test_a_plan_is_that_of_the_command_line(
    atelier: Atelier, words: tuple[str, ...], values: dict[str, Any]
) -> None:
    wanted = json.loads(atelier("plan", "pretrain", *words, "--json").out)
    for found in (api.plan("pretrain", *words), api.plan("pretrain", **values)):
        assert json.loads(json.dumps(found.document())) == wanted
        assert (found.tasks, found.totals, found.refused) == (
            wanted["tasks"],
            wanted["totals"],
            wanted["refused"],
        )
    wanted = json.loads(atelier("plan", "pretrain", *words, "--search", "--json").out)
    assert json.loads(json.dumps(api.plan("pretrain", *words, search=True).document())) == wanted


@pytest.mark.parametrize(
    ("command", "function"),
    [
        (("models",), api.models),
        (("runs",), api.runs),
        (("lineage", "model"), lambda: api.lineage("model").document()),
    ],
)
def test_what_is_listed_is_what_the_command_lists(
    atelier: Atelier, command: tuple[str, ...], function: Callable[[], object]
) -> None:
    wanted = json.loads(atelier(*command, "--json").out)
    assert wanted and json.loads(json.dumps(function())) == wanted


def test_a_lineage_has_its_tree_its_page_and_its_picture(atelier: Atelier) -> None:
    found = api.lineage("model")
    assert str(found) == atelier("lineage", "model").out.rstrip()
    assert found.focus.name == "model" and {edge.child for edge in found.edges} <= {
        n.fingerprint for n in found.nodes
    }
    assert "<svg" in found.html() and found._repr_svg_().startswith("<svg")


def test_generated_text_is_that_of_the_command(atelier: Atelier) -> None:
    said = atelier("generate", "model", "--prompt", "def ", "--max-tokens", "12", "--seed", "4")
    alone = api.generate("model", "def ", max_tokens=12, seed=4)
    assert said.out == f"def {alone}\n"
    assert api.generate("model", ["def ", "class "], max_tokens=12, seed=4)[0] == alone
    assert api.generate("model", [], max_tokens=12) == []


def test_an_exported_model_lies_where_the_result_says(atelier: Atelier, tmp_path: Path) -> None:
    done = api.export("model", tmp_path / "out", dtype="float16")
    assert done.url == str(tmp_path / "out") and done.files == len(list((tmp_path / "out").iterdir()))
    with pytest.raises(api.DataError, match="contains README"):
        api.export("model", tmp_path / "out")


@pytest.mark.parametrize(
    ("command", "call"),
    [
        (("plan", "pretrane"), lambda: api.plan("pretrane")),
        (("plan", "pretrain", "train.stepz=3"), lambda: api.plan("pretrain", train={"stepz": 3})),
        (("pretrain", "train.stepz=3"), lambda: api.run("pretrain", train={"stepz": 3})),
        (("pretrain", "model=gpt_nan"), lambda: api.run("pretrain", model="gpt_nan")),
        (("pretrain", *WORDS, "train.steps=x"), lambda: api.run("pretrain", *WORDS, {"train.steps": "x"})),
        (("pretrain", *WORDS, "train.seed=1,2"), lambda: api.run("pretrain", *WORDS, "train.seed=1,2")),
        (("plan", "pretrain", "--fresh", "trane"), lambda: api.plan("pretrain", fresh=["trane"])),
        (("lineage", "nobody"), lambda: api.lineage("nobody")),
        (("generate", "nobody"), lambda: api.generate("nobody")),
        (("generate", "model", "--genre", "poem"), lambda: api.generate("model", genre="poem")),
        (("export", "nobody", "out"), lambda: api.export("nobody", "out")),
        (("export", "model", "out", "--format", "x"), lambda: api.export("model", "out", format="x")),
    ],
)
def test_an_error_is_the_one_line_of_the_command(
    atelier: Atelier, command: tuple[str, ...], call: Callable[[], object]
) -> None:
    said = atelier(*command)
    with pytest.raises(api.AtelierError) as caught:
        call()
    error = caught.value
    assert said.code == error.exit_code and said.err.strip() in (str(error), f"--{error}")
    if isinstance(error, api.ConfigError):
        assert error.place and error.problem


@pytest.mark.slow
def test_a_refused_plan_is_returned_and_a_refused_run_is_raised(atelier: Atelier) -> None:
    late = (*WORDS, "roles.student_a.start=2")
    api.run("distill", *late)
    more = {"+role@roles.student_b": "student", "roles.student_b.start": 2}
    refused = api.plan("distill", *late, more)
    assert refused.refused and {row["state"] for row in refused.tasks} >= {"refused", "reuse"}
    with pytest.raises(api.ConfigError, match="student_b"):
        api.run("distill", *late, more)


def test_a_task_that_fails_raises_its_error_with_the_run_as_a_note(atelier: Atelier, tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(api.DataError, match=r"curate: .*broken\.jsonl") as caught:
        api.run("corpus", tracker="none", data={"source": tmp_path / "broken.jsonl"})
    newest = api.runs()[-1]
    assert newest["status"] == "failed" and f"run {newest['id']}, task curate" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "error",
    [
        api.ConfigError("a.b", "is wrong", "do it"),
        api.DataError("no text"),
        DamageError("file", "mend it"),
        api.StoppedError("stopped"),
        api.AtelierError("died"),
    ],
)
def test_an_error_crosses_the_process_as_it_was(error: api.AtelierError) -> None:
    back = error_of(failure_of(error), "")
    assert type(back) is type(error) and str(back) == str(error)
    assert vars(back) == vars(error)


def test_a_damaged_manifest_is_a_warning(atelier: Atelier) -> None:
    (atelier.root / "runs" / "20000101-000000-abcdef.json").write_text("{")
    with pytest.warns(UserWarning, match="gc --forget 20000101-000000-abcdef"):
        found = api.runs()
    assert found and all(one["id"] != "20000101-000000-abcdef" for one in found)
    (atelier.root / "runs" / "20000101-000000-abcdef.json").unlink()


def test_tracked_curves_are_where_the_uri_says(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    assert api.tracking_uri() == f"sqlite:///{atelier.root}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    assert api.tracking_uri() == "http://127.0.0.1:1"


BLOCK = re.compile(r"(?ms)^```python\n(.*?)^```$")
PAGES = [
    page
    for page in [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
    if "from atelier.api import" in page.read_text()
]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_the_examples_of_a_page_run_in_its_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in BLOCK.findall(page.read_text()):
        exec(block, names)
    assert capsys.readouterr().out


def test_results_are_plain_data(atelier: Atelier) -> None:
    result = api.run("pretrain", *WORDS)
    assert json.loads(json.dumps({name: asdict(one) for name, one in result.artifacts.items()}))
