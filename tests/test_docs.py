"""Documents name what exists: links between pages, their headings, and files of the project."""

import re
import subprocess
import sys
from glob import glob
from pathlib import Path

import pytest

from tests.checkout import TOP

PAGES = sorted([*(TOP / "docs").rglob("*.md"), *TOP.glob("*.md")])
CODE = ("engine", "flows", "infra", "tasks", "conf", "src")
LINK = re.compile(r"\]\((?!\w+://)([^)#]*)(#[^)]*)?\)")
FILE = re.compile(r"(?<![\w/.<-])(?:engine|flows|infra|tasks|conf|tests|benchmarks|docs)/[\w/{},.*-]*\w[}]?")
PAGE = re.compile(r"docs/[\w/-]+\.md")


def headings(page: Path) -> set[str]:
    """Anchors of the page's headings, made as GitHub makes them."""
    found = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def spelled_out(path: str) -> list[str]:
    """`a/{b,c}.py` as `a/b.py` and `a/c.py`."""
    if not (found := re.search(r"\{([^}]*)\}", path)):
        return [path]
    each = [path[: found.start()] + word + path[found.end() :] for word in found[1].split(",")]
    return [one for path in each for one in spelled_out(path)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), target
        assert not anchor or anchor[1:] in headings(linked), (target, anchor)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = {name for found in FILE.findall(page.read_text()) for name in spelled_out(found)}
    assert [name for name in sorted(named) if not glob(str(TOP / name))] == []


def test_parts_written_by_hand_have_about_the_lines_that_are_said() -> None:
    page = (TOP / "docs/reference/decisions.md").read_text()
    said = [
        (row[1], int(row[2].replace(",", ""))) for row in re.finditer(r"(?m)^\| (.+?) \| ([\d,]+) \|", page)
    ]
    files = [files_of(part) for part, _ in said]
    for number, (part, lines) in enumerate(said):
        others = files[number + 1 : number + 3] if "without the next two" in part else []
        counted = sum(len(path.read_text().splitlines()) for path in files[number].difference(*others))
        assert 0.9 < counted / lines < 1.1, (part, counted)
    assert len(said) > 30


def files_of(part: str) -> set[Path]:
    """Of a part's paths; `sinks/` beside `infra/tracking/a.py` is infra/tracking/sinks/."""
    found: set[Path] = set()
    paths = re.findall(r"`([^`]*)`", part)
    for path in paths:
        beside = "" if path.startswith(CODE) else paths[0].rpartition("/")[0] + "/"
        for one in (Path(name) for name in spelled_out(str(TOP / (beside + path)))):
            assert one.exists(), one
            found |= {one} if one.is_file() else set(one.rglob("*.py"))
    return found


@pytest.mark.parametrize(
    ("script", "text", "path"),
    [
        ("architecture", "drawing()", "docs/pictures/architecture.svg"),
        ("api_reference", "page()", "docs/reference/api.md"),
    ],
)
def test_what_a_script_makes_of_the_source_is_up_to_date(script: str, text: str, path: str) -> None:
    program = [sys.executable, "-c", f"import {script}; print({script}.{text}, end='')"]
    made = subprocess.run(program, cwd=TOP / "benchmarks", capture_output=True, text=True, check=True).stdout
    assert (TOP / path).read_text() == made, f"run python benchmarks/{script}.py"


def test_the_index_names_every_page() -> None:
    index = TOP / "docs" / "README.md"
    linked = {(index.parent / target).resolve() for target, _ in LINK.findall(index.read_text())}
    assert {page for page in PAGES if page.is_relative_to(index.parent)} - linked == {index}


def test_pages_that_code_and_messages_name_exist() -> None:
    files = [path for part in CODE for path in (TOP / part).rglob("*") if path.suffix in (".py", ".yaml")]
    files += [
        TOP / name for name in ("Makefile", "docker-compose.yml", ".env.example", "infra/docker/Dockerfile")
    ]
    named = {page for path in files for page in PAGE.findall(path.read_text())}
    assert named and [page for page in sorted(named) if not (TOP / page).exists()] == []


def test_the_glossary_has_fifteen_words_at_most() -> None:
    words = (TOP / "CONTRIBUTING.md").read_text().split("### Words\n")[1].split("\n\n")[0]
    assert 0 < len(words.splitlines()) - 2 <= 15
