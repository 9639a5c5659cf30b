"""Conversions as a command: files, losses before and after, and the origin of weights."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load
from tokenizers import Tokenizer as Encoder
from tokenizers import models
from torch.nn.functional import cross_entropy

from atelier.engine.checkpoint.collective_call import SingleRank
from atelier.engine.checkpoint.folder import address
from atelier.engine.checkpoint.writer import save_async
from atelier.engine.config.conversion.cast import Cast
from atelier.engine.config.conversion.depth import Depth
from atelier.engine.config.conversion.moefy import Moefy
from atelier.engine.config.conversion.product_keys import AddProductKeys
from atelier.engine.config.conversion.upcycle import Upcycle
from atelier.engine.config.conversion.vocabulary import ToVocabulary
from atelier.engine.config.conversion.width import Width
from atelier.engine.config.conversions import ANCESTRY, OPTIMIZER, OPTIMIZER_KIND, ConversionSpec
from atelier.engine.config.data import Tokenizer
from atelier.engine.config.error import ConfigError
from atelier.engine.config.generation import Sampling
from atelier.engine.config.model.encdec import EncDec
from atelier.engine.conversion.measure import old_in_new
from atelier.engine.conversion.vocabulary import lowering, spelling
from atelier.engine.convert import convert
from atelier.engine.data.encode import encode
from atelier.engine.data.learn_tokenizer import learn_tokenizer
from atelier.engine.data.tokens import Windows
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.inference.opened import read_generator
from atelier.engine.io.artifact import ArtifactInput, open_input
from atelier.engine.model.contract import stored
from atelier.engine.model.load import read_model
from tests.engine.data.test_extend_tokenizer import CODE, corpus
from tests.engine.scored_models import Study
from tests.engine.trainings import artifact, model_files


class Trained(Study):
    """A model that has learned the study's text a little, and a longer tokenizer of some code."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.trained = self.learned("trained", self.model(hidden=32, num_layers=2))
        code = corpus(folder, "code", CODE)
        self.longer = self._made(
            "longer",
            lambda output: learn_tokenizer(
                Tokenizer(vocab=380), [code], [], output, self.scratch, self.progress, extends=self.tokenizer
            ),
        )
        vocabulary = Vocabulary.of(self.longer, self.scratch)
        self.code = self._made(
            "codetokens", lambda output: encode(code, vocabulary, output, self.scratch, self.progress)
        )

    def learned(self, name: str, source: ArtifactInput) -> ArtifactInput:
        model, spec = read_model(source, self.scratch)
        windows = Windows(self.tokens, self.scratch, "train", 32)
        optim = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(80):
            rows = windows.batch(np.arange(8 * step, 8 * step + 8) % len(windows))
            given = {name: torch.from_numpy(values) for name, values in rows.items()}
            logits_BTV = model(given).hidden @ model.head_weight.T
            loss = cross_entropy(logits_BTV.flatten(0, 1), given["labels_BT"].flatten())
            optim.zero_grad()
            loss.backward()
            optim.step()
        files = model_files(dict(stored(model)), spec)
        files["tokenizer.json"] = self.file(self.tokenizer, "tokenizer.json").read_bytes()
        return open_input(artifact(self.folder / name, "model", files))

    def checkpoint(self, weights: dict[str, Any], name: str = "checkpoints") -> str:
        """One in which every first moment is twice the weight."""
        url = address(str(self.folder / name), 80)
        if not Path(url).exists():
            state = {"step": torch.tensor(80.0)}
            states = {
                name: {"exp_avg": 2 * one.detach(), "exp_avg_sq": one.detach().square(), **state}
                for name, one in weights.items()
            }
            saved = {"weights": weights, "optimizer": states}
            save_async(url, saved, step=80, trajectory="a" * 64, gang=SingleRank()).wait()
        return url

    def converted(
        self, rule: ConversionSpec, states: str = "", **more: ArtifactInput
    ) -> tuple[ArtifactInput, dict[str, Any]]:
        inputs = {"model": self.trained, "tokens": self.tokens, **more}
        config = {"rule": rule.model_dump(mode="json"), "measured": 2000, "states": states}
        config["optim"] = {"kind": "adamw", "beta1": 0.9, "lr": 0.1} if states else {}
        run = self.run_file("convert", config, inputs, "model")
        summary = convert(run)
        files = {path.name: path.read_bytes() for path in Path(run.outputs["model"]).iterdir()}
        return open_input(
            artifact(Path(run.outputs["model"]).parent / "made", "model", files, **summary)
        ), summary


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"))


@pytest.mark.parametrize(
    "rule",
    [
        Depth(num_layers=5),
        Width(hidden=64),
        Upcycle(num_experts=4),
        Upcycle(num_experts=8, experts_per_token=4, finer=2),
        Upcycle(num_experts=4, experts_per_token=1, router="orthogonal"),
        Moefy(num_experts=8, experts_per_token=8, tokens=512),
        Cast(dtype="float32"),
        AddProductKeys(keys=8, per_token=4, width=8),
    ],
    ids=lambda rule: f"{rule.kind}-{getattr(rule, 'finer', '')}{getattr(rule, 'router', '')}",
)
def test_the_loss_is_the_same_before_and_after(study: Trained, rule: ConversionSpec) -> None:
    made, summary = study.converted(rule)
    assert summary["is_exact"] and summary["rule"] == rule.kind
    assert 0.5 < summary["loss_before"] < 4.5  # it has learned something
    assert summary["loss_after"] == pytest.approx(summary["loss_before"], abs=1e-5)
    _, spec = read_model(made, study.scratch)
    ancestry = made.json(ANCESTRY, study.scratch)
    assert set(ancestry) == set(spec.shapes())
    for pieces in ancestry.values():
        assert sum(share for _, share, _ in pieces) == pytest.approx(1.0)
    assert read_generator(made, study.scratch, torch.device("cpu")).text("Poem", Sampling(max_tokens=3))


@pytest.mark.parametrize(
    "rule", [Depth(num_layers=3), Depth(how="stacked"), Upcycle(num_experts=4), ToVocabulary(tokens=256)]
)
def test_states_of_the_optimiser_grow_with_the_weights(study: Trained, rule: ConversionSpec) -> None:
    """Those of a copy are its original's, of what is new none; and the weights are what they are without."""
    more = {"tokenizer": study.longer, "tokens.main": study.code} if rule.needs_tokenizer else {}
    weights = dict(stored(read_model(study.trained, study.scratch)[0]))
    url = study.checkpoint(weights)
    plain, _ = study.converted(rule, **more)
    made, summary = study.converted(rule.model_copy(update={"optimizer": "grown"}), states=url, **more)
    states = load(study.file(made, OPTIMIZER).read_bytes())
    pieces = made.json(ANCESTRY, study.scratch)
    grown = dict(stored(read_model(made, study.scratch)[0]))
    assert all(torch.equal(grown[name], one) for name, one in stored(read_model(plain, study.scratch)[0]))
    assert summary["states"] == len(states) > 30
    for name, weight in grown.items():
        source = next((piece[0] for piece in pieces[name] if piece[0]), "")
        assert (f"{name}.step" in states) == bool(source), name
        if not source:
            continue
        assert states[f"{name}.step"] == 80 and states[f"{name}.exp_avg"].shape == weight.shape
        if len(pieces[name]) == 1:  # all of it is copied
            assert torch.equal(states[f"{name}.exp_avg"], 2 * weight.detach())
            continue
        assert torch.equal(states[f"{name}.exp_avg"][:300], 2 * weights[name].detach())
        assert not states[f"{name}.exp_avg"][300:].any() and (states[f"{name}.exp_avg_sq"][300:] > 0).all()
    assert made.json(OPTIMIZER_KIND, study.scratch) == {"kind": "adamw", "beta1": 0.9}


def test_states_of_an_adapter_are_not_grown(study: Trained) -> None:
    weights = {"blocks.0.attention.query.lora_A.weight": torch.ones(2, 3)}
    with pytest.raises(ConfigError, match=r"convert.optimizer: grown, but .* an adapter"):
        study.converted(Depth(optimizer="grown"), states=study.checkpoint(weights, "adapter"))


def test_states_need_the_optimiser_that_they_are_of(study: Trained) -> None:
    """Without it they would lie in the model, and no training would take them."""
    config = {"rule": Depth(optimizer="grown").model_dump(mode="json"), "states": "somewhere"}
    with pytest.raises(ConfigError, match="states are given without optim"):
        convert(study.run_file("convert", config, {"model": study.trained}, "model"))


@pytest.mark.parametrize(
    ("rows", "against", "most"), [("pieces", 5.0, 0.01), ("pieces", 0.0, 0.3), ("zeros", 0.0, 0.6)]
)
def test_a_longer_vocabulary_costs_old_text_little(
    study: Trained, rows: Any, against: float, most: float
) -> None:
    rule = ToVocabulary(rows=rows, against=against, tokens=512)
    more = {"tokenizer": study.longer, "tokens.main": study.code}
    made, summary = study.converted(rule, **more)
    model, spec = read_model(made, study.scratch)
    assert spec.tokens == 380 and summary["tokens_kept"] == 300 and summary["tokens_new"] == 80
    cost = summary["loss_after"] - summary["loss_before"]
    assert 0 < cost < most
    old, _ = read_model(study.trained, study.scratch)
    assert torch.equal(dict(stored(model))["embed.weight"][:300], dict(stored(old))["embed.weight"])
    assert Vocabulary.of(made, study.scratch).size == 380


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_with_an_encoder_gets_a_longer_vocabulary_too(study: Trained, tied: bool) -> None:
    spec = EncDec(num_layers=2, hidden=32, num_heads=2, vocab=study.vocabulary.size, tied=tied)
    model = study.learned(f"learned-{tied}", study.model_of(spec, f"encdec-{tied}"))
    more = {"model": model, "tokenizer": study.longer, "tokens.main": study.code}
    made, summary = study.converted(ToVocabulary(tokens=512), **more)
    assert read_model(made, study.scratch)[1].tokens == 380
    assert 0.5 < summary["loss_before"] < 4.5
    assert abs(summary["loss_after"] - summary["loss_before"]) < 0.01
    name = "embed.weight" if tied else "head.weight"
    [(source, share, _), *others] = made.json(ANCESTRY, study.scratch)[name]
    assert source and share == pytest.approx(300 / 380) and len(others) == 1


def test_logits_are_lowered_evenly_where_some_states_point_away_from_their_mean() -> None:
    usual, rare = torch.tensor([1.0, 1.0]), torch.tensor([1.0, -3.0])
    hidden_BTD = torch.stack([usual] * 9 + [rare])[None]
    parent: Any = SimpleNamespace(
        text=[{"documents_BT": torch.zeros(1, 10)}],
        model=lambda: lambda batch: SimpleNamespace(hidden=hidden_BTD),
    )
    by_mean, evenly = (
        hidden_BTD[0] @ lowering(ToVocabulary(lowered=lowered), parent) for lowered in ("mean", "evenly")
    )
    assert by_mean[0] < -6 and by_mean[-1] > 0 and by_mean.mean() == pytest.approx(-6)
    assert evenly.tolist() == pytest.approx([-6] * 10, abs=0.05)
    assert "lowered" not in ToVocabulary().as_identity()


def test_without_lowering_new_tokens_take_more_from_old_ones(study: Trained) -> None:
    more = {"tokenizer": study.longer, "tokens.main": study.code}
    costs = []
    for against in (0.0, 2.0, 5.0):
        _, summary = study.converted(ToVocabulary(against=against, tokens=512), **more)
        costs.append(summary["loss_after"] - summary["loss_before"])
    assert costs[0] > 2 * costs[1] > 4 * costs[2] > 0


def test_numbers_that_another_type_cannot_hold_are_refused(study: Trained) -> None:
    model, spec = read_model(study.trained, study.scratch)
    state = {name: weight.detach().clone() for name, weight in stored(model)}
    state["norm.weight"][0] = 1e6
    files = model_files(state, spec)
    files["tokenizer.json"] = study.file(study.tokenizer, "tokenizer.json").read_bytes()
    wide = open_input(artifact(study.folder / "wide", "model", files))
    with pytest.raises(ConfigError, match=r"norm.weight has values beyond .*float16"):
        study.converted(Cast(dtype="float16"), model=wide)
    made, summary = study.converted(Cast(dtype="bfloat16"))
    assert not summary["is_exact"] and json.loads(json.dumps(summary))["dtype"] == "bfloat16"
    assert {weight.dtype for _, weight in stored(read_model(made, study.scratch)[0])} == {torch.bfloat16}


def test_tokens_are_the_same_by_what_they_stand_for_and_not_by_how_they_are_spelled(study: Trained) -> None:
    """Byte-level tokenizers write a space as U+0120, others as U+2581 and U+0120 as itself."""
    plain = Encoder(models.BPE({"<|end|>": 0, "\u2581": 1, "\u0120": 2, "a": 3}, []))
    plain.add_special_tokens(["<|end|>"])
    new, old = Vocabulary.parse(plain.to_str().encode(), "plain"), study.vocabulary
    found = spelling(old, new)
    assert found[0] == ([old.end_id], True) and found[3] == (old.encode("a"), True)
    assert found[1] == (old.encode(" "), True) and not found[2][1]
    assert old_in_new(old, new)[old.encode(" ")[0]] == 1


def test_losses_before_and_after_are_of_the_same_tokens(study: Trained) -> None:
    """Of a tokenizer that lacks tokens only rows that it can say are compared."""
    code = corpus(study.folder / "again", "code", CODE)
    how = (Tokenizer(vocab=300), [code], [])
    other = study._made("other", lambda output: learn_tokenizer(*how, output, study.scratch, study.progress))
    _, summary = study.converted(ToVocabulary(tokens=512), tokenizer=other, **{"tokens.main": study.code})
    assert 0 < summary["tokens_dropped"] == summary["tokens_new"] < 50
    if "loss_after" in summary:
        assert abs(summary["loss_after"] - summary["loss_before"]) < 0.02
