"""The skeleton of docs/extend/adding-a-model.md trains, is scored and generates, with its three files alone;
a missing method is one line of error with the file.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkout import TOP, copied, python_path

PAGE = (TOP / "docs" / "extend" / "adding-a-model.md").read_text()
BLOCKS = re.findall(r"(?s)```(?:python|yaml)\n# ((?:engine|conf)/\S+)\n(.*?)```", PAGE)
FILES = [(place.replace("<kind>", "plain").replace("<name>", "plain_nano"), text) for place, text in BLOCKS]
TINY = ("experiment=tiny", "tracker=none", "score.baselines=false", "train.steps=4")
Checkout = Callable[..., subprocess.CompletedProcess[str]]
GREEDY = """
import torch
from atelier.engine.config.model.plain import Plain
from atelier.engine.inference.sampling import continuation
from atelier.engine.config.generation import Sampling
from atelier.engine.model.load import build, initialise
model = build(Plain(num_layers=2, hidden=32, num_heads=4, vocab=50, init_std=0.3)).double().eval()
initialise(model, seed=1, name="model")
assert {name: tuple(w.shape) for name, w in model.named_parameters()} == model.spec.shapes()
ids = list(continuation(model, [3, 1, 4], Sampling(max_tokens=20, temperature=0.0), ends=[99]))
row = [3, 1, 4]
for _ in ids:
    tokens = torch.tensor([row])
    batch = {"tokens_BT": tokens, "positions_BT": torch.arange(len(row))[None]}
    hidden = model(batch | {"documents_BT": torch.zeros_like(tokens)}).hidden
    row.append(int((hidden[0, -1] @ model.head_weight.T).argmax()))
assert row[3:] == ids and len(set(ids)) > 3, (row, ids)
"""
# the model, and then what `build` says to each version of its file; each in a process of its own
TRIED = """
import os, sys
from pathlib import Path
import atelier.engine.model.load
sys.dont_write_bytecode = True  # versions of one size are written within one second

def in_a_fork(code):
    if not (pid := os.fork()):
        try:
            exec(code, {})
        except Exception as error:
            print(str(error).removeprefix("model.plain: "), flush=True)
            os._exit(not code.startswith("from"))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

build = "from atelier.engine.config.model.plain import Plain\\n"
build += "atelier = __import__('atelier.engine.model.load')\\n"
build += "atelier.engine.model.load.build(Plain(num_layers=1, hidden=32, num_heads=4, vocab=50))"
greedy, name, *versions = sys.argv[1:]
in_a_fork(greedy)
for text in versions:
    Path(name).write_text(text)
    in_a_fork(build)
"""
WRONG = [
    (
        "return PlainModel(spec)",
        "return nn.Linear(1, 1)",
        "engine/model/plain.py: build returns no Model, but Linear",
    ),
    ("self.blocks = nn", "self.my_blocks = nn", "engine/model/plain.py: PlainModel does not set self.blocks"),
    ("self.spec = spec", "self.my_spec = spec", "engine/model/plain.py: PlainModel does not set self.spec"),
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code with the skeleton's files."""
    target = copied(tmp_path_factory.mktemp("skeleton"))
    assert [name for name, _ in FILES] == [
        "engine/config/model/plain.py", "engine/model/plain.py", "conf/model/plain_nano.yaml",
    ]  # fmt: skip
    for name, text in FILES:
        (target / name).write_text(text)
    return target


def run(checkout: Path, root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {
        "PYTHONPATH": python_path(checkout),
        "ATELIER_ROOT": str(root),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, cwd=checkout)


def lacking(checkout: Path, method: str) -> None:
    """Take a method out of the model's file."""
    name, text = FILES[1]
    changed = re.sub(rf"(?s)    def {method}\(.*?(?=\n    def |\n\n\ndef |\n    @)", "", text)
    assert changed != text
    (checkout / name).write_text(changed)


def test_what_the_skeleton_generates_and_how_what_build_gives_is_checked(
    checkout: Path, tmp_path: Path
) -> None:
    """With its cache it generates what it does without; what is wrong in its file is told with the file."""
    name, text = FILES[1]
    (checkout / name).write_text(text)
    versions = [text.replace(old, new) for old, new, _ in WRONG]
    assert text not in versions
    done = run(checkout, tmp_path, "-c", TRIED, GREEDY, name, *versions)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{said}; fix it (docs/extend/adding-a-model.md)" for _, _, said in WRONG
    ]


@pytest.mark.slow
def test_the_documented_skeleton_trains_is_scored_and_generates(checkout: Path, tmp_path: Path) -> None:
    (checkout / FILES[1][0]).write_text(FILES[1][1])
    done = run(checkout, tmp_path, "-m", "atelier", "pretrain", "model=plain_nano", "name=plain", *TINY)
    assert done.returncode == 0 and "bits/byte" in done.stdout, done.stdout + done.stderr
    done = run(checkout, tmp_path, "-m", "atelier", "generate", "plain", "--prompt", "def ", "--seed", "1")
    assert done.returncode == 0 and len(done.stdout) > 4, done.stderr
    lacking(checkout, "new_cache")
    done = run(checkout, tmp_path, "-m", "atelier", "generate", "plain", "--prompt", "def ")
    assert done.returncode == 2 and done.stderr.strip() == (
        "model.plain: needs `new_cache`, but PlainModel does not define it; "
        "define it in engine/model/plain.py (docs/extend/adding-a-model.md)"
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["initial", "shared", "enter", "through", "leave"])
def test_a_method_that_a_contributed_model_lacks_is_one_line_with_the_file(
    method: str, checkout: Path, tmp_path: Path
) -> None:
    lacking(checkout, method)
    done = run(checkout, tmp_path, "-m", "atelier", "pretrain", "model=plain_nano", *TINY)
    said = next(line for line in done.stderr.splitlines() if method in line)
    assert f"model.plain: needs `{method}`" in said and "engine/model/plain.py" in said
    assert done.returncode and "Traceback" not in done.stderr and "AttributeError" not in done.stderr
