"""Finished roles as models: the same bytes in every layout, and shards above a size."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load

from atelier.engine.config.error import AtelierError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Role, Trainable
from atelier.engine.io.artifact import open_input
from atelier.engine.io.weight_files import INDEX, WEIGHTS, weights_digest
from atelier.engine.loop import publish
from tests.engine.trainings import TrainingSetup, model, role, student, train
from tests.marks import quick

MANY = 9000  # bytes in a shard of these models: several shards
STEPS = 4
KEPT = train(STEPS, keep=9, micro_batch=1)
SHAPE = model(32, 2, num_experts=4, tied=True)
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "two shards": (2, {"shard": 2}),
    "tensor": (2, {"tensor": 2}),
    "two stages": (2, {"shard": 1, "pipeline": 2}),
    "stages and shards": (4, {"shard": 2, "pipeline": 2}),
    "shards and tensor": (4, {"shard": 2, "tensor": 2}),
    "experts and replicas": (4, {"shard": 1, "replicate": 2, "expert": 2}),
}


@pytest.fixture
def training_setup(tmp_path: Path) -> TrainingSetup:
    return TrainingSetup(tmp_path)


def files_of(training_setup: TrainingSetup, name: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in training_setup.output(name).glob("*.*")}


def weights_of(files: dict[str, bytes]) -> dict[str, Any]:
    shards = [
        data for name, data in files.items() if name.startswith("model") and name.endswith(".safetensors")
    ]
    return {name: tensor for data in shards for name, tensor in load(data).items()}


def published(
    training_setup: TrainingSetup, roles: dict[str, Role], **more: Any
) -> dict[str, dict[str, bytes]]:
    training_setup.train(training_setup.training(roles, KEPT), **more)
    return {name: files_of(training_setup, name) for name in roles}


@pytest.mark.parametrize("layout", quick(LAYOUTS, 2))
def test_a_gang_publishes_the_bytes_that_one_process_does(training_setup: TrainingSetup, layout: str) -> None:
    """From the same checkpoint: nothing is left to train."""
    lora = Trainable(kind="lora", rank=2, alpha=4.0, targets=("query", "down", "out"))
    roles = {
        "teacher": role(shape=SHAPE),
        "s": student(shape=model(16, 2)),
        "tuned": role(shape=model(32, 2), trainable=lora),
    }
    expected = published(training_setup, roles)
    assert "adapter_model.safetensors" in expected["tuned"]
    shutil.rmtree(training_setup.folder / "outputs")
    world, axes = LAYOUTS[layout]
    run = training_setup.run_file(
        training_setup.training(roles, KEPT),
        layout=Parallel(threads=1, compile="none", device="cpu", **axes),
    )
    for process in training_setup.processes(run, world=world):
        said, errors = process.communicate(timeout=300)
        assert process.returncode == 0, said + errors
    for name in roles:
        assert files_of(training_setup, name) == expected[name], name


def test_above_the_size_a_model_is_published_in_shards_of_the_same_weights(
    training_setup: TrainingSetup,
) -> None:
    whole = published(training_setup, {"model": role()})["model"]
    shutil.rmtree(training_setup.folder / "outputs")
    shards = published(training_setup, {"model": role()}, file_bytes=MANY)["model"]
    names = sorted(name for name in shards if name.startswith("model-"))
    assert len(names) > 3 and WEIGHTS not in shards
    one, many = weights_of(whole), weights_of(shards)
    assert one.keys() == many.keys() == json.loads(shards[INDEX])["weight_map"].keys()
    assert all(one[name].equal(many[name]) for name in one)
    body = json.loads(shards["body.json"])
    assert {entry["path"] for entry in body["files"]} == {*names, INDEX, "config.json"}
    assert body["summary"] == json.loads(whole["body.json"])["summary"]


def test_a_training_from_a_model_in_shards_is_that_from_one_file(training_setup: TrainingSetup) -> None:
    found = []
    for most in (MANY, 1 << 40):
        published(training_setup, {"base": role()}, file_bytes=most)
        training_setup.inputs["base"] = training_setup.as_input("base")
        tuned = training_setup.member("tuned", role(init="base"), STEPS, init="base")
        training_setup.train(training_setup.training({"tuned": tuned}, train(STEPS, keep=0)))
        found.append(files_of(training_setup, "tuned"))
        del training_setup.inputs["base"]
        for folder in ("outputs", "trajectory", "artifacts"):
            shutil.rmtree(training_setup.folder / folder)
    assert found[0] == found[1]


@pytest.mark.parametrize("most", [MANY, 1 << 40])
def test_a_replay_of_a_model_has_its_digest_in_one_file_and_in_shards(
    training_setup: TrainingSetup, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    published(training_setup, {"teacher": role()}, file_bytes=most)
    record = open_input(training_setup.as_input("teacher")).record
    digest = weights_digest(record.files, "teacher")
    assert (digest == next((e.sha256 for e in record.files if e.path.endswith(f"/{WEIGHTS}")), "")) == (
        most > MANY
    )

    def replay(name: str, digest: str) -> None:
        again = training_setup.member("teacher", role(), STEPS, mode="replay", output=False, digest=digest)
        learner = training_setup.member(name, student(start=2), STEPS)
        training_setup.train(
            training_setup.training({"teacher": again, name: learner}, KEPT), file_bytes=most
        )

    written = publish.ArtifactOutput.add_parts
    seen: list[str] = []

    def counting(self: publish.ArtifactOutput, name: str, parts: Any) -> None:
        seen.append(self.url)
        written(self, name, parts)

    monkeypatch.setattr(publish.ArtifactOutput, "add_parts", counting)
    replay("s", digest)
    assert set(seen) == {str(training_setup.output("s"))}, "the teacher's weights are compared, not written"
    with pytest.raises(AtelierError, match=rf"ended as {digest[:16]}, the finished model is 0000"):
        replay("other", "0" * 64)


def test_a_run_says_which_tokens_it_never_reads_and_the_model_keeps_their_number(
    training_setup: TrainingSetup, capsys: pytest.CaptureFixture[str]
) -> None:
    training_setup.train(training_setup.training({"model": role()}, train(1, sequence=300)))
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    [warning] = [line["warning"] for line in said if "warning" in line]
    assert "train.sequence=300 are never read: 199 of 20000 of tokens/train, 199 of 2000 of" in warning
    summary = json.loads((training_setup.output("model") / "body.json").read_text())["summary"]
    assert summary["unread"] == {"tokens/train": 199, "tokens/held_out": 199}
