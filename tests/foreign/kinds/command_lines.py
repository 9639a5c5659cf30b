"""Odd options and values: each value arrives unchanged, or one line refuses it."""

import io
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

from atelier.engine.config.error import UNSEEN, ConfigError
from atelier.flows.cli import syntax
from atelier.flows.cli.main import run
from atelier.flows.cli.syntax import COMMANDS
from tests.foreign.search import Case

COUNT = 30
TEXTS = (
    "--help", "-h", "--", "-", "-x", "--prompt", "--json", "-5", "-.5", "-1e3", "a=b", "=",
    "--max-tokens=3", "", " ", "[{not json", '[{"role": "user", "content": "x"}]', "{}", "[]", "null",
    "ü", "日本", "\udcff", "a\nb", "\x1b[2J", "'", '"', "\\", "$HOME", "${HOME}", "${oc.env:HOME}",
    "`id`", "*", "~", "@latest", "mine@best", "a b", "-x y", "%s", "{0}", "x" * 5000, "0x7f", "nan",
    "1e999", "2GB", "-2GB", "\u202e", "_target_", "[" * 50, "http://[::1", "a::b", "zip::x", "s3:",
    "stdlib:", "--=", "---", "-", "\u2028", "\t", "A=1,2", "{a:1}",
)  # fmt: skip
KEYS = (
    "train.steps", "steps", "lr", "--steps", "data.source", "name", "model", "pool", "tracker.uri",
    "+x", "~x", "", "source", "optim", "tokenizer.load", "score.sample", "experiment", "+role@roles.x",
    "train.seed", "sites",
)  # fmt: skip
FLOWS = ("pretrain", "distill", "finetune", "corpus", "titan", "adopt", "score", "convert", "instruct")
# commands that start nothing, ask nothing and need no server
ASKED = ("plan", "list", "runs", "models", "lineage", "generate", "export", "pick", "status", "gc", "site")
MAY_FAIL = ("lineage", "pick", "site", "status", "export")  # not only for bad input


def draw(rng: random.Random) -> Case:
    if rng.random() < 0.5:
        number = rng.choice((1, 1, 2, 3))
        pairs = [f"{rng.choice(KEYS)}={rng.choice(TEXTS)}" for _ in range(number)]
        words = [pair if rng.random() < 0.8 else rng.choice(TEXTS) for pair in pairs]
        return {"words": ["plan", rng.choice(FLOWS), *words]}
    command = COMMANDS[rng.choice(ASKED)]
    words = []
    for option in rng.sample(command.options, k=min(len(command.options), rng.choice((0, 1, 1, 2)))):
        value = rng.choice(TEXTS)
        forms = ([option.flag, value], [f"{option.flag}={value}"], [option.flag])
        words += rng.choice(forms)
    words += rng.choices(TEXTS, k=rng.choice((0, 1, 1, 2)))
    return {"words": [command.name, *words]}


def check(case: Case, folder: Path) -> str:
    words = case["words"]
    _arrives(words)
    code, out, said = _run([*words, *(["--dry-run"] if words[0] == "gc" else [])], folder)
    assert "a fault in the program" not in said and "Traceback" not in said, said[:600]
    assert code in (0, 2) or (code == 1 and words[0] in MAY_FAIL), f"exit code {code}: {said[:300]}"
    lines = said.removesuffix("\n").split("\n")
    assert not any(UNSEEN.search(line) for line in lines), said[:600]
    assert len(lines) == 1 or all(line.startswith("plan: ") for line in lines), said[:600]
    assert lines[0] or not code or words[0] == "status", "it says nothing"
    is_refused = code == 2 and "is not UTF-8" in said  # before the command is looked at
    assert ("usage: " in out) == (_asks_help(words) and not is_refused), (
        f"help is printed or not: {out[:300]}"
    )
    return "refused" if code else "works"


def _run(words: list[str], folder: Path) -> tuple[int, str, str]:
    before, out, err = os.getcwd(), io.StringIO(), io.StringIO()
    private = {"ATELIER_ROOT": str(folder / "store"), "ATELIER_SITE": str(folder / "site")}
    home = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    os.chdir(folder)
    try:
        with patch.dict(os.environ, private | home), redirect_stdout(out), redirect_stderr(err):
            return run(words), out.getvalue(), err.getvalue()
    finally:
        os.chdir(before)


def _asks_help(words: list[str]) -> bool:
    valued = {option.flag for option in COMMANDS[words[0]].options if option.value}
    return any(word in ("-h", "--help") and before not in valued for before, word in pairwise(words))


def _arrives(words: list[str]) -> None:
    """A value behind an option's equals sign is what the command gets."""
    command = COMMANDS[words[0]]
    options = {option.flag: option for option in command.options if option.value}
    needed = [word.name for word in command.words if word.required]
    for word in words:
        flag, is_given, value = word.partition("=")
        if is_given and flag in options:
            try:
                found = vars(syntax.parse_words(command, [*needed, word]))[flag[2:].replace("-", "_")]
            except ConfigError as error:
                raise AssertionError(f"{word} is refused: {error}") from None
            assert found == ([value] if options[flag].many else value), (word, found)


@contextmanager
def broken() -> Iterator[None]:
    """Help is printed wherever a word asks for it, as it once was."""

    def asks(words: list[str], options: object = ()) -> bool:
        return any(word in syntax.HELP for word in words)

    with patch.object(syntax, "asks_help", asks):
        yield
