"""What models say to questions, beside plain loops over single options."""

import io
import json
import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from atelier.engine.config.base import canonical
from atelier.engine.config.error import DataError
from atelier.engine.config.evaluation_set import EvaluationSet, QuestionKind, QuestionLine
from atelier.engine.config.exam import ExamResult
from atelier.engine.config.exam_metrics import METRICS
from atelier.engine.config.generation import Sampling
from atelier.engine.config.model.encdec import EncDec
from atelier.engine.data.asked import PosedSet, Reader, joined, windows
from atelier.engine.examine import examine
from atelier.engine.inference.generator import Generator
from atelier.engine.inference.sampling import SharedPrefix
from atelier.engine.io.artifact import ArtifactInput, open_input
from atelier.engine.model.load import read_model
from tests.engine.scored_models import Study
from tests.engine.trainings import artifact

WORDS = ["sea", "wave", "poem", "boat", "naïve", "世界", "🐟", "deep", "blue", "yellow", "is", "are"]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Study:
    torch.set_num_threads(1)
    return Study(tmp_path_factory.mktemp("study"))


def text(rng: random.Random, most: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


def questions(kind: QuestionKind, seed: int, number: int = 12) -> list[QuestionLine]:
    """Random questions: contexts of several lengths, ends with blanks and without, two to five options."""
    rng, found = random.Random(seed), []
    for n in range(number):
        options = [f" {text(rng, 4)} {k}" for k in range(rng.randint(2, 5))]
        single = [f" {text(rng, 3)}"]
        found.append(
            QuestionLine(
                id=f"q{n}",
                context=""
                if kind == "text"
                else f"Question: {text(rng, 9)}" + rng.choice(["", " ", "\n", "?\nA:"]),
                options={"choice": options, "cloze": single}.get(kind, []),
                answer=rng.randrange(len(options)) if kind == "choice" else 0,
                targets=[text(rng, 40 if kind == "text" else 3) for _ in range(1 if kind == "text" else 2)],
                shots=[0, 1] if n % 2 and kind != "text" else [],
                group=f"g{n // 2}",
                parts=[],
                answer_text="",
            )
        )
    return found


SHOTS = [
    {"id": "a", "text": "Question: sea\nA: deep\n\n"},
    {"id": "b", "text": "Question: boat\nA: blue\n\n"},
]


def posed(
    study: Study, kind: QuestionKind, seed: int = 1, lines: list[QuestionLine] | None = None
) -> ArtifactInput:
    settings = EvaluationSet(
        name=kind,
        kind=kind,
        description="" if kind == "text" else "Answer.\n\n",
        max_tokens=8,
        until=("\n", " is"),
        metrics=(),
    )
    lines = questions(kind, seed) if lines is None else lines
    files = {
        "set.json": canonical(settings.model_dump(mode="json")),
        "questions.jsonl": b"".join(canonical(cast(Any, line)) + b"\n" for line in lines),
        "shots.jsonl": b"".join(canonical(line) + b"\n" for line in SHOTS),
    }
    return open_input(artifact(study.folder / f"set-{kind}-{seed}-{len(lines)}", "evaluation", files))


def examined(
    study: Study, model: ArtifactInput, of: ArtifactInput, **settings: Any
) -> tuple[ExamResult, list[dict[str, Any]]]:
    config = {"examine": settings}
    run = study.run_file("examine", config, {"model": model, "set.one": of}, "one")
    examine(run, io.StringIO())
    folder = Path(run.outputs["one"])
    lines = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    return json.loads((folder / "exam.json").read_text()), lines


def asked_of(line: QuestionLine) -> str:
    return "Answer.\n\n" + "".join(SHOTS[n]["text"] for n in line["shots"]) + line["context"]


def one_pass(study: Study, network: Any, context: str, option: str) -> tuple[float, int, bool]:
    """Nats, tokens and whether each token is the most likely one, by one pass over one option; blanks between
    context and option belong to the option.
    """
    whole = study.vocabulary.encode(context + option)
    size = len(study.vocabulary.encode(context.rstrip()))
    ids = torch.tensor([whole])
    batch = {
        "tokens_BT": ids[:, :-1],
        "positions_BT": torch.arange(len(whole) - 1)[None],
        "documents_BT": torch.zeros_like(ids[:, :-1]),
    }
    with torch.inference_mode():
        logits_TV = network(batch).hidden[0] @ network.head_weight[: study.vocabulary.size].T
    each_T = logits_TV.double().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    is_best_T = logits_TV.argmax(-1) == ids[0, 1:]
    return -float(each_T[size - 1 :].sum()), len(whole) - size, bool(is_best_T[size - 1 :].all())


@pytest.mark.parametrize("seed", range(3))
def test_likelihoods_are_those_of_single_passes(study, seed):
    model = study.model()
    network, _ = read_model(model, study.scratch, device=CPU, dtype=torch.float32)
    exam, lines = examined(study, model, posed(study, "choice", seed))
    asked = questions("choice", seed)
    for line, question in zip(lines, asked, strict=True):
        expected = [one_pass(study, network, asked_of(question), option) for option in question["options"]]
        assert line["nats"] == pytest.approx([nats for nats, _, _ in expected], abs=1e-4)
        assert line["tokens"] == [size for _, size, _ in expected]
        assert line["best"] == [is_best for _, _, is_best in expected]
        assert line["right"] == float(int(np.argmin(line["nats"])) == question["answer"])
    assert exam["metrics"]["accuracy"]["value"] == np.mean([line["right"] for line in lines])
    assert exam["groups"] == 6 and exam["questions"] == 12


def test_nothing_depends_on_the_batch(study):
    model, of = study.model(), posed(study, "choice")
    _, first = examined(study, model, of, batch=1, prior=True)
    for batch in (7, 64):
        _, lines = examined(study, model, of, batch=batch, prior=True)
        for one, other in zip(first, lines, strict=True):
            assert other["nats"] == pytest.approx(one["nats"], abs=1e-4)
            assert other["alone"] == pytest.approx(one["alone"], abs=1e-4)
            assert (other["right"], other["best"]) == (one["right"], one["best"])


def test_a_cloze_is_right_if_each_token_is_the_most_likely(study):
    model = study.model()
    network, _ = read_model(model, study.scratch, device=CPU, dtype=torch.float32)
    generator, lines = Generator(network, study.vocabulary), questions("cloze", 3, 24)
    greedy = Sampling(max_tokens=2, temperature=0.0, top_p=1.0, seed=0)
    for line in lines[::2]:  # the model's own continuation, where it is encoded as it was drawn
        line["context"] = line["context"].rstrip()
        line["options"] = [generator.text(asked_of(line), greedy) or " sea"]
    found = examined(study, model, posed(study, "cloze", 77, lines))[1]
    expected = [one_pass(study, network, asked_of(line), line["options"][0])[2] for line in lines]
    assert [line["right"] for line in found] == [float(is_best) for is_best in expected]
    assert 0 < sum(expected) < len(lines)


def test_free_answers_are_greedy_and_end_before_a_stop(study):
    model = study.model()
    generator = Generator(
        read_model(model, study.scratch, device=CPU, dtype=torch.float32)[0], study.vocabulary
    )
    exam, lines = examined(study, model, posed(study, "free"))
    for line, question in zip(lines, questions("free", 1), strict=True):
        said = generator.text(asked_of(question), Sampling(max_tokens=8, temperature=0.0, top_p=1.0, seed=0))
        ends = [at for stop in ("\n", " is") if (at := said.find(stop)) >= 0]
        assert line["said"] == (said[: min(ends)] if ends else said)
    assert set(exam["metrics"]) == set(METRICS["free"])


def test_windows_score_each_id_of_a_text_once_with_the_asked_overlap():
    for seed in range(200):
        rng = random.Random(seed)
        ids, room = [rng.randrange(9) for _ in range(rng.randint(1, 60))], rng.randint(1, 20)
        begin, overlap = rng.choice([(), (7,)]), rng.choice([0.0, 0.5, 0.9])
        found = list(windows(ids, begin, room, overlap))
        assert [i for request in found for i in request.options[0]] == ids
        at = 0
        for request in found:
            assert len(request.prompt) + len(request.options[0]) - 1 <= room
            known = [*begin, *ids[:at]]
            assert [*request.prompt] == (known[-len(request.prompt) :] if request.prompt else [])
            at += len(request.options[0])
        for request in found[1:-1]:
            assert len(request.options[0]) == max(1, round(room * (1 - overlap)))


def test_a_text_that_fits_is_scored_as_one_row(study):
    model = study.model()
    exam, lines = examined(study, model, posed(study, "text"), sequence=500)
    network, _ = read_model(model, study.scratch, device=CPU, dtype=torch.float32)
    end = study.vocabulary.end_id
    for line, question in zip(lines, questions("text", 1), strict=True):
        ids = torch.tensor([[end, *study.vocabulary.encode(question["targets"][0])]])
        batch = {
            "tokens_BT": ids[:, :-1],
            "positions_BT": torch.arange(ids.shape[1] - 1)[None],
            "documents_BT": torch.zeros_like(ids[:, :-1]),
        }
        with torch.inference_mode():
            logits = network(batch).hidden[0] @ network.head_weight[: study.vocabulary.size].T
        nats = -float(logits.double().log_softmax(-1).gather(1, ids[0, 1:, None]).sum())
        assert line["nats"] == pytest.approx([nats], rel=1e-5)
        assert line["bytes"] == [len(question["targets"][0].encode())]
    assert [*exam["metrics"]] == ["bits_per_byte", "byte_perplexity", "word_perplexity"]
    bits = exam["metrics"]["bits_per_byte"]["value"]
    assert exam["metrics"]["byte_perplexity"]["value"] == pytest.approx(2**bits)


def test_contexts_without_room_lose_their_beginning_and_are_counted(study):
    model, of = study.model(), posed(study, "choice")
    exam, lines = examined(study, model, of, sequence=24)
    _, whole = examined(study, model, of)
    assert exam["cut"] == sum(line["cut"] > 0 for line in lines) > 0
    for line, other in zip(lines, whole, strict=True):
        assert (line["cut"] == 0) == (line["nats"] == pytest.approx(other["nats"], abs=1e-4))


def test_an_option_longer_than_the_context_is_refused(study):
    with pytest.raises(DataError, match=r"question q\d+: its longest option has \d+ tokens"):
        examined(study, study.model(), posed(study, "choice"), sequence=4)


def test_a_model_of_nan_is_refused(study):
    model = study.model("broken", init_std=float("3e38"))
    with pytest.raises(DataError, match="question q0: the model's likelihood is"):
        examined(study, model, posed(study, "choice"))


def test_an_encoder_reads_the_context(study):
    model = study.model_of(
        EncDec(num_layers=2, hidden=32, num_heads=2, vocab=study.vocabulary.size, init_std=0.3), "encdec"
    )
    for kind in ("choice", "cloze", "free", "text"):
        one, first = examined(study, model, posed(study, kind), batch=1)
        other, second = examined(study, model, posed(study, kind), batch=9)
        assert [*one["metrics"]] == [*other["metrics"]]
        for line, beside in zip(first, second, strict=True):
            assert line.get("said") == beside.get("said")
            assert line.get("nats", []) == pytest.approx(beside.get("nats", []), abs=1e-4)


def test_options_of_a_question_share_its_prompt(study):
    [line] = questions("choice", 5, 1)
    reader = Reader(study.vocabulary, None, is_paired=False, place="here")
    [asked] = reader.asked(PosedSet(EvaluationSet(name="x", kind="choice", metrics=()), [line], [], "here"))
    assert len(asked.requests) == 1 and len(asked.requests[0].options) == len(line["options"])


@pytest.mark.parametrize("spec", [{"positions": "learned", "max_positions": 400}, {"window": 16}])
def test_what_all_prompts_begin_with_is_read_once_and_changes_nothing(study, monkeypatch, spec):
    lines = questions("choice", 6)
    for line in lines:
        line["shots"] = [0, 1, 0, 1]
    model, of = study.model(next(iter(spec)), **spec), posed(study, "choice", 88, lines)
    read, begin = [], SharedPrefix.__init__

    def counted(self: SharedPrefix, network: Any, ids: Any) -> None:
        read.append(len(ids))
        begin(self, network, ids)

    monkeypatch.setattr(SharedPrefix, "__init__", counted)
    _, first = examined(study, model, of, batch=5)
    assert len(read) == 1 and read[0] >= len(study.vocabulary.encode(asked_of(lines[0]))) // 2
    monkeypatch.setattr("atelier.engine.inference.questions.shared_ids", lambda _: ())
    _, second = examined(study, model, of, batch=5)
    for one, other in zip(first, second, strict=True):
        assert one["nats"] == pytest.approx(other["nats"], abs=1e-4)
        assert (one["best"], one["tokens"]) == (other["best"], other["tokens"])


def test_neighbours_that_begin_alike_are_one_row_and_score_as_alone(study):
    """Questions on one passage, and options with contexts of their own (partial scoring)."""
    model, rng = study.model(), random.Random(4)
    network, _ = read_model(model, study.scratch, device=CPU, dtype=torch.float32)
    lines = questions("choice", 8)
    for number, line in enumerate(lines):
        passage = " ".join(f"sea {n} deep" for n in range(12 * (number // 3), 12 * (number // 3) + 8))
        line["shots"], line["context"] = [], f"{number // 3}: {passage} {text(rng, 5)}"
        if number < 6:
            line["contexts"] = [f"{line['context']} {text(rng, 3)} {k}" for k in range(len(line["options"]))]
            line["options"] = [line["options"][0]] * len(line["options"])
    exam, found = examined(study, model, posed(study, "choice", 99, lines))
    for line, question in zip(found, lines, strict=True):
        contexts = question.get("contexts") or [question["context"]] * len(question["options"])
        pairs = zip(contexts, question["options"], strict=True)
        expected = [one_pass(study, network, f"Answer.\n\n{context}", option)[0] for context, option in pairs]
        assert line["nats"] == pytest.approx(expected, abs=1e-4)
    reader = Reader(study.vocabulary, None, is_paired=False, place="here")
    settings = EvaluationSet(name="x", kind="choice", metrics=())
    requests = [one for each in reader.asked(PosedSet(settings, lines, [], "x")) for one in each.requests]
    rows = joined(requests, 0, is_paired=False)
    assert [number for row in rows for number in row.numbers] == [*range(len(requests))]
    assert len(rows) < len(requests) // 2 and exam["questions"] == len(lines)
    assert all(len(row.numbers) == 1 for row in joined(requests, 0, is_paired=True))


def test_options_with_values_have_no_right_answer_and_parts_have_results_of_their_own(study):
    lines = questions("choice", 5)
    for number, line in enumerate(lines):
        line["options"], line["values"], line["slice"] = (
            [" sea", " boat", " poem"],
            [0, 1, 3],
            "ab"[number % 2],
        )
    model = study.model()
    of = posed(study, "valued", 5, lines)
    exam, answered = examined(study, model, of)
    assert list(exam["metrics"]) == ["expected"] and not any("right" in line for line in answered)
    weights = [np.exp(-np.array(line["nats"])) for line in answered]
    expected = [float(each @ [0, 1, 3] / each.sum()) for each in weights]
    assert exam["metrics"]["expected"]["value"] == pytest.approx(np.mean(expected))
    parts = {each["slice"]: each["value"] for each in exam.get("slices", [])}
    assert parts["b"] == pytest.approx(np.mean(expected[1::2]))
    assert [*exam.get("leanings", {})] == ["a", "b"]


def test_variants_of_a_question_are_compared(study):
    lines = questions("choice", 6)
    for number, line in enumerate(lines):
        line["options"], line["slice"] = [" sea", " boat"], "ab"[number % 2]
        line["answer"], line["item"] = 0, f"g{number // 2}"
    exam, answered = examined(study, study.model(), posed(study, "choice", 6, lines))
    chosen = [int(np.argmin(line["nats"])) for line in answered]
    same = np.mean([a == b for a, b in zip(chosen[::2], chosen[1::2], strict=True)])
    assert exam["metrics"]["same_answer"]["value"] == same
    assert exam.get("main") == "accuracy" and exam.get("spread", {})["by_chance"] >= 0
