"""The notebook of the documentation, executed as a reader executes it, in a store of its own."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.checkout import TOP

NOTEBOOKS = sorted((TOP / "docs" / "notebooks").glob("*.ipynb"))
LOOK = "import json; print(json.dumps({one.get_label(): one.get_xydata().tolist() for one in axes.lines}))"
PLACE = re.compile(r"/(?:home|Users|root|tmp|work)/")


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_a_notebook_is_kept_without_outputs_and_without_places_of_a_machine(page: Path) -> None:
    text = page.read_text()
    book = nbformat.reads(text, as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert code and all(not cell.outputs and cell.execution_count is None for cell in code)
    assert not PLACE.search(text) and set(book.metadata) == {"kernelspec", "language_info"}


@pytest.mark.slow
def test_the_first_student_is_planned_trained_plotted_and_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    monkeypatch.setenv("ATELIER_ROOT", str(root))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    book = nbformat.read(TOP / "docs" / "notebooks" / "first-student.ipynb", as_version=4)
    book.cells.append(nbformat.v4.new_code_cell(LOOK, id="look"))
    there = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, timeout=600, resources=there).execute()
    outputs = {cell.id: cell.outputs for cell in book.cells if cell.cell_type == "code"}
    said = {
        name: "".join(one.text for one in found if one.output_type == "stream")
        for name, found in outputs.items()
    }
    assert "train.student_a" in outputs["plan"][0]["data"]["text/plain"]
    assert "> train" in said["run"]
    assert outputs["lineage"][0]["data"]["image/svg+xml"].startswith("<svg")
    assert any("image/png" in one.get("data", {}) for one in outputs["curves"])
    curves = json.loads(said["look"])
    assert {name: len(points) for name, points in curves.items()} == {"teacher": 24, "student_a": 12}
    assert [step for step, _ in curves["teacher"]] == list(range(1, 25))
    assert said["generate"]
    names = [json.loads(path.read_text())["name"] for path in root.glob("model/*/record.json")]
    assert sorted(names) == ["student_a", "teacher"]
