"""Private trainings: each row's gradient clipped, noise once, the same bits after a kill and on two ranks."""

import copy
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load
from scipy import stats

from atelier.engine.config.error import AtelierError, StoppedError
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.parallel import Axes, Parallel
from atelier.engine.config.role import Role, Trainable
from atelier.engine.config.run_file import Training
from atelier.engine.config.schedule import Schedule
from atelier.engine.extensions.privacy.config.train.privacy import Privacy
from atelier.engine.extensions.privacy.hook import PrivateGradients, normal
from atelier.engine.io.artifact import open_input
from atelier.engine.loop.build import BuildContext, build_roles
from atelier.engine.loop.report import ProgressReport
from atelier.engine.loop.services import TrainingServices
from atelier.engine.loop.step import train_step
from atelier.engine.loop.stop import StopRequest
from atelier.engine.loop.training import Trainer
from atelier.engine.parallel.gang import start_gang
from atelier.engine.parallel.grid import Grid
from tests.engine.extensions.sites.test_outer import Sites
from tests.engine.trainings import ONE, AfterSteps, TrainingSetup, model, role, tokens, train
from tests.forks import start_gang as start_ranks
from tests.parity.cases import layout as layout_of

LORA = Trainable(kind="lora", rank=2, targets=("query", "value"))
BETA = 0.9


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"tokens": tokens(tmp_path_factory.mktemp("text"), num_tokens=1000)}


def adapter(**more: Any) -> Role:
    optim = AdamW(lr=1e-2, beta1=BETA, clip=1e9, schedule=Schedule(kind="constant"))
    return role(trainable=LORA, **more).model_copy(update={"optim": optim})


def private(steps: int = 8, **more: Any) -> Any:
    spec = {"kind": "record", "clip": 0.1, "noise": 0.0, "secret": False} | more.pop("privacy", {})
    return train(steps, micro_batch=1, privacy=Privacy(**spec), **more)


def opened(training: Training, setup: TrainingSetup) -> Trainer:
    """The loop of a training before its first step, in this process."""
    gang = start_gang(ONE)
    inputs = {key: open_input(url) for key, url in setup.inputs.items()}
    context = BuildContext(gang=gang, layout=ONE, inputs=inputs, scratch=setup.folder)
    services = TrainingServices(
        build_context=context,
        outputs={},
        report=ProgressReport(total=1, is_first=True),
        stop=StopRequest(setup.folder),
        peak_flops=0.0,
        began=0.0,
    )
    return Trainer(training, build_roles(training, {"m": 0}, context), services)


def gradients(loop: Trainer) -> dict[str, torch.Tensor]:
    """What the optimiser of `m` was given in the loop's first step."""
    step, member = loop.begin_step(0), loop.members["m"]
    train_step(step.group, step.data.batches, clock=0, counts=step.counts, gang=loop.gang)
    loop.stop_reading()
    found = member.weights.optimizer
    assert found is not None
    return {
        name: found.state[weight]["exp_avg"] / (1 - BETA)
        for name, weight in member.weights.trainable().items()
    }


def test_each_row_is_clipped_as_by_a_gradient_of_that_row_alone(tmp_path: Path, text: dict[str, str]) -> None:
    setup = TrainingSetup(tmp_path, text)
    clip = 0.6
    training = setup.training({"m": adapter()}, private(precision="fp64", privacy={"clip": clip}))
    loop = opened(training, setup)
    body = loop.members["m"].body
    assert body is not None
    model = copy.deepcopy(body.stages[0].model)
    batches = loop.data.at(0).batches
    sums, norms = {}, []
    for batch in batches:
        assert len(batch["tokens_BT"]) == 1
        model.zero_grad(set_to_none=True)
        logits_BTV = model(batch).hidden @ model.head_weight.T
        F.cross_entropy(logits_BTV[0], batch["labels_BT"][0], ignore_index=-100).backward()
        mine = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
        norms.append(math.sqrt(sum(float(grad.square().sum()) for grad in mine.values())))
        for name, grad in mine.items():
            sums[name] = sums.get(name, 0.0) + grad * min(1.0, clip / norms[-1])
    assert min(norms) < clip < max(norms), norms  # some are clipped, others are not
    found = gradients(opened(training, setup))
    assert found.keys() == sums.keys()
    for name, grad in found.items():
        assert torch.allclose(grad, sums[name] / len(batches), rtol=1e-9, atol=1e-14), name
    loop.stop_reading()


def test_noise_is_added_once_with_its_scale(tmp_path: Path, text: dict[str, str]) -> None:
    found = []
    for noise in (0.0, 3.0):
        setup = TrainingSetup(tmp_path / str(noise), text)
        how = private(precision="fp64", privacy={"noise": noise, "clip": 0.2})
        found.append(gradients(opened(setup.training({"m": adapter(shape=model(num_layers=2))}, how), setup)))
    added = torch.cat([(found[1][name] - found[0][name]).flatten() for name in found[0]]).numpy()
    assert len(added) > 500
    assert stats.kstest(added / (3.0 * 0.2 / 4), "norm").pvalue > 0.01
    parts = [(found[1][name] - found[0][name]).flatten() for name in found[0]]
    assert not torch.equal(parts[0][:64], parts[-1][:64])


def test_noise_is_normal_and_another_for_each_key_step_and_weight() -> None:
    key = bytes(32)
    first = normal(key, "t/3/w", 100_001)
    assert np.array_equal(first, normal(key, "t/3/w", 100_001))
    assert stats.kstest(first, "norm").pvalue > 0.01 and abs(first.std() - 1) < 0.01
    for other in (
        normal(b"1" * 32, "t/3/w", 100_001),
        normal(key, "t/4/w", 100_001),
        normal(key, "t/3/v", 100_001),
        normal(key, "u/3/w", 100_001),
    ):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.02


def test_a_row_that_is_not_finite_adds_nothing_and_stops_nothing() -> None:
    gang = start_gang(ONE)
    weight = torch.nn.Parameter(torch.zeros(3))
    grads = PrivateGradients(
        Privacy(kind="record", clip=1.0, noise=0.0), {"w": weight}, Grid(gang, Axes()), batch=4, key="00" * 32
    )
    grads.begin(0, "t")
    for row in ([3.0, 4.0, 0.0], [0.3, 0.0, 0.4], [math.nan, 0.0, 0.0], [math.inf, 1.0, 1.0]):
        weight.grad = torch.tensor(row)
        grads.add()
        assert weight.grad is None
    grads.finish()
    assert weight.grad is not None
    assert torch.allclose(weight.grad, torch.tensor([0.6 + 0.3, 0.8, 0.4]) / 4)
    assert grads.measured == {"privacy/clipped": 0.25, "privacy/lost": 0.5}
    grads.begin(1, "t")
    weight.grad = torch.full((3,), math.nan)
    grads.add()
    with pytest.raises(AtelierError, match="step 2: no row has a finite gradient"):
        grads.finish()


@pytest.mark.parametrize("layout", [layout_of(shard=2), layout_of(replicate=2)], ids=["shard", "replicate"])
def test_two_ranks_are_one(tmp_path: Path, text: dict[str, str], layout: Parallel) -> None:
    how = private(10, precision="fp64", privacy={"noise": 0.5}, eval_sequences=4)
    one, two = (TrainingSetup(tmp_path / name, text) for name in ("one", "two"))
    one.train(one.training({"m": adapter()}, how))
    run = two.run_file(two.training({"m": adapter()}, how), layout=layout)
    path = two.folder / "run.json"
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(run.model_dump_json(by_alias=True))
    start_ranks("tests.parity.gang", tmp_path, 2, str(path))
    mine, theirs = load(one.weights("m")), load(two.weights("m"))
    assert 0 < max(float((mine[name] - theirs[name]).abs().max()) for name in mine) < 1e-8
    for first, second in zip(one.curve("m"), two.curve("m"), strict=True):
        assert first["values"] == pytest.approx(second["values"], rel=1e-10)
    assert any(line["values"]["privacy/clipped"] for line in one.curve("m"))
    shutil.rmtree(two.output("m"))
    for number in two.steps("m")[1:]:
        shutil.rmtree(two.folder / f"trajectory/m/checkpoints/step-{number:08d}")
    two.train(two.training({"m": adapter()}, how))  # the ranks' checkpoint, on one
    again = load(two.weights("m"))
    assert max(float((mine[name] - again[name]).abs().max()) for name in mine) < 1e-8


def test_stopped_again_and_again_it_ends_with_the_same_bits(tmp_path: Path, text: dict[str, str]) -> None:
    how = private(12, privacy={"noise": 1.0})
    whole, pieces = (TrainingSetup(tmp_path / name, text) for name in ("whole", "pieces"))
    whole.train(whole.training({"m": adapter()}, how))
    assert pieces.train_in_pieces(pieces.training({"m": adapter()}, how), 5) >= 2
    assert pieces.weights("m") == whole.weights("m") and pieces.curve("m") == whole.curve("m")


def test_a_secret_key_is_in_the_checkpoints_alone(tmp_path: Path, text: dict[str, str]) -> None:
    """From one checkpoint the same bits; from the beginning others, each time."""
    how = private(12, privacy={"noise": 1.0, "secret": True})
    begun = TrainingSetup(tmp_path / "begun", text)
    with pytest.raises(StoppedError):
        begun.train(begun.training({"m": adapter()}, how), stop=AfterSteps(begun.folder, 6))
    ends = []
    for name in ("one", "two"):
        shutil.copytree(begun.folder, tmp_path / name)
        setup = TrainingSetup(tmp_path / name, text)
        setup.train(setup.training({"m": adapter()}, how))
        ends.append(setup.weights("m"))
    fresh = TrainingSetup(tmp_path / "fresh", text)
    fresh.train(fresh.training({"m": adapter()}, how))
    assert ends[0] == ends[1] != fresh.weights("m")
    values = [
        value
        for path in (tmp_path / "one").rglob("checkpoints/**/manifest.json")
        for value in json.loads(path.read_text())["values"]
        if "privacy" in json.dumps(value)
    ]
    keys = {value[1] for value in values}
    assert len(keys) == 1
    [key] = keys
    bare = str(key).strip('"').encode()
    assert len(bare) == 64
    holders = {path for path in (tmp_path / "one").rglob("*") if path.is_file() and bare in path.read_bytes()}
    assert holders and all("checkpoints" in path.parts for path in holders)


def test_branches_of_one_trunk_have_noise_of_their_own() -> None:
    """They have the trunk's key: the same noise over other gradients would tell these apart."""
    gang, found = start_gang(ONE), list[torch.Tensor]()
    for where in ("one", "two", "one"):
        weight = torch.nn.Parameter(torch.zeros(50))
        spec = Privacy(kind="record", clip=1.0, noise=1.0)
        grads = PrivateGradients(spec, {"w": weight}, Grid(gang, Axes()), batch=1, key="07" * 32)
        grads.begin(3, where)
        weight.grad = torch.zeros(50)
        grads.add()
        grads.finish()
        assert weight.grad is not None
        found.append(weight.grad)
    assert torch.equal(found[0], found[2])
    assert abs(torch.corrcoef(torch.stack(found[:2]))[0, 1]) < 0.6


def test_the_record_says_what_is_claimed(tmp_path: Path, text: dict[str, str]) -> None:
    pytest.importorskip("dp_accounting")
    setup = TrainingSetup(tmp_path, text)
    setup.train(setup.training({"m": adapter()}, private(30, privacy={"noise": 2.0, "secret": True})))
    found = setup.summary("m")["privacy"]
    assert found["rows"] == 1000 // 16 and found["steps"] == 30 and found["visits"] == 2
    assert found["epsilon"] > 0 and found["delta"] == 1e-5 and "dp-accounting" in found["accountant"]
    public = TrainingSetup(tmp_path / "public", text)
    public.train(public.training({"m": adapter()}, private(4, privacy={"noise": 2.0})))
    told = public.summary("m")["privacy"]
    assert told["epsilon"] is None and told["why"] == "the noise follows from the seed"


def test_sites_that_train_an_adapter_together_have_the_same_bits(
    tmp_path: Path, text: dict[str, str]
) -> None:
    """Each with noise of its own, for the rows of its own; what crosses is clipped too."""
    sites = Sites(tmp_path, text, clip=0.05)
    spec = Privacy(kind="record", noise=1.0, clip=0.1)
    sites.train(adapter(), privacy=spec)
    assert len(set(sites.models())) == 1
    with_one_noise = Sites(tmp_path / "public", text)
    with_one_noise.train(adapter(), privacy=spec.model_copy(update={"secret": False}))
    assert len(set(with_one_noise.models())) == 1
