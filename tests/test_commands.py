"""The commands in README, docs and `atelier list` are valid: flows compose with their words, the others
parse.
"""

import functools
import re
import shlex
from pathlib import Path

import pytest

from atelier.engine.config.error import AtelierError
from atelier.engine.config.model.gpt import GPT
from atelier.flows.cli import syntax
from atelier.flows.run.catalog import flow_names, groups, option_text, options
from atelier.flows.run.compose import compose
from atelier.infra.launch.found_gpus import FoundGpus, report_gpus
from tests.checkout import TOP
from tests.stored_models import store_with

PAGES = sorted([*(TOP / "docs").rglob("*.md"), *TOP.glob("*.md")])
BLOCK = re.compile(r"(?ms)^ *```\w*\n(.*?)^ *```")
NOT_HERE = re.compile(r"\b(init|models)=(?!guest)|\bsource=(?!stdlib)")  # models and files of a reader
READERS_PART = {"<name>": "gpt_nano", "<run>": "3f2a"}  # what a reader puts in


def commands(page: Path) -> list[str]:
    """What follows `atelier` in the lines of a page's blocks, without comments."""
    lines = [
        line.strip().removeprefix("$ ")
        for block in BLOCK.findall(page.read_text())
        for line in block.replace("\\\n", " ").splitlines()
    ]
    found = [line.removeprefix("atelier ") for line in lines if line.startswith("atelier ")]
    found = [line for line in found if not re.search("model=(mine|wide)", line)]  # of a reader's project
    for mark, word in READERS_PART.items():
        found = [line.replace(mark, word) for line in found]
    return found


ALL = sorted({(str(page.relative_to(TOP)), line) for page in PAGES for line in commands(page)})


def examples() -> list[tuple[str, str]]:
    """The examples that `atelier list` shows, by their files, without those that need what is not here."""
    texts = {
        f"conf/{group}/{one}.yaml": option_text(group, one)[1] for group in groups() for one in options(group)
    }
    return [
        (file, text.removeprefix("atelier "))
        for file, text in texts.items()
        if text.startswith("atelier ") and not NOT_HERE.search(text)
    ]


def first_point(word: str) -> str:
    """The first of several values of a sweep, commas inside brackets aside."""
    key, equals, values = word.partition("=")
    return key + equals + re.split(r",(?![^\[({]*[\])}])", values)[0]


def check(line: str) -> None:
    check_words(tuple(word for word in shlex.split(line, comments=True) if word != "..."))


@functools.cache  # several pages have the same one
def check_words(line: tuple[str, ...]) -> None:
    first, *words = line
    if first in syntax.COMMANDS:
        options = syntax.parse_words(syntax.COMMANDS[first], words)
        if first == "plan":
            compose(options.flow, options.overrides)
    elif first in flow_names():
        if "-m" in words:
            words = [first_point(word) for word in words]
        compose(first, [word for word in words if not word.startswith("-")])
    else:
        assert first in ("--help", "--version", "help"), line


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the models that the page on models of others adopts, and GPUs of a worker."""
    root = tmp_path_factory.mktemp("store")
    report_gpus(
        str(root), "gpu", FoundGpus(host="big", name="NVIDIA H100", total=8, free=8, memory_gb=80), []
    )
    for name in ("guest", "tuned"):
        store_with(root, GPT(num_layers=1, hidden=32, num_heads=2, vocab=300), name)
    return root


@pytest.mark.parametrize(("page", "line"), ALL)
def test_a_command_of_a_page_is_one(
    page: str, line: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(root))
    check(line)


@pytest.mark.parametrize(("file", "line"), examples())
def test_an_example_of_a_choice_is_a_command(
    file: str, line: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(root))
    check(line)


@pytest.mark.parametrize(
    "line", ["titan experiment=laptob", "titen", "generate", "plan pretrain model=gpt_nan"]
)
def test_a_wrong_one_would_be_found(line: str) -> None:
    with pytest.raises((AtelierError, AssertionError)):
        check(line)
