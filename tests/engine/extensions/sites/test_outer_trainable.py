"""Sites that train a part of a model's weights: only these are exchanged, with equal bits."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load, load_file
from torch import Tensor

from atelier.engine.config.mixture import Stream
from atelier.engine.config.model.encdec import EncDec
from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role, Trainable
from atelier.engine.config.run_file import Training
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.encoded import parts_of
from atelier.engine.extensions.sites.link_cost import exchanged
from atelier.engine.extensions.sites.messages import BODY
from tests.engine.extensions.sites.at_sites import all_at_once
from tests.engine.extensions.sites.test_outer import EVERY, STEPS, Sites
from tests.engine.labelled import labelled_setup
from tests.engine.trainings import VOCAB, TrainingSetup, model, role, train
from tests.marks import quick

LENGTH = 4  # of a soft prompt
LORA = Trainable(kind="lora", rank=2, targets=("query", "down"))
PROMPT = Trainable(kind="prompt", length=LENGTH)
NET = Net(num_layers=1, hidden=16, num_heads=2)
ERNIE = Ernie(num_layers=2, hidden=32, num_heads=2, vocab=VOCAB, nlu=NET, nlg=NET)
ENCODER = EncDec(num_layers=2, hidden=32, num_heads=2, vocab=VOCAB)


def pairs(*matrices: str) -> set[str]:
    return {f"{name}.lora_{part}.weight" for name in matrices for part in "AB"}


class Case(NamedTuple):
    shape: ModelSpec
    trainable: Trainable
    names: set[str]  # of the weights that are trained


CASES = {
    "lora": Case(
        model(),
        LORA,
        pairs(*(f"blocks.{n}.{name}" for n in range(1) for name in ("attention.query", "mlp.down"))),
    ),
    "prompt": Case(model(), PROMPT, {"soft.weight"}),
    "parts": Case(
        ERNIE,
        Trainable(kind="parts", parts=("nlg",)),
        {name for name in ERNIE.shapes() if name.startswith("nlg.")},
    ),
    "encdec": Case(ENCODER, Trainable(), {*ENCODER.shapes()}),
    "encdec-lora": Case(
        ENCODER,
        Trainable(kind="lora", rank=2, targets=("down",)),
        {
            name
            for each in ENCODER.shapes()
            if each.endswith(".down.weight")
            for name in pairs(each.removesuffix(".weight"))
        },
    ),
    "encdec-prompt": Case(ENCODER, PROMPT, {"soft.weight"}),
}


class Tuning(Sites):
    """Sites that go on from one finished model."""

    def __init__(self, folder: Path, base: TrainingSetup, **link: Any) -> None:
        super().__init__(folder, base.inputs, **link)

    def training(self, site: str, spec: Role, steps: int = STEPS, **more: Any) -> Training:
        """On labelled examples where the model reads no windows of text, or its prompt is tuned."""
        setup, link = self.setups[site], self.link_of(site)
        how = train(steps, **({"micro_batch": 1, "sequence": 32, "link": link} | more))
        training = setup.training({"m": setup.member("m", spec, steps, init="base")}, how)
        if spec.trainable.kind != "prompt" and not spec.model.reads_encoder:
            return training
        examples = Stream(input="labels", kind="examples", num_examples=16)
        return training.model_copy(update={"streams": (examples,)})

    def sent(self) -> list[dict[str, Tensor]]:
        """The bodies of all messages of all sites, once the mailbox has nothing but these and JSON."""
        files = [path for path in Path(self.link["mailbox"]).rglob("*") if path.is_file()]
        bodies = [path for path in files if path.name == BODY]
        assert {path.suffix for path in files if path not in bodies} == {".json"}
        assert len(bodies) == len(self.setups) * STEPS // EVERY
        return [load_file(path) for path in bodies]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainingSetup]:
    """Finished models by kind, each with text and labelled examples."""
    shapes: dict[str, ModelSpec | None] = {"gpt": None, "ernie": ERNIE, "encdec": ENCODER}
    return {kind: labelled_setup(tmp_path_factory.mktemp(kind), shape) for kind, shape in shapes.items()}


def tuned(case: Case) -> Role:
    added = {"soft_prompt": case.trainable.soft_prompt} if case.trainable.kind == "prompt" else {}
    return role(shape=case.shape.model_copy(update=added), lr=1e-2, init="base", trainable=case.trainable)


def moved(base: dict[str, Tensor], now: dict[str, Tensor]) -> set[str]:
    return {name for name in now if name not in base or not torch.equal(base[name], now[name])}


def without_adapters(names: Iterable[str]) -> set[str]:
    """The weights of the published model that low-rank additions and other trained weights are in."""
    return {name.replace(".lora_A", "").replace(".lora_B", "") for name in names}


@pytest.mark.parametrize("name", CASES)
def test_what_is_trained_crosses_and_nothing_else(
    tmp_path: Path, bases: dict[str, TrainingSetup], name: str
) -> None:
    case, spec = CASES[name], tuned(CASES[name])
    base = bases[case.shape.kind]
    sites = Tuning(tmp_path, base)
    sites.train(spec)
    for body in sites.sent():
        assert body.keys() == case.names
    planned = exchanged(spec, spec.model, precision="fp32", widths={})
    assert planned is not None and planned.keys() == case.names
    assert len(set(sites.models())) == 1
    assert moved(load(base.weights("base")), load(sites.models()[0])) == without_adapters(case.names)
    losses = [[line["values"]["loss"] for line in each.curve("m")] for each in sites.setups.values()]
    assert losses[0] != losses[1]  # each learns rows of its own


@pytest.mark.parametrize("name", ["lora", "prompt"])
def test_the_small_files_of_what_was_tuned_are_equal_too(
    tmp_path: Path, bases: dict[str, TrainingSetup], name: str
) -> None:
    sites = Tuning(tmp_path, bases["gpt"], codec={"kind": "int4", "block": 64})
    spec = tuned(CASES[name])
    sites.train(spec)
    weights = exchanged(spec, spec.model, precision="fp32", widths={})
    assert weights is not None
    parts = {part.name for one in weights.values() for part in parts_of(Codec(kind="int4", block=64), one)}
    assert all(body.keys() == parts for body in sites.sent())
    files = {(each.output("m") / "adapter_model.safetensors").read_bytes() for each in sites.setups.values()}
    assert len(files) == len(set(sites.models())) == 1


@pytest.mark.parametrize("name", quick(["lora", "prompt", "parts", "encdec"]))
def test_stopped_again_and_again_the_sites_end_with_the_same_bits(
    tmp_path: Path, bases: dict[str, TrainingSetup], name: str
) -> None:
    case, stops = CASES[name], dict[str, int]()
    whole, pieces = (Tuning(tmp_path / each, bases[case.shape.kind]) for each in ("whole", "pieces"))
    whole.train(tuned(case))

    def train_at(site: str) -> None:
        stops[site] = pieces.setups[site].train_in_pieces(pieces.training(site, tuned(case)), 7)

    all_at_once(pieces.setups, train_at)
    assert min(stops.values()) >= 1
    assert set(pieces.models()) == set(whole.models()) and len(set(whole.models())) == 1
