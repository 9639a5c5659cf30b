"""The data that a training reads: exact shares, caps, a batch ramp, and the record of it in the model."""

from collections import Counter
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.mixture import Sharing, SourceShares, streams
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.run_file import Training
from atelier.engine.config.schedule import RampUp, Schedule
from atelier.engine.config.train import Progressive
from atelier.engine.data.blend import Blend
from atelier.engine.io.artifact import open_input
from atelier.engine.loop.samples import Samples, consumed
from tests.engine.trainings import TrainingSetup, laid_out, role, tokens, train

WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}
RAMP = Progressive(rampup=RampUp(start=2, by=2, samples=10))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("texts")
    return {f"tokens.{name}": tokens(folder / name, seed=seed) for seed, name in enumerate(WEIGHTS)}


def asked(setup: TrainingSetup, steps: int = 8, name: str = "m", **more: Any) -> Training:
    later = more.pop("later", ())
    caps, spec = more.pop("caps", {}), more.pop("role", role(lr=1e-2))
    return Training(
        members={name: setup.member(name, spec, steps)},
        streams=streams({}, WEIGHTS, later, caps),
        phases=tuple(shares.begin for shares in later),
        assignment=more.pop("assignment", "exact"),
        train=train(steps, **({"global_batch": 8, "precision": "fp64"} | more)),
    )


def recount(blend: Blend, places: range) -> dict[str, int]:
    owners = Counter(owner for owner, _ in blend.samples(places.start, len(places)))
    return {name: owners[n] for n, name in enumerate(WEIGHTS)}


def test_the_record_says_the_samples_tokens_and_epochs_that_a_recount_finds(
    tmp_path: Path, inputs: dict[str, str]
) -> None:
    """With phases, a cap and a ramp, stopped and resumed or not."""
    later = (SourceShares(begin=4, weights={"a": 0.1, "b": 0.5, "c": 0.4}),)
    found = {}
    for name, every in (("whole", 0), ("pieces", 3)):
        setup = TrainingSetup(tmp_path / name, inputs)
        training = asked(setup, later=later, caps={"b": 0.016}, progressive=RAMP)  # 20 of 1249 rows
        if every:
            assert setup.train_in_pieces(training, every) == 2
        else:
            setup.train(training)
        found[name] = setup.summary("m")["consumed"], setup.weights("m"), setup.curve("m")
    assert found["whole"] == found["pieces"]
    samples = training.train.progressive.samples_before(8, 8)
    opened = {key: open_input(url) for key, url in inputs.items()}
    blend = Samples(training, opened, tmp_path / "scratch").blend(16)
    record = found["whole"][0]
    counted = recount(blend, range(samples))
    assert {name: each["samples"] for name, each in record.items()} == counted
    assert counted["b"] <= cap_of(blend, 0.016) and sum(counted.values()) == samples
    assert all(each["tokens"] == 16 * each["samples"] for each in record.values())
    assert sum(each["tokens"] for each in record.values()) == found["whole"][2][-1]["tokens"]
    for n, name in enumerate(WEIGHTS):
        assert record[name]["epochs"] == pytest.approx(counted[name] / blend.drawn(0, 1)[n][0], abs=1e-6)


def cap_of(blend: Blend, epochs: float) -> int:
    return int(epochs * blend.drawn(0, 1)[1][0])


def test_a_training_in_blocks_has_a_record_too_and_steps_left_out_do_not_count(
    tmp_path: Path, inputs: dict[str, str]
) -> None:
    setup = TrainingSetup(tmp_path, inputs)
    training = asked(setup, assignment="blocks")
    samples = Samples(training, {key: open_input(url) for key, url in inputs.items()}, tmp_path / "scratch")
    blend = samples.blend(16)
    part: Any = consumed(training, samples.blend, 2, 8, [3, 4, 9])
    expected = Counter(recount(blend, range(16, 64)))
    expected.subtract(recount(blend, range(24, 40)))
    assert {name: each["samples"] for name, each in part.items()} == dict(expected)


def test_the_set_of_a_sample_depends_neither_on_how_it_is_read_nor_on_what_phases_follow(
    tmp_path: Path, inputs: dict[str, str]
) -> None:
    setup = TrainingSetup(tmp_path, inputs)
    opened = {key: open_input(url) for key, url in inputs.items()}
    later = (SourceShares(begin=6, weights={"a": 0.0, "b": 1.0, "c": 1.0}),)
    whole, phased = (
        Samples(asked(setup, later=each), opened, tmp_path / "scratch").blend(16) for each in ((), later)
    )
    together = whole.samples(0, 48)
    assert phased.samples(0, 48) == together != phased.samples(24, 48)
    for ranks in (2, 3, 4):
        parts = [whole.samples(48 // ranks * rank, 48 // ranks) for rank in range(ranks)]
        assert list(chain(*parts)) == together
    places = np.random.default_rng(1).permutation(48)
    assert [whole.samples(place, 1)[0] for place in places.tolist()] == [together[p] for p in places.tolist()]


def test_caps_need_an_exact_assignment_and_a_source_that_lasts(
    tmp_path: Path, inputs: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match=r"epochs of b are capped, but assignment is blocks"):
        Sharing(epochs={"b": 1.0})
    setup = TrainingSetup(tmp_path, inputs)
    short = asked(setup, caps=dict.fromkeys(WEIGHTS, 0.01))
    with pytest.raises(
        ConfigError, match=r"data.epochs: every source has reached its cap at sample 36 of 64"
    ):
        setup.train(short)


def test_identity_has_the_assignment_and_the_caps_only_where_they_matter() -> None:
    exact = Sharing(assignment="exact", epochs={"b": 2.0})
    assert Sharing().identity({"a", "b"}, 2) == {} == Sharing(assignment="exact").identity({"a"}, 1)
    assert exact.identity({"a", "b"}, 2) == {"assignment": "exact", "epochs": {"b": 2.0}}
    assert exact.identity({"a"}, 1) == {}


def test_the_learning_rate_of_a_ramp_follows_its_tokens(tmp_path: Path, inputs: dict[str, str]) -> None:
    schedule = Schedule(kind="cosine", warmup_tokens=128, decay_tokens=512, floor=0.1)
    setup = TrainingSetup(tmp_path, inputs)
    training = asked(setup, progressive=RAMP, role=role(lr=1e-2, schedule=schedule))
    setup.train(training)
    seen = [0, *(line["tokens"] for line in setup.curve("m"))]
    rates = [line["values"]["lr"] for line in setup.curve("m")]
    assert rates == [1e-2 * schedule.factor(0, 0, 1, before) for before in seen[:-1]]
    assert [after - before for before, after in pairwise(seen)][:5] == [
        32, 32, 64, 96, 128,
    ]  # fmt: skip


def test_the_loss_is_the_cross_entropy_beside_a_z_loss(tmp_path: Path, inputs: dict[str, str]) -> None:
    found = {}
    for name, weight in (("plain", 0.0), ("z", 1.0)):
        setup = TrainingSetup(tmp_path / name, inputs)
        setup.train(asked(setup, role=role(lr=1e-2, objective={"lm": LM(z_weight=weight)})))
        found[name] = [line["values"] for line in setup.curve("m")]
    first, plain = found["z"][0], found["plain"][0]
    assert first["loss"] == pytest.approx(plain["loss"], rel=1e-12)
    log_z = (first["objective/lm"] - first["loss"]) ** 0.5
    assert log_z == pytest.approx(np.log(64), rel=0.05)  # logits are near 0
    last = found["z"][-1]
    assert last["objective/lm"] - last["loss"] < 0.9 * (first["objective/lm"] - first["loss"])
    assert 0 < last["eval/loss"] < 4.5


@pytest.mark.slow
@pytest.mark.parametrize("axes", [{"shard": 4}, {"shard": 1, "pipeline": 2}, {"shard": 3}], ids=str)
def test_a_batch_that_the_ranks_do_not_divide_trains_as_in_one_process(
    tmp_path: Path, inputs: dict[str, str], axes: dict[str, int]
) -> None:
    """Rows of padding fill 2 sequences over 4 ranks, or 1 micro-batch in 2 stages: the weights are equal."""
    full: dict[str, Any] = {"global_batch": 24, "micro_batch": 2}
    ramp = Progressive(rampup=RampUp(start=2, by=2, samples=44))
    spec = role(lr=1e-2, shape=role().model.model_copy(update={"num_layers": 2}))
    one = TrainingSetup(tmp_path / "one", inputs)
    one.train(asked(one, progressive=ramp, role=spec, **full))
    many = TrainingSetup(tmp_path / "many", inputs)
    many.folder.mkdir()
    layout = laid_out(**axes)
    run = many.run_file(asked(many, progressive=ramp, role=spec, **full), layout=layout)
    for rank in many.processes(run, world=layout.ranks):
        _, error = rank.communicate(timeout=240)
        assert rank.returncode == 0, error
    losses = [[line["values"]["loss"] for line in setup.curve("m")] for setup in (one, many)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-10)
    tokens_seen = [[line["tokens"] for line in setup.curve("m")] for setup in (one, many)]
    assert tokens_seen[0] == tokens_seen[1]
    assert one.summary("m")["consumed"] == many.summary("m")["consumed"]
