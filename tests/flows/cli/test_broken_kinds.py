"""A mistake in a model kind that somebody adds: one line on stderr with the file and the line."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.checkout import copied, python_path

SPEC = """
from typing import Literal
from atelier.engine.config.registry import ModelSpec

class Bag(ModelSpec):
    kind: Literal["bag"]
    num_layers: int = 1
    hidden: int = 8
    vocab: int = 8
"""
METHODS = ("tokens", "shapes", "num_params", "flops_per_token", "resolved")
WHOLE = SPEC + "".join(f"    def {name}(self, *_): return self\n" for name in METHODS)
BROKEN = [
    # of the spec's file, of the module's; then what the line has to say
    ("kind = \n", "", "engine/config/model/bag.py:1: invalid syntax"),
    ("\nfrom atelier.engine.config.registry import Modl\n", "", "config/model/bag.py:2: ImportError: "),
    ("import no_such_package\n", "", "model/bag.py:1: ModuleNotFoundError: No module named"),
    (SPEC.replace("ModelSpec", "Kind"), "", "engine/config/model/bag.py has no ModelSpec with a field `kind"),
    ("", "", "engine/config/model/bag.py has no ModelSpec with a field `kind: Literal['bag']`"),
    (SPEC, "", "engine/config/model/bag.py: the class Bag lacks flops_per_token, num_params, resolved"),
    (WHOLE, "import no_such_package\n", "engine/model/bag.py:1: ModuleNotFoundError"),
    (WHOLE, "def biuld(spec): ...\n", "engine/model/bag.py has no function build"),
]  # fmt: skip
PLANNED = ("plan", "pretrain", "experiment=tiny", "model.kind=bag")
# for each file in which a spec and a module stand: a process that reads them, forked after all else is loaded
TRIED = """
import contextlib, importlib, io, json, os, sys
from pathlib import Path
from atelier.engine.model.load import build
from atelier.flows.cli import main
from atelier.flows.run import compose, planned
sys.dont_write_bytecode = True  # files of one size may be written within one second
for name in ("atelier.engine.config.registry", "atelier.flows.cli.flow_command", "hydra"):
    importlib.import_module(name)

def try_it(builds):
    with contextlib.redirect_stderr(sys.stdout), contextlib.redirect_stdout(io.StringIO()) as out:
        if builds:
            from atelier.engine.config.registry import model_of
            try:
                build(model_of({"kind": "bag"}, ""))
            except Exception as error:
                print(error, file=sys.stderr)
        else:
            code = main.run(sys.argv[1:])
            print(f"exit code {code}, {len(out.getvalue())} letters of output", file=sys.stderr)

for spec, module, _ in json.load(sys.stdin):
    Path("engine/config/model/bag.py").write_text(spec)
    Path("engine/model/bag.py").write_text(module)
    print("---", flush=True)
    if not (pid := os.fork()):
        try_it(bool(module))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)
"""


def test_a_mistake_in_a_kind_that_somebody_adds_is_named_by_file_and_line(tmp_path: Path) -> None:
    project = copied(tmp_path / "project")
    done = subprocess.run(
        [sys.executable, "-c", TRIED, *PLANNED],
        input=json.dumps(BROKEN),
        capture_output=True,
        text=True,
        cwd=project,
        env={**os.environ, "PYTHONPATH": python_path(project), "ATELIER_ROOT": str(tmp_path / "store")},
    )
    assert done.returncode == 0, done.stderr
    answers = [text.strip().splitlines() for text in done.stdout.split("---\n")[1:]]
    for (_, module, says), answer in zip(BROKEN, answers, strict=True):
        line, *rest = answer
        assert rest == ([] if module else ["exit code 2, 0 letters of output"]), answer
        assert line.startswith("model.bag: ") and says in line
        assert line.endswith("; fix it (docs/extend/adding-a-model.md)")


def test_an_error_inside_such_a_kind_is_named_by_file_and_line(tmp_path: Path) -> None:
    project = copied(tmp_path / "project")
    spec = WHOLE.replace("flops_per_token(self, *_): return self", "flops_per_token(self, *_): return 1 // 0")
    (project / "engine/config/model/bag.py").write_text(spec)
    (project / "conf/model/bag.yaml").write_text("kind: bag\n")
    done = subprocess.run(
        [sys.executable, "-m", "atelier", *PLANNED[:-1], "model=bag"],
        capture_output=True,
        text=True,
        cwd=project,
        env={**os.environ, "PYTHONPATH": python_path(project), "ATELIER_ROOT": str(tmp_path / "store")},
    )
    [line] = done.stderr.splitlines()
    assert done.returncode == 1 and done.stdout == ""
    assert "engine/config/model/bag.py:" in line and "ZeroDivisionError" in line
    assert "a fault in the program, or in a kind that was added" in line
