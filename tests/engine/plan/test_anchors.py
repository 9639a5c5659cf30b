"""Plans against published figures (benchmarks/anchors.py): a constant fitted on two rows holds for the
others.
"""

from benchmarks import anchors


def test_parameter_counts_are_those_of_the_papers() -> None:
    counted = [row for row in anchors.parameters() if "percent" in row]
    assert len(counted) == 3 and all(abs(row["percent"]) < 0.5 for row in counted)


def test_throughput_of_ptdp_is_within_6_percent_on_rows_that_nothing_was_fitted_on() -> None:
    found = anchors.throughput()
    assert len(found) == 5 and all(abs(row["percent"]) < 6 for row in found), found


def test_the_rows_that_the_share_of_the_peak_was_fitted_on_lie_on_both_sides_of_it() -> None:
    below, above = sorted(row["percent"] for row in anchors.fitted() if row["scheme"] == "ptd")
    assert -3 < below < 0 < above < 3


def test_what_recomputation_costs_is_within_3_percent_with_nothing_fitted() -> None:
    found = anchors.recomputation()
    assert len(found) == 2 and all(abs(row["percent"]) < 3 for row in found), found


def test_utilisation_follows_from_the_published_times() -> None:
    for row in anchors.recomputation():
        assert abs(row["mfu"] - row["mfu published"]) < 1 and abs(row["hfu"] - row["hfu published"]) < 1


def test_the_search_has_mt_nlgs_own_mesh_among_its_first_three() -> None:
    first = anchors.layouts()[:3]
    assert any("tensor=8" in mesh and "pipeline=35" in mesh for mesh in first), first
