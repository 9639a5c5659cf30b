from typing import Any

import pytest
import torch
from torch import Tensor

from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.ernie import Ernie
from atelier.engine.config.objective.distance import Distance
from atelier.engine.config.objective.natural import Natural
from atelier.engine.config.objective.reorder import Reorder, orders
from atelier.engine.config.row_classes import RowClasses
from atelier.engine.objective.classes import class_logits

B, T, D, W = 3, 14, 6, 4
SEGMENTS = torch.tensor(
    [
        [-1, 0, 0, 0, -1, 1, 1, -1, 2, 2, 2, 2, -1, -1],
        [-1, 0, 0, 0, 0, 0, -1, 1, 1, 1, 1, 1, 1, 1],
        [-1, 0, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1],
    ]
)


def weights(spec: RowClasses) -> dict[str, Tensor]:
    kind = spec.kind
    return {
        f"classes.{kind}.weight": torch.randn(spec.num_classes, D),
        f"pairs.{kind}.end.weight": torch.randn(W, D),
        f"pairs.{kind}.begin.weight": torch.randn(W, D),
    }


def fit(states: Tensor, found: dict[str, Tensor], kind: str, end: int, begin: int) -> Tensor:
    """Of the tokens at these places."""
    query = found[f"pairs.{kind}.end.weight"] @ states[end]
    return query @ (found[f"pairs.{kind}.begin.weight"] @ states[begin]) / len(query) ** 0.5


def test_the_logit_of_an_order_is_that_of_its_row_and_how_well_what_follows_fits() -> None:
    torch.manual_seed(0)
    spec, hidden_BTD = Reorder(), torch.randn(B, T, D, dtype=torch.float64)
    found = {name: value.double() for name, value in weights(spec).items()}
    given = class_logits(spec, hidden_BTD, {"segments_BT": SEGMENTS}, found.__getitem__, has_pairs=True)
    ends, begins = {0: (3, 6, 11), 1: (5, 13)}, {0: (1, 5, 8), 1: (1, 7)}
    for row in (0, 1):
        for kind, order in enumerate(orders(3)):
            if len(order) != len(ends[row]):
                continue
            expected = found["classes.reorder.weight"][kind] @ hidden_BTD[row, 0]
            for segment in range(len(order) - 1):
                before, after = order.index(segment), order.index(segment + 1)
                places = ends[row][before], begins[row][after]
                expected = expected + fit(hidden_BTD[row], found, "reorder", *places)
            assert (given[row, kind] - expected).abs() < 1e-12
    alone = found["classes.reorder.weight"] @ hidden_BTD[2, 0]  # one segment: nothing follows it
    assert (given[2] - alone).abs().max() < 1e-12


def test_adjacent_fragments_and_those_of_two_documents_have_a_comparison_each() -> None:
    torch.manual_seed(0)
    spec, hidden_BTD, found = Distance(), torch.randn(B, T, D), weights(Distance())
    batch = {"segments_BT": SEGMENTS[1:2]}
    bare = class_logits(spec, hidden_BTD[1:2], batch, found.__getitem__, has_pairs=False)
    more = class_logits(spec, hidden_BTD[1:2], batch, found.__getitem__, has_pairs=True)
    assert torch.equal(more[:, 1], bare[:, 1])
    for kind, relation in ((0, 0), (2, 1)):
        own = {name: value.chunk(2)[relation] for name, value in found.items() if name.startswith("pairs")}
        fits = fit(hidden_BTD[1], own, "distance", 5, 7)
        assert (more[0, kind] - bare[0, kind] - fits).abs() < 1e-5


def test_a_head_that_compares_needs_segments_to_compare() -> None:
    shape: dict[str, Any] = {"num_layers": 1, "hidden": 8, "num_heads": 2, "vocab": 20}
    with pytest.raises(
        ConfigError, match=r"roles\.m\.model\.pairs\.natural: .*natural have no segments to compare"
    ):
        Natural().check(
            "roles.m.", "natural", Ernie(**shape, classes={"natural": 2}, pairs={"natural": 4}), None
        )
    Reorder().check("roles.m.", "reorder", Ernie(**shape, classes={"reorder": 9}, pairs={"reorder": 4}), None)
    with pytest.raises(ConfigError, match=r"5 is not divisible by the 2 relations of distance; .*distance=6"):
        Distance().check("", "distance", Ernie(**shape, classes={"distance": 3}, pairs={"distance": 5}), None)
