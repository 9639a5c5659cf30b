"""Conversions of several parents: a mean of models, an adapter merged with its base."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atelier.engine.config.conversion.average import AverageModels
from atelier.engine.config.conversion.merge_adapter import MergeAdapter
from atelier.engine.config.conversions import ANCESTRY, ConversionSpec
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.role import Trainable
from atelier.engine.convert import convert
from atelier.engine.io.artifact import ArtifactInput, open_input
from atelier.engine.model import lora
from atelier.engine.model.contract import stored
from atelier.engine.model.load import read_model
from atelier.engine.model.weights import in_memory
from tests.engine.scored_models import Study
from tests.engine.test_convert import batch
from tests.engine.trainings import artifact

SEEDS = ("one", "two", "three")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    made = Study(tmp_path_factory.mktemp("parents"))
    for name in SEEDS:
        made.model(name)
    return made


def weights(source: ArtifactInput, study: Study) -> dict[str, Tensor]:
    return dict(stored(read_model(source, study.scratch)[0]))


def converted(
    study: Study, rule: ConversionSpec, model: ArtifactInput, **others: ArtifactInput
) -> tuple[ArtifactInput, dict[str, Any]]:
    inputs = {"model": model, "tokens": study.tokens, **others}
    run = study.run_file("convert", {"rule": rule.model_dump(mode="json"), "measured": 300}, inputs, "model")
    summary = convert(run)
    made = Path(run.outputs["model"])
    files = {path.name: path.read_bytes() for path in made.iterdir()}
    return open_input(artifact(made.parent / "made", "model", files, **summary)), summary


@pytest.mark.parametrize("given", [(), (1.0, 2.0, 5.0)])
def test_a_mean_is_of_all_numbers_and_every_parent_has_its_share(study: Study, given: Any) -> None:
    one, two, three = (open_input(str(study.folder / name)) for name in SEEDS)
    rule = AverageModels(models=SEEDS[1:], weights=given)
    made, summary = converted(study, rule, one, **{"model.1": two, "model.2": three})
    shares = [weight / 8 for weight in given] or [1 / 3] * 3
    parents = [weights(source, study) for source in (one, two, three)]
    for name, weight in weights(made, study).items():
        mean = sum(parent[name].double() * share for parent, share in zip(parents, shares, strict=True))
        assert torch.allclose(weight.double(), torch.as_tensor(mean), atol=1e-7), name
    for name, pieces in made.json(ANCESTRY, study.scratch).items():
        assert [(piece[0], piece[1], piece[3:]) for piece in pieces] == [
            (name, pytest.approx(share), role)
            for share, role in zip(shares, ([], ["model.1"], ["model.2"]), strict=True)
        ]
    assert len(set(summary["losses"])) == 3 and summary["losses"][0] == summary["loss_before"]
    assert summary["loss_after"] > 0 and summary["shares"] == pytest.approx(shares)


def test_the_mean_of_a_model_and_itself_is_the_model(study: Study) -> None:
    one = open_input(str(study.folder / "one"))
    made, summary = converted(
        study, AverageModels(models=("one",), weights=(0.3, 0.1)), one, **{"model.1": one}
    )
    for name, weight in weights(made, study).items():
        assert torch.equal(weight, weights(one, study)[name])
    assert summary["loss_after"] == summary["loss_before"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"num_layers": 3}, "convert.models: other has num_layers 3, the first model 2"),
        ({"num_heads": 4}, "other has num_heads 4, the first model 2"),
        ({"multipliers": {"logits": 0.5}}, "other has multipliers.logits 0.5, the first model 1.0"),
        ({"num_experts": 4}, "other has num_experts 4, the first model 0"),
    ],
)
def test_models_of_other_shapes_have_no_mean(study: Study, other: dict[str, Any], words: str) -> None:
    one = open_input(str(study.folder / "one"))
    strange = study.model("other", **other)
    with pytest.raises(ConfigError, match=words):
        converted(study, AverageModels(models=("other",)), one, **{"model.1": strange})


def test_models_that_differ_in_dropout_alone_have_a_mean(study: Study) -> None:
    one, other = (
        GPT(num_layers=2, hidden=32, num_heads=2),
        GPT(num_layers=2, hidden=32, num_heads=2, dropout=0.1),
    )
    rule = AverageModels(models=("other",))
    rule.check_other(one, other, rule.others["model.1"])


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            lambda: AverageModels().converted(GPT(num_layers=2, hidden=32, num_heads=2)),
            "convert.models: is empty",
        ),
        (
            lambda: MergeAdapter().converted(GPT(num_layers=2, hidden=32, num_heads=2)),
            "convert.adapter: is empty",
        ),
        (lambda: AverageModels(models=("a",), weights=(1.0,)), "weights has 1 numbers for 2 models"),
        (lambda: AverageModels(models=("a",), weights=(1.0, 0.0)), "greater than 0"),
    ],
)
def test_a_rule_without_its_parents_says_what_it_lacks(rule: Any, words: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=words):
        rule()


def adapter(study: Study, base: ArtifactInput, **changed: Any) -> tuple[ArtifactInput, nn.Module]:
    """A trained adapter under our names, and the model with it."""
    model, _ = read_model(base, study.scratch)
    trainable = Trainable(kind="lora", rank=4, alpha=12.0, targets=("query", "down"))
    lora.apply(model, trainable, seed=1, name="role")
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(len(name)))
    files: dict[str, bytes] = {}
    additions = in_memory({name: weight.detach() for name, weight in model.named_parameters()})
    lora.write_adapter(
        additions, trainable, lambda name, parts: files.update({name: b"".join(parts)}), base="one"
    )
    for name, content in changed.items():
        files[lora.CONFIG] = files[lora.CONFIG].replace(name.encode(), content.encode())
    return open_input(artifact(study.folder / f"adapter{len(changed)}", "adapter", files, rank=4)), model


def test_a_merged_adapter_computes_what_the_model_with_it_does(study: Study) -> None:
    one = open_input(str(study.folder / "one"))
    source, model = adapter(study, one)
    made, summary = converted(study, MergeAdapter(adapter="tuned"), one, adapter=source)
    given = batch()
    merged, _ = read_model(made, study.scratch)
    assert torch.allclose(merged(given).hidden, model(given).hidden, atol=1e-5)
    lora.merge(model)
    expected = dict(stored(model))
    for name, weight in weights(made, study).items():
        assert torch.equal(weight, expected[name]), name
    ancestry = made.json(ANCESTRY, study.scratch)
    moved = {name for name, [piece] in ancestry.items() if piece[2] != "copied"}
    assert len(moved) == summary["matrices"] == 4
    assert all(name.endswith(("query.weight", "down.weight")) for name in moved)
    assert all(piece[:2] == [name, 1.0] for name, [piece] in ancestry.items())
    assert abs(summary["loss_after"] - summary["loss_before"]) > 1e-3


def test_an_adapter_that_is_not_plain_low_rank_is_not_merged(study: Study) -> None:
    one = open_input(str(study.folder / "one"))
    source, _ = adapter(study, one, LORA="PROMPT_TUNING")
    with pytest.raises(ConfigError, match="'PROMPT_TUNING' is not supported; only LORA"):
        converted(study, MergeAdapter(adapter="tuned"), one, adapter=source)


def test_an_adapter_of_another_shape_is_not_merged(study: Study) -> None:
    wide = study.model("wide", hidden=64)
    source, _ = adapter(study, open_input(str(study.folder / "one")))
    with pytest.raises(DataError, match=r"is \(4, 32\), but should be \(4, 64\)"):
        converted(study, MergeAdapter(adapter="tuned"), wide, adapter=source)
