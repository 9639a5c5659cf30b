"""Hostile arguments: each answer is one short line that a terminal can show."""

import os
import random
import re
import subprocess
import time
from pathlib import Path

import pytest

from atelier.engine.config.base import flatten
from atelier.engine.config.error import UNSEEN
from atelier.engine.config.pool import Pool
from atelier.flows.cli.main import run
from atelier.flows.run.compose import compose
from tests.checkout import TOP
from tests.flows.cli.pace import undisturbed

TINY = ("experiment=tiny", "tracker=none")
FLOWS = ("pretrain", "distill", "titan", "finetune", "corpus", "convert", "semoe")
LONGEST = 800  # characters of an answer; most of it are the names that are known
CPU_S = 3.0  # a plan of tiny takes 0.3 to 1
NUMBERS = ("1000000000", "-1", "0", "1e30", "999999999999999999999", "nan", "inf", "-0.0", "1e-320", "0x7f")
TEXTS = (
    "x" * 90_000,
    "a\nb\nc",
    "\x1b[2J\x1b]0;x\x07",
    "\u202eabc",
    "\udcff\udc80",
    "a\x00b",
    "'",
    '"',
    "\\",
    "[" * 15,
)
PLACES = (
    "/dev/zero", "/dev/full", "/proc/self/mem", "/", "/etc/shadow/x", "fifo", "folder", "loop", "~nobody/x",
    "http://127.0.0.1:1/x.txt", "ftp://127.0.0.1:1/x.txt", "memory://none/x.txt", "http://[::1", "file://",
    "s3://", "http://user:secret@127.0.0.1:1/x.txt", "zip://x.txt::/dev/null", "*" * 300, "x/" * 2000,
    "stdlib:\n", "/proc/kmsg", "github://org:repo@/x",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "pipe.txt")
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `atelier <words>` says on stderr; nothing when it works."""
    began = time.process_time()
    code = run(words)
    took = time.process_time() - began
    took = took if took < CPU_S else undisturbed(took)
    err = capsys.readouterr().err
    assert code in (0, 1, 2) and took < CPU_S, (took, err[:300])
    assert "a fault in the program" not in err and "Traceback" not in err, err[:600]
    if code:
        first, *more = err.removesuffix("\n").split("\n")
        assert len(err) <= LONGEST and not UNSEEN.search(first + "".join(more)), (len(err), err[:600])
        assert all(line.startswith("plan: ") for line in (first, *more)) or not more, err[:600]
        assert "secret" not in err
    return err


@pytest.mark.parametrize("seed", range(14))
def test_whatever_value_a_key_gets_the_answer_is_short_and_comes_at_once(
    seed: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(seed)
    flow = draw.choice(FLOWS)
    is_whole = flow not in ("finetune", "convert")  # they need a model
    keys = sorted(flatten(compose(flow, ["experiment=tiny"]).document)) if is_whole else ["init"]
    keys += [f"pool.{name}" for name in Pool.model_fields]
    key, value = draw.choice(keys), draw.choice(draw.choice((NUMBERS, NUMBERS, TEXTS)))
    answer(capsys, "plan", flow, *TINY, f"{key}={value}")


@pytest.mark.parametrize("place", PLACES, ids=range(len(PLACES)))
@pytest.mark.parametrize("key", ["data.source", "tokenizer.load"])
def test_a_source_that_is_none_is_named_and_not_waited_for(
    key: str, place: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if key == "data.source" and place == "/":
        pytest.skip("the whole machine is a folder like others")
    began = time.monotonic()
    assert answer(
        capsys, "plan", "corpus", *TINY, f'{key}="{place}"' if "\n" not in place else f"{key}={place}"
    )
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("seed", range(12))
def test_words_of_any_kind_are_answered_in_one_short_line(
    seed: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(seed)
    words = [draw.choice(("plan", "pretrain", "lineage", "generate", "gc", "runs", "list", "pick", "", "-m"))]
    words += [draw.choice((*TEXTS, *NUMBERS, *PLACES, "--x" * 999)) for _ in range(draw.randint(1, 3))]
    if words[0] == "" or draw.random() < 0.3:
        words = words[1:]
    answer(capsys, *words)


@pytest.mark.parametrize(
    "word",
    [
        "pool.slots=1000000000", "pool.slots=735134400", "pool.slots=55440", "model.hidden=999999937",
        "parallel.expert=1000000000", "parallel.replicate=999999937", "parallel.shard=1000000000",
        "parallel.tensor=999999937", "parallel.pipeline=1000000000", "train.micro_batch=999999937",
        "train.global_batch=735134400",
    ],
)  # fmt: skip
def test_a_size_beyond_all_machines_is_answered_at_once(
    word: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "plan", "pretrain", "data=small", "tracker=none", word)


def test_a_missing_file_is_told_the_nearest_name_and_nothing_else_of_its_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("novels.txt", "diary.txt", "secret-plans.txt"):
        (folder / name).write_text("x")
    err = answer(capsys, "plan", "corpus", *TINY, "data.source=novel.txt")
    assert f"did you mean {folder}/novels.txt?" in err and "diary" not in err
    err = answer(capsys, "plan", "corpus", *TINY, "data.source=quux")
    assert not any(name in err for name in ("novels", "diary", "secret", "folder/", "fifo"))


def test_an_installation_is_never_advised_by_a_name_that_is_another_program_s() -> None:
    """The package of this name on an index is not this one."""
    listed = subprocess.run(["git", "ls-files"], cwd=TOP, capture_output=True, text=True, check=True)
    strange = re.compile(
        r"(pip|uv|pipx)\s[^\n]*(?<!un)install[^\n]*[ \t'\"]atelier\b(?![-/])|\batelier\[[a-z]"
    )
    named = [
        name
        for name in listed.stdout.splitlines()
        if (TOP / name).is_file() and strange.search((TOP / name).read_text(errors="ignore"))
    ]
    assert named in ([], ["CHANGELOG.md"])
