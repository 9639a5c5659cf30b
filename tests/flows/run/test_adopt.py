"""Imported checkpoints: planned, made, and refused in one line."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from atelier.engine import adopt as adopting
from atelier.engine import adopt_adapter as adapting
from atelier.engine import export as exporting
from atelier.engine.config.error import AtelierError, ConfigError, DataError
from atelier.engine.config.foreign.families import family_of
from atelier.engine.config.generation import Sampling
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.run_file import RunFile
from atelier.engine.inference.opened import read_generator
from atelier.engine.io.artifact import ArtifactInput, open_input
from atelier.engine.model.load import read_model
from atelier.flows.cli.main import run
from atelier.flows.run import disk_fit
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.flows.run.plan import make_plan
from atelier.infra.dag import Node
from atelier.infra.store.store import Store
from tests.engine.scored_models import Study, cut_as_qwen
from tests.engine.trainings import artifact
from tests.stored_models import store_with

CPU = Parallel(shard=1, threads=1, device="cpu")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return cut_as_qwen(Study(tmp_path_factory.mktemp("study")))


@pytest.fixture(scope="module")
def source(study: Study) -> ArtifactInput:
    spec = GPT(
        num_layers=2, hidden=32, num_heads=2, vocab=study.vocabulary.size, bias=("qkv",), init_std=0.3, ffn=48
    )
    return study.model_of(spec, "source")


@pytest.fixture
def folder(source: ArtifactInput, tmp_path: Path) -> Path:
    """A checkpoint of the family qwen2."""
    config = {"url": str(tmp_path / "checkpoint"), "card": "---\nlicense: apache-2.0\n---\n", "most": 20_000}
    exporting.export(
        RunFile(
            schema=1, task="export", version=1, config=config, inputs={"model": source.url},
            scratch=str(tmp_path / "scratch"), layout=CPU,
        )
    )  # fmt: skip
    return tmp_path / "checkpoint"


def planned(folder: Path, root: Path) -> Node:
    words = [f"source={folder}", "name=guest"]
    [node] = [
        each for each in collect_nodes(compose("adopt", words), Store(str(root))) if each.name == "adopt"
    ]
    return node


def made(study: Study, node: Node, place: Path) -> ArtifactInput:
    """What the node's process makes, published."""
    run = RunFile(
        schema=1, task="adopt", version=1, config=node.config, inputs={"tokenizer": study.tokenizer.url},
        outputs={"model": str(place / "made")}, scratch=str(place), layout=CPU,
    )  # fmt: skip
    adopting.adopt(run)
    body = json.loads((place / "made" / "body.json").read_text())
    files = {path.name: path.read_bytes() for path in (place / "made").iterdir() if path.name != "body.json"}
    return open_input(artifact(place / "guest", "model", files, **body["summary"]))


def test_a_model_that_comes_back_has_its_bits_and_says_where_it_is_from(
    study: Study, source: ArtifactInput, folder: Path, tmp_path: Path
) -> None:
    guest = made(study, planned(folder, tmp_path / "store"), tmp_path)
    before, after = (read_model(one, tmp_path) for one in (source, guest))
    assert {**after[0].state_dict()}.keys() == {**before[0].state_dict()}.keys()
    for name, weight in before[0].state_dict().items():
        assert torch.equal(weight, after[0].state_dict()[name]), name
    summary = dict(guest.record.summary)
    assert (
        summary["family"] == "qwen2" and summary["licence"] == "apache-2.0" and summary["text"] == "unknown"
    )
    assert summary["source"] == folder.name and isinstance(summary["config"], dict)


def test_the_same_content_is_the_same_model_wherever_it_lies(folder: Path, tmp_path: Path) -> None:
    there = tmp_path / "elsewhere"
    there.mkdir()
    for path in folder.iterdir():
        (there / path.name).write_bytes(path.read_bytes())
    one, other = (planned(each, tmp_path / "store").products["model"] for each in (folder, there))
    assert one.fingerprint == other.fingerprint
    shard = sorted(there.glob("*.safetensors"))[0]
    changed = {name: weight + 1 for name, weight in load_file(shard).items()}
    save_file(changed, shard, {"format": "pt"})
    assert planned(there, tmp_path / "store").products["model"].fingerprint != one.fingerprint


def test_rows_beyond_the_tokenizers_ids_are_padding(
    study: Study, source: ArtifactInput, folder: Path, tmp_path: Path
) -> None:
    [shard] = [
        path for path in folder.glob("*.safetensors") if "model.embed_tokens.weight" in load_file(path)
    ]
    weights = load_file(shard)
    rows = weights["model.embed_tokens.weight"]
    weights["model.embed_tokens.weight"] = torch.cat([rows, torch.randn(5, rows.shape[1])])
    save_file(weights, shard, {"format": "pt"})
    say(folder, vocab_size=len(rows) + 5)
    guest = made(study, planned(folder, tmp_path / "store"), tmp_path)
    _, spec = read_model(guest, tmp_path)
    assert isinstance(spec, GPT)
    assert (spec.vocab, spec.vocab_padding, spec.tokens) == (len(rows), 5, len(rows) + 5)
    say(folder, vocab_size=len(rows) - 1)
    with pytest.raises(
        AtelierError, match=rf"vocab_size: {len(rows) - 1}, but the tokenizer has {len(rows)} ids"
    ):
        made(study, planned(folder, tmp_path / "store"), tmp_path / "again")


def say(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_what_changes_while_it_is_read_is_refused(study: Study, folder: Path, tmp_path: Path) -> None:
    node = planned(folder, tmp_path / "store")
    (folder / "README.md").write_text("changed")
    with pytest.raises(DataError, match=r"README.md has changed since it was planned"):
        made(study, node, tmp_path)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("nothing", "is not a folder, or empty"),
        ("pickle", r"source: pytorch_model.bin is a pickle, which is never opened"),
        ("no weights", r"has no model.safetensors and no model.safetensors.index.json"),
        ("no tokenizer", r"has no tokenizer.json"),
        ("shard", "model-00001-of-"),
        ("unknown", r"config.json: gate_scale: 2: unknown key of the family qwen2"),
        ("family", r"config.json: model_type: 'qwen9' is not known; did you mean qwen"),
        ("code", r"config.json: auto_map: names custom code, which is never run"),
        ("quantised", r"config.json: quantization_config: marks quantised weights"),
        ("json", r"^source: .*config.json: .*; fix this file, or get it again$"),
    ],
)
def test_what_is_not_understood_is_refused_before_anything_is_made(
    folder: Path, tmp_path: Path, fault: str, words: str
) -> None:
    shards = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if fault == "nothing":
        folder = tmp_path / "nowhere"
    if fault in ("pickle", "no weights"):
        for path in (*shards, index):
            path.unlink()
    if fault == "pickle":
        (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    if fault == "no tokenizer":
        (folder / "tokenizer.json").unlink()
    if fault == "shard":
        shards[0].unlink()
    if fault == "json":
        (folder / "config.json").write_text("{")
    more = {
        "unknown": {"gate_scale": 2},
        "family": {"model_type": "qwen9"},
        "code": {"auto_map": {"AutoModel": "mine.Model"}},
        "quantised": {"quantization_config": {"bits": 4}},
    }
    if fault in more:
        say(folder, **more[fault])
    with pytest.raises(AtelierError, match=words) as refused:
        planned(folder, tmp_path / "store")
    assert "\n" not in str(refused.value)


def test_headers_that_lie_are_refused(study: Study, folder: Path, tmp_path: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[0]
    whole = shard.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    name = next(key for key in header if key != "__metadata__")
    wrong = {
        "beyond": {name: header[name] | {"data_offsets": [0, 1 << 40]}},
        "type": {name: header[name] | {"dtype": "F64"}},
        "long": None,
    }
    for number, (fault, change) in enumerate(wrong.items()):
        text = json.dumps(header | (change or {})).encode()
        size = (1 << 60) if fault == "long" else len(text)
        shard.write_bytes(size.to_bytes(8, "little") + text + whole[8 + length :])
        with pytest.raises(DataError, match="not a weights file"):
            made(study, planned(folder, tmp_path / "store"), tmp_path / str(number))


def test_a_model_with_rows_of_padding_generates_and_never_draws_them(study: Study, tmp_path: Path) -> None:
    spec = GPT(
        num_layers=1,
        hidden=32,
        num_heads=2,
        vocab=study.vocabulary.size,
        vocab_padding=300,
        init_std=0.3,
        window=5,
    )
    source = study.model_of(spec, "padded")
    generator = read_generator(source, study.scratch, torch.device("cpu"))
    text = generator.text("the sea", Sampling(max_tokens=40, temperature=3.0, seed=1))
    assert text  # half of the rows are padding: were they drawn, some would be


def test_what_configs_of_others_have_beside_is_understood() -> None:
    llama = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 4, "vocab_size": 100, "architectures": ["LlamaForCausalLM"],
    }  # fmt: skip
    qwen = llama | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "use_mrope": False}
    assert family_of(qwen, "").spec(qwen, "").bias == ("qkv",)
    gpt2 = {
        "model_type": "gpt2",
        "n_special": 0,
        "predict_special_tokens": True,
        "output_past": True,
        "n_layer": 1,
    }
    assert family_of(gpt2, "").spec(gpt2, "").max_positions == 1024
    beside = llama | {"rope_parameters": {"rope_type": "default"}, "rope_theta": 5e5}
    assert family_of(beside, "").spec(beside, "").rope_theta == 5e5
    for wrong in (
        {"rope_scaling": "yarn"}, {"rope_parameters": [1]}, {"rope_scaling": {"type": "yarn"}},
        {"rope_scaling": {"type": "linear"}}, {"tie_word_embeddings": "false"}, {"num_hidden_layers": "x"},
        {"rope_scaling": {"type": "yarn", "factor": 2.0, "attention_factor": 0.0}},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            family_of(llama, "").spec(llama | wrong, "config.json")


def test_a_disk_without_room_is_said_before_anything_is_copied(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "store"))
    frozen = compose("adopt", [f"source={folder}", "name=guest"])
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert not make_plan(frozen, store).refusals
    monkeypatch.setattr(disk_fit, "free_bytes", lambda folder: size // 2)
    [refusal] = make_plan(frozen, store).refusals
    assert refusal.startswith("adopt: needs ") and str(tmp_path / "store") in refusal


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter in peft's format, of a base with width 32."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    weights = {f"{module}.lora_A.weight": torch.randn(2, 32), f"{module}.lora_B.weight": torch.randn(32, 2)}
    save_file(weights, folder / "adapter_model.safetensors")
    how = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(how))
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    return folder


def adapter_node(root: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Store, Node]:
    monkeypatch.setenv("ATELIER_ROOT", str(root))
    store = (
        store_with(root, GPT(num_layers=2, hidden=32, num_heads=2, vocab=300))
        if not root.exists()
        else Store(str(root))
    )
    frozen = compose("adopt", [f"source={adapter}", "base=guest", "name=second", "tracker=none"])
    [node] = [each for each in collect_nodes(frozen, store) if each.name == "adopt_adapter"]
    return store, node


def test_the_licence_of_an_adapter_is_in_its_record_and_not_in_its_identity(
    source: ArtifactInput, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, node = adapter_node(tmp_path / "store", adapter, monkeypatch)
    run = RunFile(
        schema=1, task="adopt_adapter", version=1, config=node.config, inputs={"base": source.url},
        outputs={key: str(tmp_path / key) for key in ("adapter", "model")}, scratch=str(tmp_path), layout=CPU,
    )  # fmt: skip
    adapting.adopt_adapter(run)
    summary = json.loads((tmp_path / "adapter" / "body.json").read_text())["summary"]
    assert (summary["licence"], summary["source"], summary["revision"]) == ("cc-by-4.0", "adapter", "")
    (adapter / "README.md").unlink()
    _, bare = adapter_node(tmp_path / "store", adapter, monkeypatch)
    assert bare.products["adapter"].fingerprint == node.products["adapter"].fingerprint
    with pytest.raises((ConfigError, DataError, FileNotFoundError)):
        adapting.adopt_adapter(run)


def test_an_adapter_and_what_a_model_writes_ask_for_room_on_the_disk(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, node = adapter_node(tmp_path / "store", adapter, monkeypatch)
    files = [adapter / name for name in ("adapter_config.json", "adapter_model.safetensors")]
    assert node.config["bytes"] == sum(path.stat().st_size for path in files) + 2  # of the base's file
    written = compose("corpus", ["data.written.by=guest", "data.written.documents=1000", "tracker=none"])
    adopted = compose("adopt", [f"source={adapter}", "base=guest", "name=second", "tracker=none"])
    assert not make_plan(written, store).refusals and not make_plan(adopted, store).refusals
    monkeypatch.setattr(disk_fit, "free_bytes", lambda folder: 500)
    [said] = make_plan(adopted, store).refusals
    assert said.startswith("adopt_adapter: needs ") and str(tmp_path / "store") in said
    monkeypatch.setattr(disk_fit, "free_bytes", lambda folder: 1_000_000)
    [said] = make_plan(written, store).refusals
    assert said.startswith("write: needs ") and str(tmp_path / "store") in said


def test_an_export_asks_for_room_and_leaves_nothing(
    source: ArtifactInput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting.storage, "free_bytes", lambda path: 1)
    run = RunFile(
        schema=1, task="export", version=1, config={"url": str(tmp_path / "out")},
        inputs={"model": source.url}, scratch=str(tmp_path / "scratch"), layout=CPU,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="but its disk has only 1e-09 free"):
        exporting.export(run)
    assert not (tmp_path / "out").exists()


def test_a_plan_and_a_run_list_all_that_is_refused_of_a_source_and_make_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
    assert run(["plan", "adopt", f"source={folder}"]) == 0
    out, err = capsys.readouterr()
    assert "config.json: use_sliding_window" in out and "3 to make" in out and not err
    say(folder, gate_scale=2, rope_interleaved=True, neftune_noise_alpha=5, quantization_config={"bits": 4})
    assert run(["plan", "adopt", f"source={folder}"]) == 2
    out, err = capsys.readouterr()
    assert not (tmp_path / "store").exists()
    assert run(["adopt", f"source={folder}"]) == 2
    assert capsys.readouterr() == ("", err)
    assert [line.removeprefix("plan: config.json: ") for line in err.splitlines()] == [
        "gate_scale: 2: unknown key of the family qwen2",
        "rope_interleaved: True is not understood; it may be False",
        "quantization_config: marks quantised weights; use the checkpoint before quantisation",
    ]
    assert "5: used only in training" in out and "to make" not in out
    assert not [*(tmp_path / "store").glob("*/*/record.json")]
