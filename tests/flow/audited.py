"""Run commands on a store outside of a test, and read audits."""

import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from atelier.engine.config.audit import AuditedQuestion, AuditResult, RouteReading
from atelier.flows.cli.main import run
from tests.flow.command import Said

TINY = ("experiment=tiny", "tracker=none", "score.baselines=false", "score.controls=false")


def said_in(root: Path, *arguments: str) -> Said:
    """`atelier <arguments>` with a store."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
        patch.setenv("ATELIER_ROOT", str(root))
        patch.setenv("PREFECT_HOME", str(root / "prefect"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        with redirect_stderr(StringIO()) as err:
            code = run(list(arguments))
    return Said(code, out.getvalue(), err.getvalue())


def made_in(root: Path, *arguments: str) -> None:
    """The same, of a command that must go well."""
    said = said_in(root, *arguments)
    assert said.code == 0, said.out + said.err


def audited(root: Path, model: str, *sets: str, code: int) -> AuditResult:
    """The audit of a model, which ends with this exit code."""
    said = said_in(root, "audit", model, *sets, "--json")
    assert said.code == code, said.err
    return json.loads(said.out)  # nothing but JSON


def questions_of(result: AuditResult, number: int = 0) -> dict[str, AuditedQuestion]:
    """Those of a set that are not clean, by id."""
    return {each["id"]: each for each in result["sets"][number]["questions"]}


def by_way(result: AuditResult, question: AuditedQuestion) -> dict[str, RouteReading]:
    """The readings of a question's one place, by the words of their route before the stations."""
    [overlap] = question["overlaps"]
    return {result["routes"][each["route"]].partition(":")[0]: each for each in overlap["readings"]}
