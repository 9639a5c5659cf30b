"""Figures of the source's structure reach their goals, or get no worse (benchmarks/structure.py)."""

import ast
from functools import cache

import pytest
from benchmarks.structure import FIGURES, circles, figures, imports, size, sources

from atelier.engine.config.record import KINDS
from tests.checkout import TOP

HELD = sorted(name for name, figure in FIGURES.items() if figure.most is not None)
CLOSING = [  # imports that make a circle
    "from atelier.engine.a import f",
    "def g():\n    from atelier.engine.a import f",
    "if TYPE_CHECKING:\n    from atelier.engine import a",
]


@cache
def here() -> dict[str, int | list[str]]:
    return figures(sources())


@pytest.mark.parametrize("name", HELD)
def test_a_figure_is_no_worse_than_it_was(name: str) -> None:
    found = here()[name]
    assert size(found) <= (FIGURES[name].most or 0), found


@pytest.mark.parametrize(
    ("without", "found"), [("", CLOSING), ("types", CLOSING[:2]), ("functions", CLOSING[:1])]
)
def test_circles_are_found_by_what_closes_them(without: str, found: list[str]) -> None:
    for text in CLOSING:
        trees = {"engine/a.py": ast.parse("import atelier.engine.b"), "engine/b.py": ast.parse(text)}
        expected = ["engine/a.py <-> engine/b.py"] if text in found else []
        assert circles(imports(trees, without)) == expected


def test_a_short_file_with_one_importer_counts_unless_it_is_found_by_its_name_or_run() -> None:
    texts = {
        "engine/plan/short.py": "x = 1",
        "engine/objective/kind.py": "x = 1",
        "engine/plan/program.py": 'x = 1\nif __name__ == "__main__":\n    x',
        "engine/plan/both.py": "x = 1",
        "engine/plan/user.py": "from atelier.engine.plan import both, program, short\n" + "x = 1\n" * 60,
        "engine/loop/other.py": "import atelier.engine.plan.both\nimport atelier.engine.objective.kind\n"
        + "x\n" * 60,
    }
    assert figures(texts)["files under 60 lines that one other imports"] == ["engine/plan/short.py"]


def test_removal_knows_the_kind_of_each_artifact_that_a_task_makes() -> None:
    made: dict[str, str] = {}
    for path in sorted((TOP / "tasks").glob("[!_]*.py")):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            name = getattr(call.func, "id", "")
            given = call.args[1:2] if name == "declare_one" else []
            given += [each.value for each in call.keywords if name == "Product" and each.arg == "kind"]
            made |= {str(each.value): path.name for each in given if isinstance(each, ast.Constant)}
    assert len(made) > 15
    assert not made.keys() - set(KINDS), "atelier gc would never remove these"
