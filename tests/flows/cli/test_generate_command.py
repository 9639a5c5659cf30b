"""`atelier generate` at a terminal: text while it is drawn, and an immediate end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atelier.engine.io.artifact import open_input
from atelier.flows.cli.syntax import COMMANDS, DASHED, parse_words
from atelier.infra.store.store import Store
from tests.checkout import TOP
from tests.engine.scored_models import Study
from tests.infra.records import Shelf


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one untrained model and the tokenizer it was made with."""
    folder = tmp_path_factory.mktemp("speaking")
    source = open_input(Study(folder / "study").model().url)
    shelf = Shelf(Store(str(folder / "store")))
    shelf.publish(
        "model",
        "parrot",
        files={name: source.file(name, folder).read_bytes() for name in source.names()},
        step=0,
    )
    return folder / "store"


def generating(root: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "atelier", "generate", "parrot", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=TOP,
        env=os.environ | {"ATELIER_ROOT": str(root), "AWS_SECRET_ACCESS_KEY": "hush"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # `&` ignores it
    )


@pytest.mark.parametrize("prompt", ["--help", "-h", "--max-tokens=2", "-x y", "-5", "--", "", "a=b", "it's"])
def test_a_prompt_of_any_letters_arrives_as_it_was_given(prompt: str) -> None:
    given = [f"--prompt={prompt}", "--max-tokens", "3"]
    found = parse_words(COMMANDS["generate"], ["parrot", *given])
    assert (found.prompt, found.max_tokens, found.model) == ([prompt], "3", "parrot")
    if not DASHED.match(prompt):
        assert parse_words(COMMANDS["generate"], ["--prompt", prompt, "parrot"]).prompt == [prompt]


def test_generate_prints_the_prompt_its_continuation_and_the_speed(speaking: Path) -> None:
    child = generating(speaking, "--prompt", "the sea", "--max-tokens", "5", "--seed", "3")
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0 and out.startswith("the sea") and "5 tokens" in err


def test_control_prompts_are_refused_in_one_line_by_a_model_that_learned_none(speaking: Path) -> None:
    out, err = (child := generating(speaking, "--genre", "code")).communicate(timeout=60)
    assert (child.returncode, out) == (2, "") and len(err.splitlines()) == 1
    assert err.startswith("control prompt: the model was not trained with control prompts")
    assert "objective of kind control" in err


def test_ctrl_c_ends_generate_at_once_and_leaves_no_process(speaking: Path) -> None:
    child = generating(speaking, "--max-tokens", "1000000", "--temperature", "0")  # never draws an end token
    assert child.stdout is not None and child.stdout.read(1)
    [engine] = children_of(child.pid)
    assert b"hush" not in Path(f"/proc/{engine}/environ").read_bytes()  # no credential reaches the engine
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert child.returncode == 130 and "Traceback" not in err
    assert time.monotonic() - began < 10
    assert not Path(f"/proc/{engine}").exists()


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
