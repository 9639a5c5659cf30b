"""Mistyped input: one line on stderr with place, value and way out; exit code 2; nothing on stdout."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from atelier.engine.config.error import ConfigError
from atelier.flows.cli.main import run
from atelier.flows.run.compose import compose
from atelier.flows.run.overrides import calls_resolver, check_overrides
from atelier.infra.store.store import Store
from tests.checkout import TOP
from tests.infra.records import Shelf

TINY = "experiment=tiny tracker=none "


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "store"


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    """The one line that `atelier <words>` says on stderr."""
    assert run(list(words)) == code
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    assert len(err.splitlines()) == 1, err
    return err


MISTAKES = [
    # words of the command line, then what the line has to say: place, value, way out
    ("titn", "no flow or command 'titn'", "did you mean titan?"),
    ("lineag teacher", "no flow or command 'lineag'", "did you mean lineage?"),
    ("--hlp", "no option '--hlp'", "did you mean --help?"),
    ("pretrain --dry", "atelier pretrain: no option '--dry'", "--multirun"),
    ("runs --jsn", "no option '--jsn'", "did you mean --json?"),
    ("runs yesterday", "no run yesterday", "--all"),
    ("plan", "the following arguments are required: flow;", "`atelier plan --help`"),
    ("plan titn", "no flow 'titn'", "did you mean titan?"),
    ("list modle", "no group 'modle'", "did you mean model?"),
    ("distill rols.teacher.start=3", "rols: no such key", "did you mean roles?"),
    ("distill train.stps=3", "train.stps: no such key", "did you mean steps?"),
    ("distill roles.teacher.model.hiden=3", "roles.teacher.model.hiden: no such key", "did you mean hidden?"),
    ("distill roles.student_a.objective.logits.temprature=2", "no such key", "mean temperature?"),
    ("pretrain experimnt=tiny", "experimnt: no such key", "did you mean experiment?"),
    ("pretrain lr=1", "lr: no such key", "did you mean optim.lr or"),
    ("pretrain steps=4", "steps: no such key", "did you mean train.steps or"),
    ("pretrain --steps 4", "no option '--steps'; a key is written without dashes", "train.steps=<value>"),
    ("distill --global-batch=4", "no option '--global-batch=4'", "train.global_batch=<value>"),
    ("generate nobody --prompt --help", "--help looks like an option", "write --prompt=--help"),
    ("generate nobody --prompt -x", "--prompt: needs a value, but -x looks like", "write --prompt=-x"),
    ("generate nobody --prompt", "--prompt: needs a value", "--prompt=TEXT"),
    ("plan pretrain --fresh --search", "--fresh: needs a value", "write --fresh=--search"),
    ("generate nobody --chat [{not", "--chat: starts like a list of messages", "is any text"),
    ("pretrain sites=a,b", "sites: several of them are a list", "sites=[a,b]"),
    ("pretrain -m hydra/sweeper=bayes", "no option 'bayes' in group hydra/sweeper", "halving, optuna"),
    ("pretrain -m hydra.sweeper.trails=3", "hydra.sweeper.trails: no such key", "--hydra-help"),
    ("distill finetune.draws=3", "the flow distill has no finetune", "it has:"),
    ("pretrain model=gpt_nan", "no option 'gpt_nan' in group model", "did you mean gpt_nano?"),
    ("distill +modle@roles.teacher.model=gpt_nano", "there is no group 'modle'", "did you mean model?"),
    ("distill +role@roles.x=studnt", "no option 'studnt' in group role", "did you mean student?"),
    ("pretrain model.kind=gtp", "no model of kind 'gtp'", "did you mean gpt?"),
    ("pretrain train.steps=many", "train.steps: input should be a valid integer", "(given: 'many');"),
    ("pretrain train.steps=-5", "should be greater than or equal to 0 (given: -5)", "; optimiser steps"),
    ("pretrain optim.lr=7", "should be less than or equal to 1 (given: 7)", "peak learning rate"),
    ("pretrain model.num_heads=7", "hidden 128 is not divisible by num_heads 7", "num_heads=8 would fit"),
    ("pretrain model.num_heads=-1", "greater than or equal to 1 (given: -1)", "must divide hidden"),
    ("pretrain parallel.shard=-1", "greater than or equal to 1 (given: -1)", "auto = the pool's slots"),
    ("pretrain train.precision=i8", "'bf16', 'fp32', 'fp64' or 'fp8' (given: 'i8')", "arithmetic: bf16"),
    ("nebula sites.trial_mbps=-1", "sites.trial_mbps: input should be greater than", "loopback"),
    ("pretrain sites.trial_mbps=20", "sites.trial_mbps: limits a trial on loopback", "sites.loopback=true"),
    ("pretrain train.precision=fp8", "fp8, but the pool's devices are CPUs", "precision=bf16 runs"),
    ("pretrain pool=h100", "h100 is only for plans", "without paper"),
    ("pretrain pool.gpu=h10", "unknown device type 'h10'", "did you mean h100?"),
    ("pretrain model.hidden=16384", "GB on each of", "a smaller model, or more devices"),
    ("pretrain optim=4.5", "no option '4.5' in group optim", "adamw"),
    ("pretrain model=", "no option '' in group model", "gpt_nano"),
    ("pretrain experiment=null", "no option 'null' in group experiment", "there are:"),
    ("pretrain name='x", "name='x: cannot be read", "quote"),
    ("pretrain model=[gpt_nano", "model=[gpt_nano: cannot be read", "quote"),
    ("pretrain model.hidden", "model.hidden: is not an override", "key=value"),
    ("pretrain train.steps=0", "train: give either steps or tokens", "(above 0)"),
    ("pretrain train.steps=5 train.tokens=1e5", "steps=5 and tokens=100000 are both given", "steps=0 to use"),
    ("pretrain parallel.shard=3", "does not divide train.global_batch 8", "2 ranks would fit"),
    ("pretrain parallel.shard=2 train.micro_batch=3", "3 does not divide the 4", "micro_batch=2"),
    ("distill roles.pupil.start=3", "roles.pupil: there is no such role", "+role@roles.pupil=student"),
    ("distill roles.student_a.teacher=teachr", "there is no role 'teachr'", "did you mean teacher?"),
    ("distill roles.student_a.teacher=student_a", "form a cycle", "student_a -> student_a"),
    ("distill roles.student_a.start=24", "step 24 is not before the end", "earlier step"),
    ("distill roles.student_a.gate=closed", "roles.student_a.gate: input should be", "open = at the start"),
    ("pretrain objective=distill", "needs a teacher", "teacher=<role>"),
    ("pretrain train.seed=1,2", "train.seed: several values are a sweep", "add -m"),
    ("pretrain model=gpt_nano,gpt_mini", "model: several values are a sweep", "add -m"),
    ("pretrain -m model=gpt_nano,gpt_x", "no option 'gpt_x' in group model", "there are:"),
    ("pretrain train.seed=${oc.env:HOME}", "calls a resolver", "${train.seed}"),
    ("pretrain train.seed=${train.sed}", "'train.sed' not found", ""),
    ("plan pretrain data.source=${oc.env:HOME}", "calls a resolver", "references"),
    ("pretrain +model._target_=os.system", "_target_ is not allowed", "kind=<name>"),
    ("pretrain hydra.run.dir=/tmp/x", "Hydra's own settings matter only in a sweep", "-m"),
    ("pretrain --config-name=x", "works only with --cfg, --info or --hydra-help", "conf/<group>/"),
    ("pretrain --config-dir=/nowhere", "/nowhere is not a folder", "such as model/"),
    ("pretrain hydra.searchpath=[pkg://x]", "pkg://x is not a folder", "own-project.md"),
    ("pretrain hydra.searchpath=/tmp", "/tmp is not a list", "hydra.searchpath=[file://<folder>]"),
    ("new projekt mine", "nothing is called 'projekt'", "did you mean project?"),
    ("new project Mine", "'Mine' is not a name", "small letters"),
    ("new project json", "json is the name of a Python package already", "choose another"),
    ("new model mine", "no atelier.toml in this folder or above", "atelier new project <name>"),
    ("pretrain data.source=texts/*.txt", "no file matches texts/*.txt", ""),
    ("pretrain data.source=book.txt", "data.source: book.txt does not exist", ""),
    ("pretrain data.source=stdlib:asincio", "has no package 'asincio'", "did you mean asyncio?"),
    ("pretrain data.source=s4://bucket/x", "no such kind of storage", "fsspec URL"),
    ("pretrain data=files", "data.source: a value is required", "give data.source=<value>"),
    ("finetune init=nobody", "init: no model called 'nobody'", "the store has no model; is ATELIER_ROOT"),
    ("finetune", "init: a value is required; give the finished model to start from", "; e.g. init=mine"),
    ("adopt", "source: a value is required; give a folder saved by", "; e.g. source=checkpoints/"),
    ("score", "models: a value is required; give finished models", "; e.g. models=[teacher,student_a]"),
    ("score models=[nobody]", "models: no model called 'nobody'", "is ATELIER_ROOT right?"),
    ("generate nobody", "no model called 'nobody'", "is ATELIER_ROOT right?"),
    ("generate", "the following arguments are required: model", "`atelier generate --help`"),
    ("generate nobody --temperature -1", "--temperature: input should be greater", "divides the logits"),
    ("gc --forget never", "no run 'never'", "`atelier runs`"),
    ("--completion fish", "takes one of bash, zsh (given: fish)", "eval"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "says", "way_out"), MISTAKES, ids=[words for words, _, _ in MISTAKES])
def test_a_mistake_is_answered_in_one_line(
    words: str, says: str, way_out: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *rest = words.split()
    is_flow = first in ("pretrain", "distill", "finetune", "score", "titan", "convert", "semoe")
    line = refused(capsys, first, *(TINY.split() if is_flow and "--config-name=x" not in rest else ()), *rest)
    assert says in line and way_out in line


@pytest.mark.parametrize("words", ["lineage nobody", "lineage 0000"])
def test_lineage_of_nothing_says_where_it_looked(
    words: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, *words.split(), code=1)
    assert f"called {words.split()[1]!r} in {root}" in line


def test_a_name_nearly_right_gets_the_right_one(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shelf = Shelf(Store(str(root)))
    shelf.publish("model", "student_a", step=1)
    assert "`atelier models` lists them" in refused(capsys, "generate", "xyzzy")
    assert "did you mean student_a?" in refused(capsys, "generate", "studnet_a")
    assert "did you mean student_a?" in refused(capsys, "lineage", "studnet_a", code=1)
    assert "did you mean student_a?" in refused(capsys, "finetune", *TINY.split(), "init=studnet_a")


def test_an_export_to_a_file_or_in_a_strange_type_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Shelf(Store(str(root))).publish("model", "mine", step=1)
    (file := root.parent / "two.jsonl").write_text("")
    for place in (file, file / "below"):
        line = refused(capsys, "export", "mine", str(place))
        assert line == f"export: {file} is a file; give a new or an empty folder\n"
    line = refused(capsys, "export", "mine", "out", "--dtype", "fp8")
    assert line == "--dtype: 'fp8' is not known; there are float32, float16, bfloat16\n"


def test_a_bucket_that_does_not_answer_is_named_with_what_to_check(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = type("NoCredentialsError", (Exception,), {"__module__": "botocore.exceptions"})

    def find(*_: object, **__: object) -> None:
        raise fault("Unable to locate credentials")

    monkeypatch.setattr(MemoryFileSystem, "find", find)
    monkeypatch.setattr(MemoryFileSystem, "ls", find)
    monkeypatch.setenv("ATELIER_ROOT", "memory://nope/x")
    line = refused(capsys, "models", code=1)
    assert line.startswith("memory:///nope/x/model: NoCredentialsError: Unable to locate credentials; check")


def test_a_store_that_is_a_file_is_refused(
    tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root.write_text("")
    for words in (
        ["pretrain", *TINY.split()],
        ["plan", "pretrain", *TINY.split()],
        ["runs"],
        ["gc", "--yes"],
    ):
        line = refused(capsys, *words)
        assert line.startswith(f"ATELIER_ROOT: {root} is a file, not a folder") and "set ATELIER_ROOT" in line


@pytest.mark.parametrize("place", ["/proc/atelier", "/dev/null/atelier"])
def test_a_store_that_cannot_be_written_is_refused_before_anything_starts(
    place: str, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", place)
    assert "set ATELIER_ROOT" in refused(capsys, "pretrain", *TINY.split())


def test_a_damaged_record_is_named_with_what_removes_it(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "corpus", *TINY.split(), "--json"]) == 0
    [corpus] = [row for row in json.loads(capsys.readouterr().out)["tasks"] if row["kind"] == "corpus"]
    place = Path(Store(str(root)).address("corpus", corpus["fingerprint"])) / "record.json"
    place.parent.mkdir(parents=True)
    place.write_text('{"kind": "corpus"')
    line = refused(capsys, "plan", "corpus", *TINY.split(), code=1)
    assert str(place) in line and "not a record" in line and "atelier gc --damaged" in line
    assert run(["gc", "--damaged", "--yes"]) == 0
    capsys.readouterr()
    assert run(["plan", "corpus", *TINY.split()]) == 0


def test_a_form_may_not_reach_into_hydra_even_for_a_sweep() -> None:
    check_overrides(["hydra.sweeper.n_trials=3", "hydra/sweeper=optuna"], is_sweep=True)
    with pytest.raises(Exception, match="cannot be given in a form"):
        check_overrides(["hydra/sweeper=optuna"], is_sweep=True, from_form=True)
    check_overrides(
        [
            "+experiment@_global_=tiny",
            "name=my_model_",
            "data.source=a/_b_c/*.txt",
            "train.seed=${train.steps}",
        ]
    )


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("${a.b}", False),
        ("x:${a}", False),
        ("${oc.env:HOME}", True),
        ("${a.${oc.env:X}}", True),
        ("${${a}:b}", True),
        ("s3://a{b:c}", False),
    ],
)
def test_a_resolver_is_told_from_a_reference(text: str, calls: bool) -> None:
    assert calls_resolver(text) is calls


# what only a run finds out; Prefect's embedded server starts once for all of these

TEXTS = "a short text about ships\n"


@pytest.fixture(scope="module")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prefect")


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Everything that a run with an unusable input says on stderr."""
    assert run(["corpus", "tracker=none", "tokenizer=bpe512", *words]) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err


def test_unusable_text_is_named_by_file_and_line(
    root: Path,
    tmp_path: Path,
    prefect_home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(prefect_home))
    (tmp_path / "empty").mkdir()
    assert "empty has no text file" in refused(
        capsys, "corpus", *TINY.split(), f"data.source={tmp_path}/empty"
    )
    (tmp_path / "one.txt").write_text(TEXTS)
    assert "1 distinct text" in fails(capsys, f"data.source={tmp_path}/one.txt")
    lines = [json.dumps({"text": f"{TEXTS} number {n} of {n * 17}"}) for n in range(40)]
    lines[6] = '{"text": '
    (tmp_path / "broken.jsonl").write_text("\n".join(lines))
    assert "broken.jsonl:7" in fails(capsys, f"data.source={tmp_path}/broken.jsonl")
    skipping = [f"data.source={tmp_path}/broken.jsonl", "data.on_error=skip", "tokenizer.vocab=300"]
    assert run(["corpus", "tracker=none", "tokenizer=bpe512", *skipping]) == 0
    [record] = Store(str(root)).records("corpus")
    assert record.summary["skipped"] == 1


def test_as_a_process_the_line_is_on_stderr_alone_and_the_exit_code_is_2(root: Path) -> None:
    command = [sys.executable, "-m", "atelier", "pretrain", "experiment=tiny", "train.steps=-5"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TOP, env=dict(os.environ))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("train.steps: input should be greater than or equal to 0 (given: -5); ")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_went_away_is_no_traceback(root: Path) -> None:
    command = f"{sys.executable} -m atelier list flows | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=TOP)
    assert done.stderr == ""


@pytest.mark.parametrize("folder", ["plain", "d\udce9r"])
def test_a_file_or_word_that_is_not_utf8_is_named_escaped(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (root.parent / folder).mkdir()
    os.chdir(root.parent / folder)
    Path("caf\udce9.txt" if folder == "plain" else "plain.txt").write_text("a text")
    name = "caf" if folder == "plain" else "d"
    for source in (".", "*.txt"):
        said = refused(capsys, "plan", "corpus", f"data.source={source}")
        assert f"/{name}\\udce9" in said and "is not UTF-8; give it as UTF-8, or rename the file" in said
    for words in (
        ["plan", "corpus", "data.source=caf\udce9.txt"],
        ["generate", "x", "--prompt", "caf\udce9"],
    ):
        said = refused(capsys, *words)
        assert said.startswith("atelier: the word ") and "caf\\udce9" in said
    with pytest.raises(ConfigError, match="overrides: the word"):
        compose("corpus", ["data.source=caf\udce9.txt"])
    monkeypatch.setenv("ATELIER_ROOT", "/caf\udce9")
    said = refused(capsys, "plan", "corpus")
    assert said.startswith("ATELIER_ROOT: the path /caf\\udce9 is not UTF-8; give it as UTF-8")
