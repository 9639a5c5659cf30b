"""The plot of a loss during training."""

from xml.etree import ElementTree

from atelier.flows.deployments.task_run import MOST, loss_svg, thinned


def test_every_role_has_its_curve_and_its_last_value() -> None:
    curves = {"teacher": [(1, 4.0), (2, 3.5)], "student <a>": [(2, 5.0), (3, float("nan")), (4, 4.5)]}
    tree = ElementTree.fromstring(loss_svg(curves))
    lines = [e for e in tree.iter() if e.tag.endswith("polyline")]
    words = " ".join(e.text or "" for e in tree.iter() if e.tag.endswith("text"))
    assert len(lines) == 2
    assert "teacher 3.500" in words and "student <a> 4.500" in words
    assert "nan" not in lines[1].attrib["points"]


def test_a_flat_or_empty_curve_is_no_error() -> None:
    assert loss_svg({}) == ""
    assert loss_svg({"model": [(0, 2.0)]}).startswith("<svg")


def test_a_long_curve_is_thinned_and_keeps_its_end() -> None:
    curve = [(float(i), 1.0 / (i + 1)) for i in range(10 * MOST)]
    assert len(thinned(curve)) <= MOST + 1
    assert thinned(curve)[-1] == curve[-1]
