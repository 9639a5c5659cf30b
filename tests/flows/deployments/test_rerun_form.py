"""The form `rerun` of Prefect's page: a past run, a task, settings; the same run as on the command line."""

import inspect
from typing import Any

import pytest

from atelier.engine.config.error import ConfigError
from atelier.flows.deployments import entry
from atelier.flows.deployments.rerun_form import FIELDS, RERUN_FORM, rerun_of_form
from atelier.flows.run.compose import RunConfig
from atelier.flows.run.rerun import rerun
from atelier.infra.store.store import Store
from tests.flows.run.past_runs import PAST, TINY, past


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store(str(tmp_path_factory.mktemp("store")))
    monkeypatch.setenv("ATELIER_ROOT", store.root)
    past(store, "pretrain", *TINY)
    return store


def test_the_form_has_a_run_a_task_and_overrides_and_the_flow_takes_them() -> None:
    properties = RERUN_FORM["properties"]
    assert list(properties) == list(FIELDS) == ["run", "from_task", "overrides", "code"]
    assert RERUN_FORM["required"] == ["run"]
    assert [field["position"] for field in properties.values()] == [0, 1, 2, 3]
    assert all(field["description"] for field in properties.values())
    assert list(inspect.signature(entry.rerun.fn).parameters) == list(properties)


@pytest.mark.parametrize("run", [PAST, "1a2b3c", f"pretrain tiny: seed=2 · {PAST}"])
def test_a_filled_form_is_the_command_line_on_the_pool_of_forms(store: Store, run: str) -> None:
    form = {"run": run, "from_task": "score", "overrides": ["score.max_tokens=300"], "code": None}
    found: RunConfig = rerun_of_form(form, store)
    line = rerun(store, PAST, ["score.max_tokens=300", "pool=local"], "score").frozen
    assert found.document == line.document and found.overrides == line.overrides
    assert found.pool == line.pool and found.pool.is_served
    assert found.rerun is not None and (found.rerun.run, found.rerun.from_task) == (PAST, "score")


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({}, "run: is needed"),
        ({"run": "2031"}, "rerun: no run 2031"),
        ({"run": 3}, "run: must be a text"),
        ({"run": PAST, "from": "score"}, "the form has no such field; did you mean from_task?"),
        ({"run": PAST, "from_task": "scores"}, "no task scores; did you mean score?"),
        ({"run": PAST, "from_task": "score", "overrides": ["train.seed=2"]}, "train.seed=2 changes train"),
        ({"run": PAST, "overrides": ["train.seed=${oc.env:HOME}"]}, "train.seed: calls a resolver"),
        ({"run": PAST, "overrides": ["data.source=a/file.txt"]}, "is a relative path"),
        ({"run": PAST, "overrides": ["hydra.run.dir=/tmp"]}, "Hydra"),
        ({"run": PAST, "overrides": "train.seed=2"}, "must be a list of texts"),
        ({"run": PAST, "code": "HEAD"}, "code: must match"),
    ],
)  # fmt: skip
def test_a_wrong_form_is_refused_in_one_line(store: Store, form: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        rerun_of_form(form, store)
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_words_of_a_past_run_that_a_form_refuses_are_refused_there(store: Store) -> None:
    past(
        store,
        "pretrain",
        *TINY,
        "data.source=stdlib",
        run_id="mine",
        overrides=(*TINY, "data.source=a/text.txt"),
    )
    with pytest.raises(ConfigError, match=r"a/text.txt. is a relative path"):
        rerun_of_form({"run": "mine"}, store)
