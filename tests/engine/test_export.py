"""Exported models: transformers loads them, and computes and writes the same."""

import functools
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import torch

from atelier.engine import export as exporting
from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.experts import Experts
from atelier.engine.config.generation import Sampling
from atelier.engine.config.model.ernie import Ernie
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.run_file import RunFile
from atelier.engine.data.examples import NOT_SCORED
from atelier.engine.export import NOT_COMPARED
from atelier.engine.inference.models import TextModel
from atelier.engine.inference.opened import read_generator
from atelier.engine.inference.scoring import label_nats
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.model.load import read_model
from tests.engine.scored_models import Study, cut_as_qwen

transformers = pytest.importorskip("transformers")

SHAPE: dict[str, Any] = {"num_layers": 2, "hidden": 32, "num_heads": 2, "init_std": 0.3}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"tied": False},
    "qwen2": {"bias": ("qkv",), "num_kv_heads": 1},
    "qwen3": {"qk_norm": True, "head_dim": 24},
    "mixtral": {"num_experts": 4, "experts": Experts(ffn=48)},
    "mixtral ": {"num_experts": 4, "experts": Experts(ffn=48, activation="geglu_exact")},
    "gpt2": {
        "bias": ("qkv", "out", "mlp"), "mlp": "gelu", "norm": "layer", "positions": "learned",
        "max_positions": 256,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def studies(study: Study, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Study]:
    """By family; transformers has the text of Qwen 2 cut by rules of Qwen 2."""
    return dict.fromkeys(MODELS, study) | {"qwen2": cut_as_qwen(Study(tmp_path_factory.mktemp("qwen")))}


def run_file(source: ArtifactInput, folder: Path, **config: Any) -> RunFile:
    return RunFile(
        schema=1, task="export", version=1, config={"url": str(folder / "exported"), **config},
        inputs={"model": source.url}, scratch=str(folder / "scratch"), layout=Parallel(shard=1, threads=1),
    )  # fmt: skip


def model_of(study: Study, name: str, fields: dict[str, Any]) -> ArtifactInput:
    return study.model_of(GPT(**{"vocab": study.vocabulary.size} | SHAPE | fields), name)


class Exported(NamedTuple):
    """A model of a family, what was said of its export, and the folder."""

    source: ArtifactInput
    done: dict[str, Json]
    folder: Path


@pytest.fixture(scope="module")
def exported(
    studies: dict[str, Study], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Exported]:
    @functools.cache
    def made(family: str) -> Exported:
        source, folder = model_of(studies[family], family, MODELS[family]), tmp_path_factory.mktemp("family")
        done = exporting.export(run_file(source, folder, card="# a card\n", most=20_000))
        return Exported(source, done, folder / "exported")

    return made


@pytest.mark.parametrize("family", MODELS)
def test_transformers_reads_what_was_written_and_writes_the_same_text(
    studies: dict[str, Study], family: str, exported: Callable[[str], Exported]
) -> None:
    study = studies[family]
    source, done, folder = exported(family)
    assert str(done["ids"]).startswith("the ids of 200 texts equal those of AutoTokenizer")
    assert done["family"] == family.strip() and done["apart"] == 0.0
    assert (folder / "README.md").read_text() == "# a card\n"
    assert len([*folder.glob("model-*.safetensors")]) > 1
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = read_generator(source, study.scratch, torch.device("cpu"))
    draw, written = random.Random(0), ""
    for prompt in draw.sample(study.held_out, 3):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        assert ids[0].tolist() == study.vocabulary.encode(prompt)
        assert tokenizer.decode(ids[0]) == prompt
        text = ours.text(prompt, Sampling(max_tokens=20, temperature=0.0))
        more = theirs.generate(ids, max_new_tokens=20, do_sample=False)[0, ids.shape[1] :]
        assert tokenizer.decode(more, skip_special_tokens=True).startswith(text.rstrip("\ufffd"))
        written += text
    assert written


def test_a_family_whose_tokenizer_transformers_builds_itself_is_refused_where_it_cuts_otherwise(
    study: Study, tmp_path: Path
) -> None:
    source = model_of(study, "qwen2-otherwise", MODELS["qwen2"])
    with pytest.raises(ConfigError, match=r"AutoTokenizer of transformers .* for family qwen2 it uses Qwen2"):
        exporting.export(run_file(source, tmp_path))
    assert not (tmp_path / "exported").exists()


def test_where_transformers_is_not_installed_the_export_says_that_ids_are_not_compared(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    done = exporting.export(run_file(model_of(study, "llama-alone", MODELS["llama"]), tmp_path))
    assert done["ids"] == NOT_COMPARED


def test_another_precision_says_how_far_its_logits_are(study: Study, tmp_path: Path) -> None:
    done = exporting.export(run_file(model_of(study, "llama", MODELS["llama"]), tmp_path, dtype="bfloat16"))
    apart = done["apart"]
    assert isinstance(apart, float) and 0 < apart < 0.3
    assert json.loads((tmp_path / "exported" / "config.json").read_text())["dtype"] == "bfloat16"
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported").dtype == torch.bfloat16


def test_what_cannot_be_said_is_refused_with_the_reason(study: Study, tmp_path: Path) -> None:
    biased = {"num_experts": 4, "experts": Experts(router={"kind": "topk", "balance": "bias"})}
    with pytest.raises(
        ConfigError, match=r"no family can express this model .*mixtral: blocks.0.mlp.router.bias"
    ):
        exporting.export(run_file(model_of(study, "biased", biased), tmp_path))
    with pytest.raises(ConfigError, match="qwen3 cannot express qk_norm False"):
        exporting.export(run_file(model_of(study, "llama", MODELS["llama"]), tmp_path, family="qwen3"))
    for activation in ("relu", "gelu_exact"):
        alone = {"num_experts": 4, "experts": Experts(activation=activation)}
        with pytest.raises(ConfigError, match=f"mixtral cannot express mlp {activation}"):
            exporting.export(run_file(model_of(study, activation, alone), tmp_path, family="mixtral"))
    some = {"num_experts": 4, "experts": Experts(activation="reglu", every=2), "qk_norm": True, "tied": False}
    with pytest.raises(ConfigError, match=r"qwen3_moe cannot express experts.activation reglu"):
        exporting.export(run_file(model_of(study, "some", some), tmp_path, family="qwen3_moe"))
    with pytest.raises(ConfigError, match="'lama' is not known"):
        exporting.export(run_file(model_of(study, "llama", MODELS["llama"]), tmp_path, family="lama"))
    nets = Ernie(**{"vocab": study.vocabulary.size} | SHAPE)
    with pytest.raises(ConfigError, match="is of kind ernie"):
        exporting.export(run_file(study.model_of(nets, "nets"), tmp_path))
    assert not (tmp_path / "exported").exists()


def test_a_folder_with_something_in_it_is_left_alone(study: Study, tmp_path: Path) -> None:
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"contains mine\.txt"):
        exporting.export(run_file(model_of(study, "llama", MODELS["llama"]), tmp_path))
    assert [path.name for path in (tmp_path / "exported").iterdir()] == ["mine.txt"]


def test_of_an_export_that_computes_another_model_nothing_is_left(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here one whose weights are changed on their way."""
    source = model_of(study, "llama", MODELS["llama"])
    real = exporting.exported

    def changed(weights: Any, family: Any, spec: Any) -> Any:
        found = real(weights, family, spec)
        name = "model.layers.1.self_attn.q_proj.weight"
        weight = found[name]
        return found | {name: weight._replace(gather=lambda: weight.gather() * 1.1)}

    monkeypatch.setattr(exporting, "exported", changed)
    with pytest.raises(DataError, match="the written files compute another model"):
        exporting.export(run_file(source, tmp_path))
    assert not (tmp_path / "exported").exists()


def test_a_block_is_in_memory_while_it_computes_and_no_longer(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = {**MODELS["llama"], "num_layers": 6}
    source, built, most = model_of(study, "deep", deep), [], 0
    build, apply = exporting.build, cast(Any, torch.nn.Linear).forward

    def counted(layer: Any, rows: Any) -> Any:
        nonlocal most
        there = [weight for weight in built[-1].blocks.parameters() if not weight.is_meta]
        most = max(most, sum(weight.numel() for weight in there))
        return apply(layer, rows)

    monkeypatch.setattr(exporting, "build", lambda spec: built.append(build(spec)) or built[-1])
    monkeypatch.setattr(torch.nn.Linear, "forward", counted)
    assert exporting.export(run_file(source, tmp_path))["apart"] == 0.0
    assert len(built) == 2
    assert most == sum(weight.numel() for weight in built[0].blocks[0].parameters()) > 0


def test_the_model_itself_is_as_it_was(study: Study, tmp_path: Path) -> None:
    source = model_of(study, "llama", MODELS["llama"])
    before = {
        name: weight.clone() for name, weight in read_model(source, study.scratch)[0].state_dict().items()
    }
    exporting.export(run_file(source, tmp_path, dtype="float16"))
    after = read_model(source, study.scratch)[0].state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())


@pytest.mark.parametrize("family", MODELS)
def test_60_strings_are_as_likely_to_transformers_as_they_are_here(
    studies: dict[str, Study], family: str, exported: Callable[[str], Exported]
) -> None:
    study = studies[family]
    source, _, folder = exported(family)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model, _ = read_model(source, study.scratch)
    draw = random.Random(7)
    words = ("sea is deep", "and grey, a", "gull;", "under 40", "fathoms (or less)", "boats")
    strings = [" ".join(draw.choices(words, k=draw.randint(1, 14))) for _ in range(60)]
    rows = [study.vocabulary.encode(text) for text in strings]
    rows = [ids if len(ids) > 1 else [*ids, *ids, 5] for ids in rows]
    batches = []
    for first in range(0, len(rows), 20):  # rows of different lengths side by side, as the scorer has them
        some = rows[first : first + 20]
        size = max(map(len, some)) - 1
        tokens_BT = torch.zeros(len(some), size, dtype=torch.long)
        labels_BT = torch.full_like(tokens_BT, NOT_SCORED)
        for row, ids in enumerate(some):
            tokens_BT[row, : len(ids) - 1] = torch.tensor(ids[:-1])
            labels_BT[row, : len(ids) - 1] = torch.tensor(ids[1:])
        places_BT = torch.arange(size).expand_as(tokens_BT)
        batches.append(
            {"tokens_BT": tokens_BT, "positions_BT": places_BT, "documents_BT": torch.zeros_like(tokens_BT),
             "labels_BT": labels_BT}
        )  # fmt: skip
    nats_N = torch.cat(list(label_nats(cast(TextModel, model.eval()), batches)))
    ours = [float(part.sum()) for part in nats_N.split([len(ids) - 1 for ids in rows])]
    farthest = 0.0
    for text, ids, nats in zip(strings, rows, ours, strict=True):
        assert ids[: len(tokenizer.encode(text))] == tokenizer.encode(text)
        with torch.no_grad():
            logits_TV = theirs(torch.tensor([ids])).logits[0, :-1].double()
        wanted = float(torch.nn.functional.cross_entropy(logits_TV, torch.tensor(ids[1:]), reduction="sum"))
        farthest = max(farthest, abs(nats - wanted))
    print(f"{family}: 60 strings, at most {farthest:.1e} nat apart")
    assert farthest < 1e-4
