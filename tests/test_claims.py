"""docs/results/claims.md: every figure of ours on it is read from benchmarks/results."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks.claims import CLAIMS, PAGE, RESULTS, ClaimError, page

from tests.checkout import TOP

ABSTRACTS = ("2112.12731", "2205.10034", "2106.10715", "2205.09470", "2201.11990", "2404.06395", "2110.01786",
             "1907.05242", "2312.12705")  # fmt: skip


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Copies of the claims and of the results."""
    return shutil.copytree(CLAIMS, tmp_path / "claims"), shutil.copytree(RESULTS, tmp_path / "results")


def edited(path: Path, change: Any) -> None:
    document = yaml.safe_load(path.read_text())
    change(document)
    text = json.dumps(document) if path.suffix == ".json" else yaml.safe_dump(document)
    path.write_text(text)


def first(document: dict[str, Any], how: str = "re-shown") -> dict[str, Any]:
    return next(one for one in document["claims"] if one["how"] == how and one.get("figures"))


def test_the_page_is_what_the_script_writes() -> None:
    assert PAGE.read_text() == page(), "run python benchmarks/claims.py"


def test_the_page_has_the_papers_that_the_project_follows() -> None:
    assert re.findall(r"(?m)^## .* \((.*)\)$", PAGE.read_text()) == list(ABSTRACTS)


def test_a_result_that_changes_changes_the_page(folders: tuple[Path, Path]) -> None:
    claims, results = folders

    def change(document: dict[str, Any]) -> None:
        document["numbers"]["over_seeds"]["assistant, nats below its control"]["mean"] = 0.777

    edited(results / "seeds.json", change)
    assert "The assistant is 0.78 ±" in page(claims, results) and "0.78 ±" not in PAGE.read_text()


@pytest.mark.parametrize("field", ["ours", "why"])
def test_a_figure_that_is_typed_is_refused(folders: tuple[Path, Path], field: str) -> None:
    claims, results = folders

    def change(document: dict[str, Any]) -> None:
        claim = first(document)
        claim[field] = claim.get(field, "") + " About 0.41 nats."

    edited(claims / "titan.yaml", change)
    with pytest.raises(ClaimError, match=rf"titan: claim 2: {field} has a digit"):
        page(claims, results)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        (["seeds", "over_seeds", "nobody", "mean", ".2f"], "seeds.json has no .*'nobody'"),
        (["nowhere", "mean", ".2f"], "there is no benchmarks/results/nowhere.json"),
        (["seeds", "over_seeds", ".2f"], "no number"),
    ],
)
def test_a_place_that_no_result_has_is_refused(
    folders: tuple[Path, Path], path: list[str], problem: str
) -> None:
    claims, results = folders

    def change(document: dict[str, Any]) -> None:
        figures = first(document)["figures"]
        figures[next(iter(figures))] = path

    edited(claims / "titan.yaml", change)
    with pytest.raises(ClaimError, match=f"titan: claim 2: .*{problem}"):
        page(claims, results)


def test_a_figure_that_is_not_said_is_refused(folders: tuple[Path, Path]) -> None:
    claims, results = folders
    edited(claims / "titan.yaml", lambda document: first(document).update(ours="It helps."))
    with pytest.raises(ClaimError, match="ours has"):
        page(claims, results)


def test_what_is_not_shown_says_why(folders: tuple[Path, Path]) -> None:
    claims, results = folders

    def change(document: dict[str, Any]) -> None:
        next(one for one in document["claims"] if one["how"] == "not shown").pop("why")

    edited(claims / "cpm2.yaml", change)
    with pytest.raises(ClaimError, match="cpm2: claim 7: not shown needs why"):
        page(claims, results)


def test_what_is_shown_has_a_figure_or_a_test(folders: tuple[Path, Path]) -> None:
    claims, results = folders
    edited(claims / "titan.yaml", lambda document: first(document).update(figures={}, ours="It holds."))
    with pytest.raises(ClaimError, match="titan: claim 2: re-shown needs figures or tests"):
        page(claims, results)


def test_a_result_without_a_machine_says_so(folders: tuple[Path, Path]) -> None:
    claims, results = folders
    edited(results / "seeds.json", lambda document: document.pop("machine"))
    assert "seeds.json (no command in the file), machine not in the file, no date" in page(claims, results)


def test_commands_of_the_claims_are_scripts_that_exist() -> None:
    named = set(re.findall(r"`python (benchmarks/\w+\.py)", PAGE.read_text()))
    assert len(named) > 10 and [name for name in sorted(named) if not (TOP / name).exists()] == []
