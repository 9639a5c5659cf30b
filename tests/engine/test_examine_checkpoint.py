"""What a checkpoint says to questions: the same as the model that its training ends with, in any layout."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.checkpoint.folder import address
from atelier.engine.config.error import ConfigError, DamageError, DataError
from atelier.engine.config.exam import CheckpointAddress
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.examine import examine
from atelier.engine.io.artifact import open_input
from tests.engine.scored_models import Study
from tests.engine.test_examine import posed
from tests.engine.trainings import ONE, TrainingSetup, artifact, laid_out, role, tokens, train

STEPS, BEFORE = 8, 4


class Trained:
    """A finished training, its checkpoints and its model."""

    def __init__(self, study: Study, name: str, layout: Parallel = ONE) -> None:
        vocab = study.vocabulary.size
        self.study, self.spec = study, GPT(num_layers=2, hidden=32, num_heads=2, vocab=vocab)
        folder = study.folder / name
        self.setup = TrainingSetup(folder, {"tokens": tokens(folder / "tokens", vocab=vocab)})
        how = train(STEPS, checkpoint_every=BEFORE, keep=2)
        training = self.setup.training({"model": role(shape=self.spec)}, how)
        run = self.setup.run_file(training, layout=layout)
        for rank in self.setup.processes(run, world=layout.ranks):
            said, err = rank.communicate(timeout=300)
            assert rank.returncode == 0, said + err

    def checkpoint(self, step: int) -> CheckpointAddress:
        segment = self.setup.segment("model", 0, STEPS)
        url = address(f"{segment.url}/checkpoints", step)
        return CheckpointAddress(
            url=url, trajectory=segment.fingerprint, step=step, model=self.spec.arguments()
        )

    def lines(self, checkpoint: CheckpointAddress | None, **settings: Any) -> list[dict[str, Any]]:
        """Its answers; of None the finished model's."""
        study = self.study
        config: dict[str, Any] = {"examine": settings}
        source = study.tokenizer
        if checkpoint is not None:
            config["checkpoint"] = checkpoint.model_dump(mode="json")
        else:
            files = {path.name: path.read_bytes() for path in self.setup.output("model").iterdir()}
            files["tokenizer.json"] = study.file(study.tokenizer, "tokenizer.json").read_bytes()
            files.pop("body.json")
            place = self.setup.folder / "with tokenizer"
            place.mkdir(exist_ok=True)
            source = open_input(artifact(place, "model", files))
        inputs = {"tokenizer" if checkpoint else "model": source, "set.one": posed(study, "choice")}
        run = study.run_file("examine", config, inputs, "one")
        examine(run, io.StringIO())
        answers = Path(run.outputs["one"]) / "answers.jsonl"
        return [json.loads(line) for line in answers.read_text().splitlines()]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def trained(study: Study) -> Trained:
    return Trained(study, "one rank")


def test_the_last_checkpoint_says_what_the_finished_model_says(trained: Trained) -> None:
    last, model = trained.lines(trained.checkpoint(STEPS)), trained.lines(None)
    assert [line["right"] for line in last] == [line["right"] for line in model]
    for one, other in zip(last, model, strict=True):
        assert one["nats"] == pytest.approx(other["nats"], rel=1e-6)
    earlier = trained.lines(trained.checkpoint(BEFORE))
    assert [line["nats"] for line in earlier] != [line["nats"] for line in last]


def test_a_checkpoint_in_16_bits_says_what_the_model_in_16_bits_says(trained: Trained) -> None:
    last = trained.lines(trained.checkpoint(STEPS), precision="bf16")
    for one, other in zip(last, trained.lines(None, precision="bf16"), strict=True):
        assert one["nats"] == pytest.approx(other["nats"], rel=1e-2)


@pytest.mark.parametrize("axes", [{"shard": 2}, {"pipeline": 2}, {"tensor": 2}], ids=str)
def test_a_checkpoint_saved_by_two_ranks_is_read_by_one(study: Study, axes: dict[str, int]) -> None:
    trained = Trained(study, f"two {next(iter(axes))}", laid_out(**({"shard": 1} | axes)))
    for one, other in zip(trained.lines(trained.checkpoint(STEPS)), trained.lines(None), strict=True):
        assert one["nats"] == pytest.approx(other["nats"], rel=1e-6)


def test_damage_is_named(trained: Trained, tmp_path: Path) -> None:
    whole = trained.checkpoint(BEFORE)
    copy = whole.model_copy(update={"url": str(tmp_path / Path(whole.url).name)})
    shutil.copytree(whole.url, copy.url)
    file = next(Path(copy.url).glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamageError, match=file.name):
        trained.lines(copy)
    shutil.rmtree(copy.url)
    with pytest.raises(DamageError, match=r"manifest\.json: missing"):
        trained.lines(copy)


@pytest.mark.parametrize("other", [{"step": BEFORE + 1}, {"trajectory": "0" * 64}], ids=str)
def test_a_checkpoint_of_another_step_or_training_is_refused(trained: Trained, other: dict[str, Any]) -> None:
    with pytest.raises((DamageError, ConfigError), match="holds"):
        trained.lines(trained.checkpoint(BEFORE).model_copy(update=other))


def test_weights_of_another_network_are_refused(trained: Trained) -> None:
    wider = trained.spec.model_copy(update={"hidden": 64}).arguments()
    with pytest.raises(DataError, match="weights do not fit the model"):
        trained.lines(trained.checkpoint(STEPS).model_copy(update={"model": wider}))


def test_a_limit_of_memory_is_for_finished_models(trained: Trained) -> None:
    with pytest.raises(ConfigError, match=r"examine\.memory_gb: is for finished models"):
        trained.lines(trained.checkpoint(STEPS), memory_gb=1.0)
