"""A soft prompt is tuned while the model stays unchanged, for every position and initial value."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load, load_file

from atelier.engine.config.error import ConfigError
from atelier.engine.config.evaluation import Target
from atelier.engine.config.generation import Sampling
from atelier.engine.config.mixture import Stream
from atelier.engine.config.model.encdec import EncDec
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.role import Trainable
from atelier.engine.config.run_file import Training
from atelier.engine.config.soft_prompt import SoftPrompt
from atelier.engine.data.examples import Examples
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.evaluate import Exam
from atelier.engine.inference.models import TextModel
from atelier.engine.inference.opened import read_generator
from atelier.engine.inference.scoring import choose
from atelier.engine.io.artifact import open_input
from atelier.engine.model.load import read_model
from atelier.engine.plan.checks import check_teaching
from tests.engine.labelled import labelled_setup
from tests.engine.trainings import ONE, VOCAB, TrainingSetup, model, role, train

PLACES = ("front", "middle", "back", (1, 2, 1))
LENGTH = 4  # so that rows of examples are odd: ranks that share tokens have them padded
ENCODER = EncDec(num_layers=2, hidden=32, num_heads=2, vocab=VOCAB)


@pytest.fixture
def training_setup(tmp_path: Path) -> TrainingSetup:
    return labelled_setup(tmp_path)


def tuning(
    setup: TrainingSetup, steps: int = 12, name: str = "tuned", *, lr: float = 0.3, **how: Any
) -> Training:
    trainable = Trainable(kind="prompt", **({"length": LENGTH} | how))
    base = open_input(setup.inputs["base"])
    shape = read_model(base, setup.folder / "scratch")[1].model_copy(
        update={"soft_prompt": trainable.soft_prompt}
    )
    spec = role(shape=shape, lr=lr, init="base", trainable=trainable, seed_name="tuned")
    settings = train(steps, keep=0, checkpoint_every=4, sequence=32, precision="fp32")
    members = {name: setup.member(name, spec, steps, init="base")}
    stream = Stream(input="labels", kind="examples", num_examples=16)
    return Training(members=members, streams=(stream,), train=settings)


def losses(setup: TrainingSetup, name: str = "tuned") -> list[float]:
    return [line["values"]["loss"] for line in setup.curve(name)]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", [model(num_layers=2), ENCODER], ids=["gpt", "encdec"])
def test_only_the_prompt_moves_and_the_loss_falls(tmp_path: Path, shape: Any, place: Any) -> None:
    training_setup = labelled_setup(tmp_path, shape)
    training_setup.train(tuning(training_setup, place=place, first="random"))
    base, tuned = load(training_setup.weights("base")), load(training_setup.weights("tuned"))
    assert tuned.keys() - base.keys() == {"soft.weight"}
    assert all(torch.equal(base[name], tuned[name]) for name in base)
    assert losses(training_setup)[-1] < losses(training_setup)[0] - 0.1
    adapter = load_file(training_setup.output("tuned") / "adapter_model.safetensors")
    assert torch.equal(adapter["prompt_embeddings"], tuned["soft.weight"])
    assert (training_setup.output("tuned") / "adapter_model.safetensors").stat().st_size < 20_000
    config = json.loads((training_setup.output("tuned") / "adapter_config.json").read_text())
    assert config["peft_type"] == "PROMPT_TUNING"
    assert config["task_type"] == ("SEQ_2_SEQ_LM" if shape is ENCODER else "CAUSAL_LM")
    assert (config["num_virtual_tokens"], config["token_dim"]) == (LENGTH, 32)


def test_rows_of_tokens_begin_a_prompt(training_setup: TrainingSetup) -> None:
    base = load(training_setup.weights("base"))["embed.weight"]
    for number, (how, ids) in enumerate({"vocabulary": None, "text": [2, 3, 2, 3, 2][:LENGTH]}.items()):
        name = f"begun-{number}"
        more = {"text": "ab"} if how == "text" else {}
        training_setup.train(tuning(training_setup, steps=1, name=name, lr=1e-9, first=how, **more))
        found = load(training_setup.weights(name))["soft.weight"]
        if ids is None:
            assert all(any(torch.allclose(row, each, atol=1e-6) for each in base) for row in found)
        else:
            assert torch.allclose(found, base[ids], atol=1e-6)


def test_frequent_tokens_the_mask_and_the_mean_begin_a_prompt(training_setup: TrainingSetup) -> None:
    base = load(training_setup.weights("base"))["embed.weight"]
    lines = open_input(training_setup.inputs["labels"]).lines("train.jsonl", training_setup.folder)
    letters = Counter("".join(str(cast(Any, line)["prompt"]) for line in lines))
    most = [ord(letter) - ord("a") + 2 for letter, _ in letters.most_common(1)]
    for how, row in {"frequent": base[most[0]], "mean": base.mean(0)}.items():
        training_setup.train(tuning(training_setup, steps=1, name=how, lr=1e-9, first=how))
        assert torch.allclose(load(training_setup.weights(how))["soft.weight"][0], row, atol=1e-6), how
    with pytest.raises(ConfigError, match=r"tokenizer.specials: the vocabulary has no <\|mask\|>"):
        training_setup.train(tuning(training_setup, steps=1, name="masked", first="mask"))


@pytest.mark.parametrize(
    ("length", "place", "counts"),
    [
        (10, (5, 5, 0), (5, 5, 0)),
        (100, (33, 34, 33), (33, 34, 33)),
        (4, (1, 1, 1), (2, 1, 1)),
        (3, (98, 2, 0), (3, 0, 0)),
        (7, "back", (0, 0, 7)),
    ],
)
def test_a_place_of_parts_divides_the_vectors(length: int, place: Any, counts: tuple[int, ...]) -> None:
    soft = SoftPrompt(length=length, place=place)
    assert soft.counts() == counts
    made = soft.put([7], [1, 2, 3], 90)
    assert sorted(made) == sorted([7, 1, 2, 3, *range(90, 90 + length)])
    assert [token for token in made if token >= 90] == [*range(90, 90 + length)]


def test_a_place_is_written_in_one_way_and_its_old_names_mean_what_they_meant() -> None:
    assert SoftPrompt(length=4, place=(3, 0, 0)) == SoftPrompt(length=4)
    assert SoftPrompt(length=4, place=(2, 4, 2)).as_identity() == {"length": 4, "place": [1, 2, 1]}
    assert Trainable(kind="prompt", place="back").as_identity() == {"kind": "prompt", "place": "back"}
    with pytest.raises(ValueError, match="has no part above 0"):
        SoftPrompt(place=(0, 0, 0))


def test_a_mask_needs_an_encoder() -> None:
    tuned = role(init="base", trainable=Trainable(kind="prompt", mask="both"))
    shape = tuned.model.model_copy(update={"soft_prompt": SoftPrompt(length=4)})
    with pytest.raises(ConfigError, match="hides tokens inside an encoder, but models of kind gpt"):
        check_teaching({"model": tuned.model_copy(update={"model": shape})})


def test_a_prompt_stopped_and_resumed_has_the_same_bits(training_setup: TrainingSetup) -> None:
    training_setup.train(tuning(training_setup, name="whole"))
    assert training_setup.train_in_pieces(tuning(training_setup, name="pieces"), 5) >= 2
    assert training_setup.weights("whole") == training_setup.weights("pieces")


@pytest.mark.parametrize("place", PLACES)
def test_options_and_texts_are_behind_the_prompt_when_it_is_used(
    training_setup: TrainingSetup,
    place: Any,
    tmp_path: Path,
) -> None:
    """What scoring and generation compute is what training did: the same rows."""
    training_setup.train(tuning(training_setup, place=place))
    training_setup.inputs["tuned"] = training_setup.as_input("tuned")
    names = ("tuned", "labels", "tokenizer")
    source, labels, tokenizer = (open_input(training_setup.inputs[name]) for name in names)
    network, spec = read_model(source, tmp_path)
    soft = SoftPrompt(length=LENGTH, place=place)
    plain = Examples(labels, tokenizer, tmp_path, sequence=32)
    exam = Exam(
        sequence=None,
        prompt="",
        vocabulary=Vocabulary.of(tokenizer, tmp_path),
        text=None,
        tokens="",
        examples={None: plain},
        heads=None,
    )
    examples = exam.asked(Target(text=False, labels=True), spec)
    assert examples is not None
    choices = choose(cast(TextModel, network.eval()), examples, advance=lambda _: None)
    assert len(choices.correct) == len(plain)
    [row] = [examples.batch([0])["tokens_BT"][0]]
    ids = [token for token in row.tolist() if token < VOCAB and token != 1]
    assert ids == [token for token in plain.batch([0])["tokens_BT"][0].tolist() if token != 1]
    where = [place for place, token in enumerate(row.tolist()) if token >= VOCAB]
    prompt = len(plain.examples[0].prompt)
    begins = {
        "front": [0] * 4,
        "middle": [prompt // 2] * 4,
        "back": [prompt] * 4,
        (1, 2, 1): [0, prompt // 2, prompt // 2, prompt],
    }[place]
    assert where == [begin + number for number, begin in enumerate(begins)]
    assert isinstance(spec, GPT) and spec.soft_prompt == soft


def test_generation_with_a_cache_is_that_without(training_setup: TrainingSetup, tmp_path: Path) -> None:
    training_setup.train(tuning(training_setup, place="middle"))
    source = open_input(training_setup.as_input("tuned"))
    generator = read_generator(source, tmp_path, torch.device("cpu"))
    sampling = Sampling(max_tokens=6, temperature=0.0)
    found = generator.vocabulary.encode(generator.text("abcab", sampling))
    ids = SoftPrompt(length=LENGTH, place="middle").put([], generator.vocabulary.encode("abcab"), VOCAB)
    for token in found:
        tokens_BT = torch.tensor([ids])
        batch = {
            "tokens_BT": tokens_BT,
            "positions_BT": torch.arange(len(ids))[None],
            "documents_BT": torch.zeros_like(tokens_BT),
        }
        logits_V = generator.model(batch).hidden[0, -1] @ generator.model.head_weight.T
        assert int(logits_V.argmax()) == token
        ids.append(token)


def test_an_encoder_reads_the_prompt_when_a_text_is_generated(tmp_path: Path) -> None:
    setup = labelled_setup(tmp_path, ENCODER)
    setup.train(tuning(setup, place="middle"))
    generator = read_generator(open_input(setup.as_input("tuned")), tmp_path, torch.device("cpu"))
    before = generator.before("abcab", Sampling(max_tokens=6))
    assert before.encoder is not None
    assert [token for token in before.encoder if token >= VOCAB] == list(range(VOCAB, VOCAB + LENGTH))
    assert before.encoder[2 : 2 + LENGTH] == list(range(VOCAB, VOCAB + LENGTH))
    whole = generator.text("abcab", Sampling(max_tokens=6, temperature=0.0))
    table = cast(Any, generator.model).soft.weight
    with torch.no_grad():
        table.mul_(-1)
    assert generator.text("abcab", Sampling(max_tokens=6, temperature=0.0)) != whole


def test_no_room_for_a_prompt_is_said(training_setup: TrainingSetup) -> None:
    says = (
        r"trainable.length: 40 vectors leave no room for a prompt: rows have room for 32 tokens; give fewer"
    )
    with pytest.raises(ConfigError, match=says):
        training_setup.train(tuning(training_setup, length=40))
    with pytest.raises(ValueError, match=r"first=text needs a text: give trainable\.text"):
        Trainable(kind="prompt", first="text")


LAYOUTS: dict[str, dict[str, Any]] = {
    "shard": {"shard": 2},
    "tensor": {"tensor": 2, "sequence_parallel": True},
    "tensor alone": {"tensor": 2, "sequence_parallel": False},
    "pipeline": {"pipeline": 2},
    "context": {"context": 2},
}
QUICK = {("gpt", "tensor"), ("gpt", "context"), ("encdec", "shard")}  # the rest is marked slow


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        pytest.param(
            shape, layout, id=f"{kind}-{name}", marks=() if (kind, name) in QUICK else pytest.mark.slow
        )
        for kind, shape in (("gpt", model(num_layers=2)), ("encdec", ENCODER))
        for name, layout in LAYOUTS.items()
        if not (kind == "encdec" and name == "context")  # rows of models with an encoder are not split
    ],
)
def test_layouts_agree(tmp_path: Path, shape: Any, layout: dict[str, Any]) -> None:
    training_setup = labelled_setup(tmp_path, shape)
    exact = {"precision": "fp64"}
    one, two = (tuning(training_setup, name=name) for name in ("one", "two"))
    training_setup.train(one.model_copy(update={"train": one.train.model_copy(update=exact)}))
    both = two.model_copy(update={"train": two.train.model_copy(update=exact)})
    run = training_setup.run_file(both, layout=ONE.model_copy(update=layout))
    ranks = training_setup.processes(run, world=2)
    said = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert losses(training_setup, "two") == pytest.approx(losses(training_setup, "one"), abs=1e-10)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"length": 3}, "length does nothing where kind=full"),
        ({"kind": "lora", "place": "back"}, "place does nothing where kind=lora"),
        ({"kind": "prompt", "rank": 3}, "rank does nothing where kind=prompt"),
        ({"kind": "prompt", "text": "abc"}, "text does nothing where first=vocabulary"),
    ],
)
def test_fields_of_another_kind_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Trainable(**fields)


def test_a_prompt_is_tuned_on_labelled_examples_alone() -> None:
    tuned = role(init="base", trainable=Trainable(kind="prompt"))
    with pytest.raises(ConfigError, match="prompt, which needs labelled examples"):
        check_teaching({"model": tuned})
    by_hand = role(shape=model().model_copy(update={"soft_prompt": SoftPrompt(length=3)}))
    with pytest.raises(ConfigError, match="no row of this training has such vectors"):
        check_teaching({"model": by_hand})
