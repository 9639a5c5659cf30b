"""Use of a model with an encoder: generation, scoring and fine-tuning; prompts go to its encoder."""

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atelier.engine.config.error import DataError
from atelier.engine.config.generation import Sampling
from atelier.engine.config.mixture import Stream
from atelier.engine.config.model.encdec import EncDec
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.run_file import RunFile, Training
from atelier.engine.data.examples import Examples
from atelier.engine.export import export
from atelier.engine.inference.generator import Generator
from atelier.engine.inference.opened import read_generator
from atelier.engine.inference.questions import answers, written
from atelier.engine.inference.sampling import encoder_inputs
from atelier.engine.inference.scoring import choose, label_nats, read_held_out, text_nats
from atelier.engine.inference.serving import serve
from atelier.engine.io.artifact import open_input
from tests.engine.scored_models import OPTIONS, PROMPTS, Study
from tests.engine.trainings import TrainingSetup, artifact, role, train

CPU = torch.device("cpu")
SHAPE: dict[str, Any] = {
    "num_layers": 2, "hidden": 32, "num_heads": 2, "ffn": 48, "buckets": 8, "max_distance": 20,
    "init_std": 2.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def speaker(study: Study) -> Generator:
    spec = EncDec(vocab=study.vocabulary.size, **SHAPE)
    return read_generator(study.model_of(spec, "pair"), study.scratch, CPU)


@torch.inference_mode()
def log_p(speaker: Generator, read: list[int], said: list[int]) -> Tensor:
    """Log-probabilities [T, V] behind the begin and every token of `said`, the encoder having read `read`."""
    tokens_BT = torch.tensor([[speaker.vocabulary.start_id, *said]])
    batch = {"tokens_BT": tokens_BT, "documents_BT": torch.zeros_like(tokens_BT)}
    output = speaker.model(batch | encoder_inputs([[*read, speaker.vocabulary.end_id]], CPU))
    return (output.hidden[0] @ speaker.model.head_weight.T).log_softmax(-1)


def nats(speaker: Generator, read: list[int], said: list[int]) -> float:
    chosen = log_p(speaker, read, said)[: len(said)].gather(1, torch.tensor(said)[:, None])
    return -float(chosen.double().sum())


def test_a_prompt_is_read_by_the_encoder_and_what_is_said_is_the_likeliest_token_by_token(
    speaker: Generator,
) -> None:
    prompt, said = speaker.vocabulary.encode("Poem 3: the sea"), list[int]()
    for _ in range(12):
        token = int(log_p(speaker, prompt, said)[-1].argmax())
        if token in speaker.vocabulary.ends:
            break
        said.append(token)
    text = speaker.text("Poem 3: the sea", Sampling(max_tokens=12, temperature=0.0))
    assert said and text == speaker.vocabulary.bytes_of(said).decode("utf-8", "replace")


def test_requests_are_answered_with_what_each_gets_alone(speaker: Generator) -> None:
    asked = [{"prompt": PROMPTS[n], "seed": n, "max_tokens": 5 + n, "temperature": 0.9} for n in range(6)]
    answers = io.StringIO()
    serve(speaker, [json.dumps(one).encode() for one in asked], answers, memory=10**9)
    found = [json.loads(line)["text"] for line in answers.getvalue().splitlines()]
    alone = [
        speaker.text(one["prompt"], Sampling(**{name: one[name] for name in one if name != "prompt"}))
        for one in asked
    ]
    assert found == alone and len(set(found)) > 3


def test_every_token_of_held_out_text_but_the_first_is_scored_once_behind_the_tokens_before_it(
    study: Study, speaker: Generator
) -> None:
    text = read_held_out(study.tokens, study.vocabulary, study.scratch, 10**6)
    assert max(len(one.encode()) for one in study.held_out) > 3 * 20
    whole = sum(math.log(study.vocabulary.size) for _ in text.ends_D)
    for begin, end in zip([0, *text.ends_D[:-1]], text.ends_D, strict=True):
        ids = text.tokens_N[begin:end].tolist()
        for at in range(1, len(ids), 20):
            whole += nats(speaker, ids[max(0, at - 20) : at], ids[at : at + 20])
    found = text_nats(speaker.model, text, sequence=20, vocab=study.vocabulary.size, advance=lambda _: None)
    assert found == pytest.approx(whole, rel=1e-5)


def test_the_option_chosen_is_the_likeliest_behind_the_prompt(study: Study, speaker: Generator) -> None:
    examples = Examples(
        study.labels(), study.tokenizer, study.scratch, sequence=200, split="test", is_paired=True
    )
    choices = choose(speaker.model, examples, advance=lambda _: None)
    ids = [study.vocabulary.encode(option) for option in OPTIONS]
    said = 0
    for number, example in enumerate(examples.examples):
        each = [nats(speaker, list(example.prompt), option) for option in ids]
        right = min(range(4), key=each.__getitem__) == example.answer
        assert choices.correct[number] == right
        said += right
    assert 0 < said < len(examples)
    places = [3, 17, 8]
    batch, rows = examples.option_batch(places)
    given = {name: torch.from_numpy(values) for name, values in batch.items()}
    nats_BT = torch.zeros(given["labels_BT"].shape, dtype=torch.float64)
    nats_BT[given["labels_BT"] >= 0] = next(label_nats(speaker.model, [given]))
    for place, row, nats_T in zip(places, rows, nats_BT, strict=True):
        prompt = list(examples.examples[place].prompt)
        for (begin, end), option in zip(row.spans, ids, strict=True):
            assert float(nats_T[begin:end].sum()) == pytest.approx(nats(speaker, prompt, option), rel=1e-5)


def test_completions_are_written_for_the_prompts_and_compared_with_the_right_ones(
    study: Study, speaker: Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four completions two are right, one has one word of two."""
    right = [" deep water", " sea", " seven boats", " wave"]
    lines = [
        {"prompt": prompt, "completion": text, "options": [], "group": prompt}
        for prompt, text in zip(PROMPTS, right, strict=False)
    ]
    raw = "".join(json.dumps(line) + "\n" for line in lines).encode()
    labels = open_input(artifact(tmp_path / "free", "labels", {"test.jsonl": raw}, options=[], test=4))
    examples = Examples(labels, study.tokenizer, study.scratch, sequence=200, split="test", is_paired=True)
    known = dict(zip(PROMPTS, [" deep water", "sea", " seven fish", " boat"], strict=False))
    asked: dict[str, Any] = {}

    def answers(model: Any, prompts: list[list[int]], *_: Any, **how: Any) -> list[str]:
        asked.update(how)
        return [known[study.vocabulary.decode(ids)] for ids in prompts]

    monkeypatch.setattr("atelier.engine.inference.questions.answers", answers)
    found = written(speaker.model, examples, speaker.vocabulary, advance=lambda _: None)
    is_right = {
        prompt: text.strip() == known[prompt].strip() for prompt, text in zip(PROMPTS, right, strict=False)
    }
    correct = [int(is_right[study.vocabulary.decode(each.prompt)]) for each in examples.examples]
    assert found == {"accuracy": 0.5, "f1": 0.625, "correct": correct, "majority": 0.25}
    longest = max(len(study.vocabulary.encode(text)) for text in right)
    assert (asked["most"], asked["until"]) == (longest + 1, ())  # with the end


def test_a_written_completion_is_what_the_model_says_to_the_prompt(
    study: Study, speaker: Generator, tmp_path: Path
) -> None:
    said = [speaker.text(prompt, Sampling(max_tokens=8, temperature=0.0)) for prompt in PROMPTS[:4]]
    prompts = [study.vocabulary.encode(prompt) for prompt in PROMPTS[:4]]
    how: dict[str, Any] = {"most": 8, "until": (), "advance": lambda _: None}
    assert answers(speaker.model, prompts, study.vocabulary, **how) == said


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_reads_what_was_exported_as_t5_and_says_the_same(
    study: Study, tmp_path: Path, tied: bool
) -> None:
    transformers = pytest.importorskip("transformers")
    spec = EncDec(vocab=study.vocabulary.size, tied=tied, **SHAPE)
    source = study.model_of(spec, f"leaves-{tied}")
    run = RunFile(
        schema=1, task="export", version=1, config={"url": str(tmp_path / "exported"), "most": 20_000},
        inputs={"model": source.url}, scratch=str(tmp_path / "scratch"), layout=Parallel(shard=1, threads=1),
    )  # fmt: skip
    done = export(run)
    assert done["family"] == "t5" and done["apart"] == 0.0
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "exported").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    ours, written = read_generator(source, study.scratch, CPU), ""
    for prompt in PROMPTS[:4]:
        ids = torch.tensor([[*study.vocabulary.encode(prompt), study.vocabulary.end_id]])
        text = ours.text(prompt, Sampling(max_tokens=12, temperature=0.0))
        more = theirs.generate(input_ids=ids, max_new_tokens=12, do_sample=False)[0, 1:]
        assert tokenizer.decode(more, skip_special_tokens=True).startswith(text.rstrip("\ufffd"))
        written += text
    assert written


@pytest.fixture
def house(tmp_path: Path, study: Study) -> TrainingSetup:
    """Labelled examples whose completion is in the prompt."""
    setup = TrainingSetup(tmp_path)
    setup.inputs["tokenizer"] = study.tokenizer.url
    options = [" sea", " deep", " Boote"]
    lines = [
        {"prompt": f"{n}{options[n % 3]}. It is", "completion": options[n % 3], "options": options}
        for n in range(24)
    ]
    setup.inputs["labels"] = labelled(tmp_path / "labels", lines)
    return setup


def labelled(folder: Path, lines: list[dict[str, Any]]) -> str:
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return artifact(folder, "labels", {"train.jsonl": text, "test.jsonl": text}, test=len(lines))


def tuning(setup: TrainingSetup, study: Study, steps: int = 60) -> Training:
    spec = role(shape=EncDec(vocab=study.vocabulary.size, **(SHAPE | {"init_std": 0.7})), lr=1e-2)
    how = train(steps, keep=0, checkpoint_every=100, global_batch=12, micro_batch=6, sequence=64)
    return Training(
        members={"tuned": setup.member("tuned", spec, steps)},
        streams=(Stream(input="labels", kind="examples"),),
        train=how,
    )


def test_labelled_examples_are_learned_prompt_in_the_encoder_completion_in_the_decoder(
    house: TrainingSetup, study: Study
) -> None:
    house.train(tuning(house, study))
    lines = house.curve("tuned")
    assert lines[-1]["values"]["loss"] < 0.1 < 1 < lines[0]["values"]["loss"]
    assert (house.output("tuned") / "body.json").exists()


@pytest.mark.parametrize("side", ["prompt", "completion"])
def test_an_example_with_an_empty_side_is_refused_with_its_number(
    tmp_path: Path, study: Study, side: str
) -> None:
    lines = [{"prompt": "a", "completion": " b", "options": [" b", ""]} for _ in range(3)]
    lines[1][side] = ""
    labels = labelled(tmp_path / "empty", lines)
    setup = TrainingSetup(tmp_path)
    setup.inputs |= {"tokenizer": study.tokenizer.url, "labels": labels}
    with pytest.raises(DataError, match=rf"{labels}: example \d has an empty {side}.*leave the example out"):
        setup.train(tuning(setup, study, 2))
    assert not (setup.output("tuned") / "body.json").exists()
