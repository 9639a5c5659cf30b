"""Names of files and folders: not UTF-8, line ends, blanks, patterns, dashes, very long, twins of one letter.

Each is read as it is named, by what a command line or a program gives, and keeps its name in the corpus; or
one line names it escaped.
"""

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from unittest.mock import patch

from atelier.engine.config.error import UNSEEN, AtelierError
from atelier.engine.config.run_file import RunFile
from atelier.engine.io import source_files
from atelier.flows.run import overrides
from atelier.flows.run.compose import compose
from atelier.flows.run.python_values import as_words
from atelier.infra.store import source_contents
from tests.engine.data.conftest import Workshop
from tests.foreign.search import Case

COUNT = 6
PARTS = (
    "a", "text", " ", "  ", "\n", "\t", "\r", "\x1b[31m", "*", "?", "[x]", "[", "]", "{a,b}", "-", "--", "~",
    "$HOME", "${data.field}", "%", "%20", "%2F", "#", "::", ":", "@", "=", ",", ";", "'", '"', "\\", "\\\\",
    "(", ")", "&", "|", "<b>", "é", "e\u0301", "漁", "🛟", "\u202e", "\u200b", "\ufeff", "\x7f", "\udce9",
    "\udcff\udcfe", ".", "..", "stdlib", "s3:", "file:", "null", "true", "1e3", "x" * 80, "x" * 300,
    "é" * 120, "_target_",
)  # fmt: skip
ENDINGS = (".txt", ".jsonl", ".txt.gz")


def draw(rng: random.Random) -> Case:
    parts = [*rng.choices(PARTS, k=rng.randint(1, 4)), *["\udce9"] * (rng.random() < 0.2)]
    return {
        "name": "".join(parts),
        "twin": rng.random() < 0.2,
        "ending": rng.choice(ENDINGS[:2]),
        "given": rng.choice(("file", "file", "folder", "below", "glob", "relative")),
    }


def check(case: Case, folder: Path) -> str:
    ending, top = case["ending"], folder / "here" / "there"  # so that a folder called .. has no other files
    top.mkdir(parents=True)
    files = _files(case, top)
    try:
        for number, path in enumerate(files):
            path.parent.mkdir(exist_ok=True)
            # two lines of one document, or two documents
            text = (
                f"{number} a text"
                if ending == ".txt"
                else f'{{"text": "{number} a"}}\n{{"text": "{number} b"}}\n'
            )
            path.write_text(text)
    except OSError:
        return "refused"  # by the file system
    given = {
        "file": str(files[0]),
        "relative": f"./{files[0].name}",
        "folder": str(top),
        "below": str(files[0].parent),
        "glob": f"{top}/*{ending}",
    }[case["given"]]
    wanted = files[:1] if case["given"] in ("file", "relative") else files
    is_text = all(_is_utf8(str(path)) for path in wanted) and _is_utf8(given)
    try:
        with chdir(top):
            return _read(given, wanted, ending, Workshop(folder))
    except AtelierError as error:
        said = str(error)
        assert error.exit_code == 2 and len(said) < 1200, said
        assert not UNSEEN.search(said), said
        few = "at least two are needed" in said and ending == ".txt" and len(wanted) < 2
        assert few or not is_text or "${" in given or "_target_" in given, f"refused without a reason: {said}"
        return "works" if few else "refused"
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}") from error


def _files(case: Case, top: Path) -> list[Path]:
    name = case["name"]
    if case["given"] == "below":
        return [top / name / f"{each}{case['ending']}" for each in "ab"]
    found = [top / f"{name}{case['ending']}", top / f"other{case['ending']}"]
    if case["twin"]:
        found += [top / f"{letters}{name}{case['ending']}" for letters in ("é", "e\u0301")]
    return found


def _is_utf8(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def _read(given: str, wanted: list[Path], ending: str, workshop: Workshop) -> str:
    frozen = compose("corpus", ["tracker=none", *as_words([{"data.source": given}], {})])
    source = frozen.arguments.data.sources()["main"]  # type: ignore[attr-defined]
    assert source.source == given, f"{given!r} became {source.source!r}"
    assert source.title and not UNSEEN.search(source.title), source.title
    files = [list(each) for each in source_contents.contents_of(source_files.files_of(source))]
    found, expected = (sorted(map(os.path.realpath, each)) for each in ([p for p, _ in files], wanted))
    assert found == expected, f"{found}, wanted {expected}"
    source_contents.identity_of([(path, digest) for path, digest in files])
    run = {"schema": 1, "task": "curate", "version": 1, "scratch": "", "config": {"files": files}}
    assert (
        RunFile.model_validate_json(RunFile.model_validate(run).model_dump_json(by_alias=True)).config
        == run["config"]
    )
    corpus = workshop.curate(source, 0.3, files)
    ids = {line["id"] for line in workshop.lines(corpus, "documents.jsonl")}
    names = {path.name for path in wanted}
    assert {each if ending == ".txt" else each.rpartition(":")[0] for each in ids} == names, (ids, names)
    return "works"


@contextmanager
def broken() -> Iterator[None]:
    """Names that are not UTF-8 are let through to what writes them down."""
    with ExitStack() as stack:
        for module in (source_files, source_contents, overrides):
            stack.enter_context(patch.object(module, "check_utf8", lambda *given: None))
        yield
