"""Tiny checkpoints as transformers writes them, their configurations changed afterwards: adopted as `atelier
adopt` does it, their logits are those of transformers, or they are refused by name.
"""

import json
import random
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Tokenizer as Words
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor

from atelier.engine import adopt as adopting
from atelier.engine.config.batch import ENCODER
from atelier.engine.config.data import AdoptedEnds, Tokenizer
from atelier.engine.config.error import AtelierError
from atelier.engine.config.model.encdec import EncDec
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.run_file import RunFile
from atelier.engine.data.learn_tokenizer import learn_tokenizer
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactOutput, open_input
from atelier.engine.io.process import Progress
from atelier.engine.model.load import read_model
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.infra.dag import Node
from atelier.infra.store.store import Store
from tests.chat_templates import TEMPLATES
from tests.engine.trainings import artifact
from tests.foreign.foreign_models import CHANGES, FAMILIES, MAY_BE, beside, fields, without_activation
from tests.foreign.search import Case

COUNT, SLOW = 60, True
TEXT = "def read(path):\n    return open(path).read()\n\n\nclass Ship:\n    sails = 3\n" * 9
CPU = Parallel(shard=1, threads=1, device="cpu")
TOKENIZERS = ("bytes", "prepend", "words")
ODD: list[Any] = [None, True, False, 0, 1, 3, 0.5, "x", [], {}]
broken = without_activation


def draw(rng: random.Random) -> Case:
    family = rng.choice([*FAMILIES, "t5"])
    case: Case = {
        "family": family, "config": fields(rng, family, 0.3), "extra": beside(rng), "left": [],
        "tokenizer": rng.choice(TOKENIZERS), "template": rng.choice([None, *sorted(TEMPLATES)]),
        "begins": rng.random() < 0.5, "rows": rng.choice([0, 0, 5]), "shard": rng.choice(["20KB", "5GB"]),
        "dtype": rng.choice(["float32", "bfloat16"]), "seed": rng.randrange(10**6),
    }  # fmt: skip
    may_be = {**(MAY_BE["rotary"] if family not in ("gpt2", "t5") else {}), **MAY_BE[family]}
    if family == "mixtral" and case["config"].get("head_dim") is None:
        case["config"]["head_dim"] = (
            8  # without it transformers 5.24 cannot make one whose positions are yarn
        )
    for key in rng.sample(sorted(may_be), rng.choice([0, 0, 1, 2])):  # after the weights were written
        case["extra"][key] = deepcopy(rng.choice(may_be[key]))
    for key in rng.sample(sorted(CHANGES), rng.choice([0, 0, 0, 1])):
        case["extra"][key] = deepcopy(CHANGES[key])
    if rng.random() < 0.2:
        case["extra"][rng.choice(sorted(FAMILIES[family][1]))] = rng.choice(ODD)
    if rng.random() < 0.15:
        case["left"] = [rng.choice(sorted(FAMILIES[family][1]))]
    return case


def words(kind: str, *, begins: bool) -> Words:
    """A small tokenizer of one of the ways that public ones have."""
    names = ["<s>", "</s>", "<pad>"] if begins else ["</s>", "<pad>"]
    if kind == "words":
        made = Words(models.WordLevel(unk_token="<unk>"))  # pyright: ignore[reportCallIssue]
        made.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
        trainer: Any = trainers.WordLevelTrainer(special_tokens=[*names, "<unk>"], show_progress=False)
    elif kind == "prepend":
        made = Words(models.BPE(byte_fallback=True))
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        made.normalizer = normalizers.Sequence(steps)  # pyright: ignore[reportAttributeAccessIssue]
        ends = [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
        made.decoder = decoders.Sequence(ends)  # pyright: ignore[reportAttributeAccessIssue]
        trainer = trainers.BpeTrainer(
            vocab_size=320,
            show_progress=False,
            special_tokens=[*names, *(f"<0x{b:02X}>" for b in range(256))],
        )
    else:
        made = Words(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
        made.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(
            vocab_size=300, show_progress=False, special_tokens=names, initial_alphabet=alphabet
        )
    made.train_from_iterator(TEXT.split("\n"), trainer)
    if begins:
        around = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
        made.post_processor = around  # pyright: ignore[reportAttributeAccessIssue]
    return made


def written(case: Case, folder: Path) -> Path:
    """The checkpoint; random weights, norms and biases too."""
    import transformers  # 2 s that drawing does without

    kind, place = FAMILIES[case["family"]][0], folder / "checkpoint"
    made = words(case["tokenizer"], begins=case["begins"])
    size = made.get_vocab_size()
    ids = {"eos_token_id": made.token_to_id("</s>"), "pad_token_id": made.token_to_id("<pad>")}
    ids |= {"decoder_start_token_id": ids["pad_token_id"]} if kind == "T5" else {}
    ids |= {"bos_token_id": made.token_to_id("<s>") if case["begins"] else None}
    torch.manual_seed(case["seed"])
    how = {
        key: deepcopy(value) for key, value in case["config"].items() if key not in ids and value is not None
    }
    null = {key: None for key, value in case["config"].items() if value is None}
    config = getattr(transformers, f"{kind}Config")(vocab_size=size + case["rows"], **how, **ids)
    auto: Any = transformers.AutoModelForSeq2SeqLM if kind == "T5" else transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="eager")
    if kind == "T5" and not config.scale_decoder_outputs:  # transformers ties what it builds
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) / 8)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(torch.randn_like(weight) * (0.2 if "norm" in name or "bias" in name else 0.05))
    model.to(getattr(torch, case["dtype"])).save_pretrained(place, max_shard_size=case["shard"])
    named = {"eos_token": "</s>", "pad_token": "<pad>"} | ({"bos_token": "<s>"} if case["begins"] else {})
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, **named)
    tokenizer.chat_template = TEMPLATES.get(case["template"] or "")
    tokenizer.save_pretrained(place)
    path = place / "config.json"
    saved = json.loads(path.read_text()) | null | case["extra"]
    path.write_text(json.dumps({key: value for key, value in saved.items() if key not in case["left"]}))
    return place


def adopted(place: Path, folder: Path) -> tuple[Any, Any, Vocabulary, Path]:
    """The model, its spec, its tokenizer and its files, by the project's own way."""
    frozen = compose("adopt", [f"source={place}", "name=guest", "tracker=none"])
    nodes = {node.name: node for node in collect_nodes(frozen, Store(str(folder / "store")))}
    tokenizer = open_input(_tokenizer(nodes["learn_tokenizer"], folder))
    run = RunFile(
        schema=1, task="adopt", version=1, config=nodes["adopt"].config, layout=CPU,
        inputs={"tokenizer": tokenizer.url}, outputs={"model": str(folder / "made")},
        scratch=str(folder / "run"),
    )  # fmt: skip
    adopting.adopt(run)
    files = {path.name: path.read_bytes() for path in (folder / "made").iterdir() if path.name != "body.json"}
    source = open_input(artifact(folder / "guest", "model", files))
    model, spec = read_model(source, folder / "read", dtype=torch.float32)
    return model.eval(), spec, Vocabulary.of(source, folder / "read"), folder / "made"


def _tokenizer(node: Node, folder: Path) -> str:
    """The tokenizer that the node's process makes."""
    config = cast(Any, node.config)
    output = ArtifactOutput(str(folder / "tokenizer"))
    files = [tuple(each) for each in config["files"]]
    with (folder / "said").open("w") as said:
        spec, texts = Tokenizer(**config["tokenizer"]), AdoptedEnds(**config["texts"])
        summary = learn_tokenizer(spec, [], files, output, folder / "scratch", Progress(said), texts)
    made = {path.name: path.read_bytes() for path in (folder / "tokenizer").iterdir()}
    made.pop("body.json", None)
    return artifact(folder / "tokens", "tokenizer", made, **summary)


@torch.inference_mode()
def logits(model: Any, spec: Any, ids_BT: Tensor) -> Tensor:
    places_BT = torch.arange(ids_BT.shape[1])[None]
    batch = {"tokens_BT": ids_BT, "positions_BT": places_BT, "documents_BT": torch.zeros_like(ids_BT)}
    if isinstance(spec, EncDec):
        batch |= dict(zip(ENCODER, batch.values(), strict=True))
    return model(batch).hidden @ model.head_weight.T


@torch.inference_mode()
def theirs(place: Path, ids_BT: Tensor) -> Tensor | None:
    """What transformers computes from the folder; None where it refuses it."""
    import transformers

    is_pair = "decoder.final_layer_norm.weight" in _names(place)
    auto: Any = transformers.AutoModelForSeq2SeqLM if is_pair else transformers.AutoModelForCausalLM
    try:
        model = auto.from_pretrained(place, attn_implementation="eager", dtype=torch.float32).eval()
        read = {"input_ids": ids_BT} | ({"decoder_input_ids": ids_BT} if is_pair else {})
        return model(**read, use_cache=False).logits
    except Exception:  # of whatever kind: it is asked what it makes of odd configurations
        return None


def _names(place: Path) -> set[str]:
    from safetensors import safe_open

    return {name for path in place.glob("*.safetensors") for name in safe_open(path, "pt").keys()}  # noqa: SIM118


def check(case: Case, folder: Path) -> str:
    place = written(case, folder)
    config = json.loads((place / "config.json").read_text())
    try:
        model, spec, vocabulary, files = adopted(place, folder)
    except AtelierError as error:
        text = str(error)
        assert "\n" not in text and len(text) < 3000
        known = {*config, *case["left"], "tokenizer.json", *_names(place)}
        assert any(name in text for name in known), text
        return "refused"
    ids_BT = torch.randint(0, vocabulary.size, (1, 48), generator=torch.Generator().manual_seed(case["seed"]))
    expected = theirs(place, ids_BT)
    if expected is not None:
        found = logits(model, spec, ids_BT)
        apart = float((found - expected).abs().max() / expected.std())
        assert apart < 1e-5, f"logits {apart:.1e} of their scale apart"
    raw = Words.from_file(str(place / "tokenizer.json"))
    assert vocabulary.encode("def read(path)") == raw.encode("def read(path)", add_special_tokens=False).ids
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        if (place / name).exists():
            assert (files / name).read_bytes() == (place / name).read_bytes(), name
    return "works"
