"""Imitations of natural paragraphs, the rows made of them, and candidates ranked by the adversarial head."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atelier.engine.config.error import ConfigError
from atelier.engine.config.generation import Imitate, Sampling
from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.objective.document import DocumentLM
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.objective.natural import Natural
from atelier.engine.config.run_file import RunFile
from atelier.engine.data.datasets.load import rows_of
from atelier.engine.data.tokens import TokenText
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.data.words import Sentences
from atelier.engine.imitate import imitate
from atelier.engine.inference.generator import Generator
from atelier.engine.inference.opened import read_generator
from atelier.engine.inference.sampling import continuation, continuations
from atelier.engine.io.artifact import open_input
from tests.engine.row_inputs import VOCAB, harbour
from tests.engine.trainings import ONE, TrainingSetup, artifact, role, train

ASKED = Imitate(paragraphs=60, tokens=48, seed=3)


class Studio:
    """A small model of the harbour, and what it makes of the harbour's paragraphs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.training_setup = TrainingSetup(folder / "house", harbour(folder / "harbour"))
        self.training_setup.train(self.training_setup.training({"model": reader()}, how(30)))
        self.model = self.training_setup.as_input("model")
        self.imitations = self.imitate("imitations", ASKED)

    def imitate(self, name: str, asked: Imitate) -> str:
        """A published artifact; its URL."""
        place = self.folder / name / "made"
        inputs = {
            "model": self.model,
            "tokens": self.training_setup.inputs["tokens.main"],
            "tokenizer": self.training_setup.inputs["tokenizer"],
        }
        run = RunFile(
            schema=1, task="imitate", version=1, config=asked.model_dump(mode="json"), inputs=inputs,
            outputs={"imitations": str(place)}, scratch=str(self.folder / "scratch"), layout=ONE,
        )  # fmt: skip
        imitate(run, asked)
        files = {path.name: path.read_bytes() for path in place.iterdir() if path.name != "body.json"}
        return artifact(self.folder / name / "artifact", "imitations", files)

    def lines(self, url: str) -> list[dict[str, Any]]:
        text = open_input(url).file("imitations.jsonl", self.folder).read_text()
        return [json.loads(line) for line in text.splitlines()]

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.read(
            open_input(self.training_setup.inputs["tokenizer"]).file("tokenizer.json", self.folder)
        )


def reader(objective: Any = None, **more: Any) -> Any:
    net = Net(num_layers=1, hidden=16, num_heads=2)
    shape = Ernie(num_layers=1, hidden=32, num_heads=2, vocab=VOCAB, nlu=net, nlg=net, classes={"natural": 2})
    return role(shape=shape, objective=objective or {"document": DocumentLM(), "mlm": MLM()}, lr=1e-2, **more)


def how(steps: int) -> Any:
    return train(steps, global_batch=16, micro_batch=16, sequence=64, eval_sequences=4, checkpoint_every=100)


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Studio:
    return Studio(tmp_path_factory.mktemp("studio"))


def test_both_sides_of_a_paragraph_begin_alike_and_the_original_stands_in_the_text(studio: Studio) -> None:
    lines = studio.lines(studio.imitations)
    assert len(lines) == ASKED.paragraphs
    tokens = open_input(studio.training_setup.inputs["tokens.main"])
    texts = {split: TokenText(tokens, studio.folder, split).tokens_N for split in ("train", "held_out")}
    for line in lines:
        original, generated, prefix = line["original"], line["generated"], line["prefix"]
        assert 0 < prefix <= len(original) / 2
        assert generated[:prefix] == original[:prefix]
        assert prefix < len(generated) <= ASKED.tokens and len(original) <= ASKED.tokens
        assert np.array(original, "<i8").tobytes() in texts[line["split"]].astype("<i8").tobytes()
    different = sum(line["original"] != line["generated"] for line in lines)
    assert different > 0.9 * len(lines)


def test_originals_are_whole_sentences(studio: Studio) -> None:
    vocabulary = studio.vocabulary
    for line in studio.lines(studio.imitations):
        assert vocabulary.bytes_of(line["original"]).rstrip()[-1:] in b".!?"


def test_the_same_model_and_settings_give_the_same_bytes_and_another_seed_others(studio: Studio) -> None:
    again, other = (
        studio.imitate("again", ASKED),
        studio.imitate("other", ASKED.model_copy(update={"seed": 4})),
    )
    first = studio.lines(studio.imitations)
    assert studio.lines(again) == first
    assert studio.lines(other) != first


def test_each_paragraph_is_continued_at_a_temperature_of_its_own(studio: Studio) -> None:
    """As it would be if all had that one."""
    heats = (0.2, 1.0)
    mixed = studio.lines(studio.imitate("mixed", ASKED.model_copy(update={"temperatures": heats})))
    for heat in heats:
        only = ASKED.model_copy(update={"temperatures": (heat,)})
        alone = studio.lines(studio.imitate(f"at {heat}", only))
        mine = [line for line in mixed if line["temperature"] == heat]
        assert 0.25 * len(mixed) < len(mine) < 0.75 * len(mixed)
        assert [line for line in alone if line in mine] == mine


def test_a_model_of_another_tokenizer_is_refused(studio: Studio, tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in studio.training_setup.output("model").iterdir()}
    files.pop("body.json")
    files["tokenizer.json"] += b" "
    studio.model, kept = artifact(tmp_path / "foreign", "model", files), studio.model
    try:
        with pytest.raises(ConfigError, match=r"imitate\.model: its tokenizer is"):
            studio.imitate("foreign", ASKED)
    finally:
        studio.model = kept


def test_rows_are_the_generated_and_the_original_paragraph_in_turn(studio: Studio) -> None:
    rows = rows_of("natural").open_rows(
        Natural(), open_input(studio.imitations), studio.vocabulary, studio.folder,
        split="train", sequence=64, seed=1,
    )  # fmt: skip
    mine = [line for line in studio.lines(studio.imitations) if line["split"] == "train"]
    assert len(rows) == 2 * len(mine)
    batch = rows.batch([0, 1, 2])
    assert batch["classes_B"].tolist() == [0, 1, 0]
    assert batch["bidirectional_B"].tolist() == [1, 1, 1]
    original = batch["tokens_BT"][1][batch["documents_BT"][1] == 0].tolist()
    assert original == [studio.vocabulary.special("<|cls|>"), *mine[0]["original"]]


def test_prompts_continued_together_say_what_each_says_alone(studio: Studio) -> None:
    """Whatever the length of each."""
    speaker = read_generator(open_input(studio.model), studio.folder, torch.device("cpu"))
    prompts, end = [[30, 40, 50], [31], [32, 42, 52, 62, 33, 43]], speaker.vocabulary.end_id
    together = continuations(
        speaker.model, prompts, length=16, temperatures_B=torch.zeros(3), top_p=1.0,
        draws=lambda place: torch.zeros(3), ends=[end],
    )  # fmt: skip
    for prompt, ids in zip(prompts, together, strict=True):
        plain = Sampling(temperature=0.0, max_tokens=16 - len(prompt))
        assert [token for token in ids if token != end] == list(
            continuation(speaker.model, prompt, plain, [end])
        )


def test_candidates_are_ordered_by_the_judge_and_the_best_one_is_said(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaker = read_generator(open_input(studio.model), studio.folder, torch.device("cpu"))
    sampling = Sampling(max_tokens=12, best_of=5, seed=7)
    cut: list[int] = []
    whole = Sentences.whole
    monkeypatch.setattr(
        Sentences,
        "whole",
        lambda self, ids, first: [cut.append(len(ids) - first), whole(self, ids, first)][1],
    )
    ranked = speaker.ranked("The pier", sampling)
    assert cut and set(cut) == {12}, "those that the limit cut are judged without their last sentence"
    assert len({candidate.text for candidate in ranked}) > 1
    scores = [candidate.natural for candidate in ranked]
    assert scores == sorted(scores, reverse=True) and all(0 < score < 1 for score in scores)
    assert speaker.text("The pier", sampling) == ranked[0].text
    alone = speaker.text("The pier", sampling.model_copy(update={"best_of": 1}))
    assert alone in [candidate.text for candidate in ranked], "the first drawn is what is drawn alone"
    ids = speaker.vocabulary.encode("The pier") + speaker.vocabulary.encode(ranked[0].text)
    assert speaker.natural(ids) == pytest.approx(ranked[0].natural, abs=0.2)


def test_a_model_without_a_judge_does_not_rank(tmp_path: Path, studio: Studio) -> None:
    training_setup = TrainingSetup(tmp_path, studio.training_setup.inputs)
    spec = reader()
    bare = spec.model_copy(update={"model": spec.model.model_copy(update={"classes": {}})})
    training_setup.train(training_setup.training({"bare": bare}, how(1)))
    speaker: Generator = read_generator(
        open_input(training_setup.as_input("bare")), tmp_path, torch.device("cpu")
    )
    with pytest.raises(ConfigError, match="best-of: the model has no head"):
        speaker.text("x", Sampling(best_of=2))


def test_the_head_learns_to_tell_text_from_noise(studio: Studio, tmp_path: Path) -> None:
    lines, noise = studio.lines(studio.imitations), np.random.default_rng(1)
    for line in lines:
        line["generated"] = noise.integers(20, VOCAB - 10, len(line["generated"])).tolist()
    data = "\n".join(map(json.dumps, lines)).encode()
    noisy = artifact(tmp_path / "noisy", "imitations", {"imitations.jsonl": data})
    training_setup = TrainingSetup(tmp_path, studio.training_setup.inputs | {"imitations.main": noisy})
    training_setup.train(
        training_setup.training({"judge": reader({"document": DocumentLM(), "natural": Natural()})}, how(60))
    )
    values = training_setup.curve("judge")[-1]["values"]
    assert values["eval/objective/accuracy/natural"] > 0.9
    assert values["eval/objective/natural"] < 0.3
