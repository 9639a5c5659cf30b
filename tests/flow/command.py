"""The command line run inside the test process (Prefect starts once), and the state of its store."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from atelier.flows.cli.main import run
from atelier.flows.run.compose import compose
from atelier.flows.run.plan import Plan, make_plan
from atelier.infra.store.store import Store


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Atelier:
    """The command line with one store."""

    root: Path
    capture: pytest.CaptureFixture[str] | None = None

    def __call__(self, *arguments: str) -> Said:
        """`atelier <arguments>`: exit code and what was printed."""
        assert self.capture is not None
        self.capture.readouterr()
        code = run(list(arguments))
        out, err = self.capture.readouterr()
        return Said(code, out, err)

    def plan(self, flow: str, *overrides: str) -> Plan:
        return make_plan(compose(flow, list(overrides)), Store(str(self.root)))

    def states(self, flow: str, *overrides: str) -> dict[str, str]:
        return {row["name"]: row["state"] for row in self.plan(flow, *overrides).rows}

    def gangs(self) -> list[str]:
        """Names of all gangs that were ever started, in order."""
        return [
            path.name.split("-", 1)[1]
            for run_folder in sorted((self.root / "scratch").glob("*"), key=lambda p: p.stat().st_mtime)
            for path in sorted(run_folder.iterdir())
            if (path / "guard.json").exists()
        ]

    def records(self, kind: str, name: str) -> list[dict]:
        found = [json.loads(p.read_text()) for p in (self.root / kind).glob("*/record.json")]
        return [record for record in found if record["name"] == name]


def done(said: Said) -> str:
    """What a command printed that went well."""
    assert said.code == 0, said.err
    return said.out


def refused(said: Said) -> str:
    """The one line of a command that was refused."""
    assert said.code == 2
    [line] = said.err.strip().splitlines()
    return line
