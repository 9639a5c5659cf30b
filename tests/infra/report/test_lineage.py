"""Ancestors and descendants of a model, from the store alone."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from atelier.engine.config.error import AtelierError
from atelier.infra.report.lineage import Index, lineage, trajectory_segments
from atelier.infra.report.lineage_graph import Edge, Graph, LineageNode
from atelier.infra.report.lineage_svg import to_svg
from atelier.infra.report.lineage_text import to_html, to_json, to_mermaid, to_text
from atelier.infra.store.store import Store
from tests.infra.records import Shelf, family

DATA = {"tokens.main": "a" * 64}


def edges(graph: Graph) -> set[tuple[str, str, str]]:
    return {
        (graph.nodes[e.parent].name, graph.nodes[e.child].name, e.label)
        for e in graph.edges
        if graph.nodes[e.child].kind == "model"
    }


def test_a_student_shows_its_teacher_with_the_steps_and_its_corpus(tmp_path: Path) -> None:
    made = family(tmp_path)
    graph = lineage(made.shelf.store, "student_a")
    assert graph.focus == made["student_a"].fingerprint  # a model before scores of the same name
    assert ("teacher", "student_a", "teacher @ steps 101-400") in edges(graph)
    assert {n.name for n in graph.nodes.values()} == {"stdlib", "bpe", "teacher", "student_a"}
    order = graph.order()
    assert (
        order.index(made["corpus"].fingerprint)
        < order.index(made["teacher"].fingerprint)
        < order.index(graph.focus)
    )


def test_a_teacher_lists_its_students_and_not_the_control(tmp_path: Path) -> None:
    made = family(tmp_path)
    graph = lineage(made.shelf.store, made["teacher"].fingerprint[:10])
    assert {graph.nodes[e.child].name for e in graph.children(graph.focus)} == {"student_a", "student_b"}
    assert [r.name for r in Index(made.shelf.store).students(made["teacher"])] == ["student_a", "student_b"]


def test_a_trajectory_leads_to_its_model_and_one_without_a_model_stands_for_itself(tmp_path: Path) -> None:
    made = family(tmp_path)
    assert (
        lineage(made.shelf.store, made.segments["student_b"].fingerprint[:12]).focus
        == made["student_b"].fingerprint
    )
    begun = made.shelf.trajectory(
        "student_c", DATA | {"teacher": made.segments["teacher"].fingerprint}, start=300
    )
    graph = lineage(made.shelf.store, "student_c")
    assert graph.focus == begun.fingerprint and graph.nodes[graph.focus].kind == "trajectory"
    assert [graph.nodes[e.parent].name for e in graph.parents(graph.focus)] == ["teacher"]


def test_trunks_collapse_into_the_models_that_grew_on_them(tmp_path: Path) -> None:
    shelf = Shelf(Store(str(tmp_path)))
    trunk = shelf.trajectory("big", DATA)
    branches = [
        shelf.trajectory("big", DATA | {"trunk": trunk.fingerprint}, start=at, trunk_step=at)
        for at in (100, 300)
    ]
    early = shelf.model("early", branches[0], {}, step=150, run="run-1")
    late = shelf.model("late", branches[1], {}, step=350, run="run-2")
    middle = shelf.model("middle", trunk, {}, step=200, run="run-3")
    taught = {"teacher": trunk.fingerprint}
    pupils = [shelf.trajectory(f"pupil_{n}", taught, start=n) for n in (1, 2)]
    shelf.model("pupil_1", pupils[0], taught, step=9, run="run-1", teacher_steps=[2, 9])
    shelf.model("pupil_2", pupils[1], taught, step=9, run="run-2", teacher_steps=[3, 9])
    assert edges(lineage(shelf.store, "early")) == {("early", "pupil_1", "teacher @ steps 2-9")}
    assert edges(lineage(shelf.store, "late")) == {
        ("middle", "late", "trunk @ step 200"),
        ("late", "pupil_2", "teacher @ steps 3-9"),
    }
    assert edges(lineage(shelf.store, "middle")) >= {("middle", "late", "trunk @ step 200")}
    assert late.fingerprint != middle.fingerprint != early.fingerprint
    assert [(s.start, s.end) for s in trajectory_segments(shelf.store, branches[1].fingerprint, 350)] == [
        (0, 300),
        (300, 350),
    ]


def test_a_run_shows_what_it_made_and_what_it_used(tmp_path: Path) -> None:
    made = family(tmp_path, run="run-20261121")
    tasks = [{"fingerprint": record.fingerprint} for record in made.records.values()]
    (tmp_path / "runs").mkdir()
    for run in ("run-20261121", "run-20261122"):
        (tmp_path / "runs" / f"{run}.json").write_text(
            json.dumps({"id": run, "flow": "distill", "tasks": tasks})
        )
    graph = lineage(made.shelf.store, "run-20261121")
    assert graph.nodes[graph.focus].kind == "run"
    assert {e.label for e in graph.children(graph.focus)} == {"made"}
    assert {e.label for e in lineage(made.shelf.store, "run-20261122").children("run-20261122")} == {"used"}


def test_a_wrong_name_ends_with_the_nearest(tmp_path: Path) -> None:
    made = family(tmp_path)
    with pytest.raises(AtelierError, match="did you mean teacher"):
        lineage(made.shelf.store, "teachr")


def test_a_damaged_trajectory_does_not_hide_the_rest(tmp_path: Path) -> None:
    made = family(tmp_path)
    place = Path(made.segments["teacher"].url) / "trajectory.json"
    place.write_text(place.read_text().replace("teacher", "teachex"))
    assert ("teacher", "student_a", "teacher @ steps 101-400") in edges(
        lineage(made.shelf.store, "student_a")
    )


def test_every_drawing_has_every_node(tmp_path: Path) -> None:
    made = family(tmp_path)
    graph = lineage(made.shelf.store, made["tokens"].fingerprint)
    text, mermaid, page = to_text(graph), to_mermaid(graph), to_html(graph)
    picture = to_svg(graph)
    for node in graph.nodes.values():
        assert all(node.short in drawing for drawing in (text, mermaid, page, picture))
    assert "https://" not in page and "src=" not in page
    lines = text.splitlines()
    focus = next(i for i, line in enumerate(lines) if line.startswith("stdlib  tokens"))
    assert lines[0] == "comes from" and lines[focus + 1] == "leads to"
    document = to_json(graph)
    assert json.loads(json.dumps(document))["focus"] == graph.focus
    assert len(document["nodes"]) == len(graph.nodes) and len(document["edges"]) == len(graph.edges)


def test_a_name_with_markup_stays_text(tmp_path: Path) -> None:
    shelf = Shelf(Store(str(tmp_path)))
    shelf.publish("corpus", '<script>&"x"', summary={"documents": 3})
    graph = lineage(shelf.store, '<script>&"x"')
    assert "<script>" not in to_html(graph) and "<script>" not in to_mermaid(graph)
    ElementTree.fromstring(to_svg(graph))  # well-formed


def test_boxes_of_a_picture_do_not_overlap(tmp_path: Path) -> None:
    made = family(tmp_path)
    root = ElementTree.fromstring(to_svg(lineage(made.shelf.store, made["corpus"].fingerprint)))
    boxes = [
        [float(r.attrib[key]) for key in ("x", "y", "width", "height")] for r in root.findall(".//{*}rect")
    ]
    assert len(boxes) == 8
    for i, (x, y, width, height) in enumerate(boxes):
        assert all(abs(x - u) >= width or abs(y - v) >= height for u, v, _, _ in boxes[i + 1 :])


def test_labels_of_a_picture_cover_neither_boxes_nor_each_other(tmp_path: Path) -> None:
    made = family(tmp_path)
    taught = {"teacher": made.segments["teacher"].fingerprint, "tokens.main": made["tokens"].fingerprint}
    for number in range(3):
        segment = made.shelf.trajectory(f"pupil_{number}", taught, start=number)
        made.shelf.model(f"pupil_{number}", segment, taught, step=9, teacher_steps=[1, 9])
    root = ElementTree.fromstring(to_svg(lineage(made.shelf.store, "teacher")))
    taken = [
        [float(r.attrib[key]) for key in ("x", "y", "width", "height")] for r in root.findall(".//{*}rect")
    ]
    boxes = len(taken)
    for text in root.findall("{*}text"):
        width = 5.5 * len(text.text or "")  # of letters 11 pixels high
        taken.append([float(text.attrib["x"]) - width / 2, float(text.attrib["y"]) - 9, width, 11])
    assert boxes == 10 and len(taken) >= boxes + 9
    for i, (x, y, width, height) in enumerate(taken):
        for u, v, wide, high in taken[i + 1 :]:
            assert x + width <= u or u + wide <= x or y + height <= v or v + high <= y


def test_a_deep_lineage_stands_upright_and_a_broad_one_lies(tmp_path: Path) -> None:
    made = family(tmp_path)
    deep = lineage(made.shelf.store, "student_a")
    assert size_of(to_svg(deep)) < (600, 1000) and "width=" in to_svg(deep, 600).split("\n")[0]
    assert "width=" not in to_svg(deep, 300).split("\n")[0]
    for number in range(20):
        made.shelf.publish("tokens", f"t{number}", {"corpus": made["corpus"].fingerprint})
    broad = lineage(made.shelf.store, made["corpus"].fingerprint)
    width, height = size_of(to_svg(broad))
    assert width < height


def size_of(svg: str) -> tuple[float, float]:
    _, _, width, height = map(float, ElementTree.fromstring(svg).attrib["viewBox"].split())
    return width, height


def test_a_brief_picture_has_no_scores_and_counts_what_it_leaves_out(tmp_path: Path) -> None:
    made = family(tmp_path)
    teaching = {"teacher": made.segments["teacher"].fingerprint}
    for number in range(10):
        segment = made.shelf.trajectory(f"pupil_{number}", teaching, start=number)
        made.shelf.model(f"pupil_{number}", segment, teaching, step=9)
    names = [node.name for node in lineage(made.shelf.store, "teacher").brief().nodes.values()]
    assert sorted(name for name in names if "pupil" in name) == ["pupil_0", "pupil_1", "pupil_2"]
    assert "and 7 more" in names and {"student_a", "student_b", "stdlib"} <= set(names)
    near = lineage(made.shelf.store, "student_a").near()
    assert sorted(node.kind for node in near.nodes.values()) == ["model", "model", "text"]
    [text] = [node for node in near.nodes.values() if node.kind == "text"]
    assert text.name == "stdlib" and text.fingerprint == made["corpus"].fingerprint
    assert text.numbers == {"documents": 714, "tokens": 2_800_000, "vocab": 4096}
    assert {edge.label for edge in near.edges} == {"text", "teacher @ steps 101-400"}
    above = lineage(made.shelf.store, made["corpus"].fingerprint).near()
    assert {node.kind for node in above.nodes.values()} == {"corpus", "tokenizer", "tokens"}


def graph_of_models(*edges: tuple[str, str, str]) -> Graph:
    """Of `text` and models; the last child is the focus."""
    kinds = {name: "text" if name == "text" else "model" for edge in edges for name in edge[:2]}
    nodes = {name: LineageNode(fingerprint=name, kind=kind, name=name) for name, kind in kinds.items()}
    return Graph(focus=edges[-1][1], nodes=nodes, edges=tuple(Edge(*edge) for edge in edges))


def test_a_picture_has_no_arrow_from_text_that_the_teacher_read_too_but_one_from_other_text() -> None:
    same = [("text", "teacher", "text"), ("text", "student", "text"), ("teacher", "student", "teacher")]
    shown = graph_of_models(*same).without_shortcuts().edges
    assert [(edge.parent, edge.child) for edge in shown] == [("text", "teacher"), ("teacher", "student")]
    assert len(graph_of_models(same[1], same[2]).without_shortcuts().edges) == 2


def test_a_model_that_is_teacher_and_beginning_is_shown_as_both(tmp_path: Path) -> None:
    both = graph_of_models(("teacher", "student", "init"), ("teacher", "student", "teacher @ steps 0-9"))
    assert {edge.label for edge in both.folded().edges} == {"init", "teacher @ steps 0-9"}
    made = family(tmp_path)
    roles = {"teacher": made.segments["teacher"].fingerprint, "init": made["teacher"].fingerprint}
    made.shelf.model("pupil", made.shelf.trajectory("pupil", roles), roles, step=9)
    labels = {label for parent, child, label in edges(lineage(made.shelf.store, "pupil")) if child == "pupil"}
    assert labels == {"teacher", "init"}
