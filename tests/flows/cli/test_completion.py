"""The Tab key: flows, commands, groups, options, keys, models and runs, in Python and in a real bash."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from atelier.flows.cli.complete import candidates
from atelier.flows.cli.main import run
from atelier.infra.store.run_manifest import RunManifest, write_manifest
from atelier.infra.store.store import Store
from tests.checkout import TOP
from tests.flows.run.past_runs import PAST, TINY, past
from tests.infra.records import Shelf


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("atelier ti", {"titan "}),
        ("atelier pla", {"plan "}),
        ("atelier titan model@roles.student_a.mo", {"model@roles.student_a.model="}),
        ("atelier titan model@roles.student_a.model=gpt_m", {"model@roles.student_a.model=gpt_mini "}),
        ("atelier plan --json titan experiment=ti", {"experiment=tiny ", "experiment=titan_260b "}),
        ("atelier distill roles.st", {"roles.student_a."}),
        ("atelier distill roles.student_a.att", {"roles.student_a.attach="}),
        (
            "atelier distill roles.student_a.attach=",
            {f"roles.student_a.attach={w} " for w in ("frozen", "refuse", "replay")},
        ),
        (
            "atelier distill +role@roles.new=t",
            {
                f"+role@roles.new={role} "
                for role in (
                    "teacher",
                    "titan_teacher",
                    "titan_assistant",
                    "titan_student",
                    "titan_student_nano",
                )
            },
        ),
        (
            "atelier distill +role@roles.new=student roles.new.optim.schedule.k",
            {"roles.new.optim.schedule.kind="},
        ),
        ("atelier distill roles.student_a.teacher=t", {"roles.student_a.teacher=teacher "}),
        ("atelier pretrain train.ste", {"train.steps="}),
        ("atelier pretrain objective.lm.w", {"objective.lm.weight="}),
        ("atelier list mod", {"model "}),
        ("atelier generate m --te", {"--temperature "}),
        ("atelier pretrain no_such_", set()),
    ],
)
def test_completion(line: str, expected: set[str]) -> None:
    assert set(candidates(line)) == expected


def test_completion_knows_the_models_and_runs_of_the_store(root: Path) -> None:
    shelf = Shelf(Store(str(root)))
    shelf.publish("model", "student_a", step=1)
    write_manifest(shelf.store, RunManifest.model_validate({"id": "20260101-000000-abcdef", "tasks": []}))
    assert candidates("atelier generate s") == ["student_a "]
    assert candidates("atelier finetune init=") == ["init=student_a "]
    assert candidates("atelier lineage 2026") == ["20260101-000000-abcdef "]
    for command in ("gc --forget", "logs", "cancel", "debug", "open"):
        assert candidates(f"atelier {command} 2") == ["20260101-000000-abcdef "], command


def test_completion_knows_the_tasks_of_the_run(root: Path) -> None:
    rows = [{"name": name, "fingerprint": "1"} for name in ("train", "score.nano")]
    manifest = RunManifest.model_validate({"id": "20260101-000000-abcdef", "tasks": rows})
    write_manifest(Store(str(root)), manifest)
    assert candidates("atelier logs 20260101 s") == ["score.nano "]
    assert candidates("atelier debug 20260101 t") == ["train "]


def test_bash_completes_behind_an_at_sign_and_an_equals_sign(root: Path, tmp_path: Path) -> None:
    command = tmp_path / "bin" / "atelier"
    command.parent.mkdir()
    command.write_text(f'#!/bin/bash\ncd {TOP} && exec {sys.executable} -m atelier "$@"\n')
    command.chmod(0o755)
    line = "atelier titan model@roles.student_a.model=gpt_m"
    script = f"""
        eval "$(atelier --completion bash)"
        COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)} COMP_CWORD=6
        COMP_WORDS=(atelier titan model @ roles.student_a.model = gpt_m)
        _atelier
        printf '<%s>' "${{COMPREPLY[@]}}"
        complete -p atelier
    """
    env = os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=env)
    assert done.stdout.startswith("<gpt_mini >") and "-F _atelier atelier" in done.stdout


def test_a_script_is_offered_for_bash_and_zsh_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--completion", "zsh"]) == 0
    assert "compdef _atelier atelier" in capsys.readouterr().out
    assert run(["--completion", "fish"]) == 2


def test_of_a_past_run_the_tasks_and_the_keys_of_its_flow_are_offered(root: Path) -> None:
    past(Store(str(root)), "pretrain", *TINY)
    assert f"{PAST} " in candidates("atelier rerun 2026")
    assert candidates(f"atelier rerun {PAST} --from sc") == ["score "]
    assert candidates(f"atelier rerun {PAST} score.max_t") == ["score.max_tokens="]
    assert (
        candidates("atelier rerun 20270101 score.max_t") == candidates("atelier rerun ../x --from sc") == []
    )
