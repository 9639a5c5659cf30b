"""A split model gives the results of a whole one: scores of labels, greedy and sampled texts, class logits.
Layouts have two and four ranks, models are of several kinds.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from atelier.engine.config.model.encdec import EncDec
from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.objective.distance import Distance
from atelier.engine.config.parallel import InferenceLayout
from atelier.engine.config.registry import ModelSpec
from atelier.engine.parallel.gang import Gang
from tests.forks import start_gang
from tests.parity.inference import NUM_IDS, Said, ask
from tests.parity.inference_trials import compare, try_for
from tests.parity.trials import Trials

pytestmark = pytest.mark.slow

SHAPE: dict[str, Any] = {"num_layers": 4, "hidden": 32, "num_heads": 4, "vocab": NUM_IDS, "init_std": 0.3}
SMALL = Net(num_layers=2, hidden=16, num_heads=2)
HEADS = {"natural": 2, "distance": Distance().num_classes}
MODELS: dict[str, ModelSpec] = {
    "dense": GPT(**SHAPE, num_kv_heads=2, window=6, vocab_padding=2),
    "untied": GPT(**SHAPE, tied=False, positions="learned", norm="layer", bias=("qkv", "out", "mlp")),
    "experts": GPT(**SHAPE, num_experts=4, experts_per_token=2),
    "encdec": EncDec.model_validate(SHAPE | {"num_layers": 2, "init_std": 1.0}),
    "ernie": Ernie(**SHAPE, nlg=SMALL, nlu=SMALL, prompts=4, classes=HEADS, pairs={"distance": 8}),
}
TWO: dict[str, dict[str, int]] = {
    "replicate": {"replicate": 2},
    "shard": {"shard": 2},
    "tensor": {"tensor": 2},
    "pipeline": {"pipeline": 2},
    "expert": {"expert": 2},
}
FOUR: dict[str, dict[str, int]] = {
    "tensor x shard": {"tensor": 2, "shard": 2},
    "pipeline x tensor": {"pipeline": 2, "tensor": 2},
    "pipeline x replicate": {"pipeline": 2, "replicate": 2},
    "pipeline x expert": {"pipeline": 2, "expert": 2},
    "shard of 4": {"shard": 4},
    "pipeline of 4": {"pipeline": 4},
}
REFUSED = [name for name in (*TWO, *FOUR) if "expert" in name]  # of models without experts


@pytest.fixture(scope="module")
def whole() -> dict[str, Said]:
    torch.set_num_threads(1)
    found = {name: ask(spec, InferenceLayout(), Gang(), torch.float64) for name, spec in MODELS.items()}
    return {name: said for name, said in found.items() if said is not None}


@pytest.fixture(scope="module", params=["two", "four"])
def split(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Said]]:
    layouts = TWO if request.param == "two" else FOUR
    return asked(tmp_path_factory.mktemp(request.param), layouts, "fp64")


def asked(folder: Path, layouts: dict[str, dict[str, int]], precision: str) -> dict[str, dict[str, Said]]:
    case = {
        "models": {name: spec.arguments() for name, spec in MODELS.items()},
        "layouts": layouts,
        "precision": precision,
        "refused": {name: REFUSED for name in MODELS if name != "experts"},
    }
    (folder / "case.json").write_text(json.dumps(case))
    ranks = InferenceLayout.model_validate(next(iter(layouts.values()))).ranks
    start_gang("tests.parity.inference", folder, ranks, str(folder / "case.json"))
    return json.loads((folder / "answers.json").read_text())


def nats_of(said: Said) -> list[float]:
    return [nats for nats_BT, _ in said["scored"] for row in nats_BT for nats in row]


@pytest.mark.parametrize("name", MODELS)
def test_a_split_model_gives_the_results_of_a_whole_one(
    whole: dict[str, Said], split: dict[str, dict[str, Said]], name: str
) -> None:
    one = whole[name]
    assert len({token for row in one["greedy"] for token in row}) > 5  # not one token for ever
    for layout, other in split[name].items():
        assert nats_of(other) == pytest.approx(nats_of(one), abs=1e-10), layout
        assert [best for _, best in other["scored"]] == [best for _, best in one["scored"]], layout
        assert other["greedy"] == one["greedy"], layout
        assert other["drawn"] == one["drawn"], layout
        assert (name == "ernie") == bool(one["classes"])
        for logits, same in zip(other["classes"], one["classes"], strict=True):
            assert logits == pytest.approx(same, abs=1e-10), layout


@pytest.mark.parametrize("name", ["65/2/0", "65/4/1"])
def test_random_models_in_random_layouts_give_what_one_process_gives(name: str, tmp_path: Path) -> None:
    found = try_for(0, 0, tmp_path, only=name)
    assert sum(found.tried.values()) >= 4 and not found.failures


def test_a_likelihood_or_a_token_that_differs_is_found(whole: dict[str, Said]) -> None:
    one = whole["dense"]
    nats_BT, best_BT = one["scored"][0]
    moved = [[nats + 1e-9 for nats in row] for row in nats_BT]
    broken = [*nats_BT[:-1], [*nats_BT[-1][:-1], math.nan]]
    wrongs = [one | {"scored": [[nats, best_BT], *one["scored"][1:]]} for nats in (moved, broken)]
    for wrong in (*wrongs, one | {"drawn": [[5]]}):
        found = Trials()
        compare("a", one, one, "fp64", found)
        assert not found.failures
        compare("a", one, wrong, "fp64", found)
        assert found.failures
