import gzip
import io
import json
import math
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from atelier.engine import evaluate as evaluation
from atelier.engine.config.data import TextEnds
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.data.encode import encode
from atelier.engine.data.examples import Examples
from atelier.engine.data.tokens import Windows
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.evaluate import Exam, baselines, evaluate
from atelier.engine.inference import opened
from atelier.engine.inference.scoring import HeldOutText, choose, read_held_out, text_nats
from atelier.engine.io.artifact import open_input
from atelier.engine.model.load import read_model
from tests.checkout import python_path
from tests.engine.scored_models import OPTIONS, PROMPTS, Study
from tests.engine.trainings import artifact
from tests.forks import start


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Study:
    torch.set_num_threads(1)
    return Study(tmp_path_factory.mktemp("study"))


def asked(study, sequence=16, text=True, labels=True, **score) -> dict:
    score = {"max_tokens": 10_000, "sequence": sequence, "sample": "Poem"} | score
    return {"score": score, "targets": {"one": {"text": text, "labels": labels}}, "threads": 1}


def inputs_of(study, model) -> dict:
    return {
        "model.one": model,
        "tokens": study.tokens,
        "tokenizer": study.tokenizer,
        "labels": study.labels(),
    }


def scored(study, config, model, *outputs) -> dict[str, dict]:
    """scores.json of every output, with a short sample."""
    run = study.run_file("score", config, inputs_of(study, model), *(outputs or ("one",)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "SAMPLE", evaluation.SAMPLE.model_copy(update={"max_tokens": 4}))
        evaluate(run, io.StringIO())
    return {name: json.loads((Path(url) / "scores.json").read_text()) for name, url in run.outputs.items()}


def log_probability(model, tokens: list[int], label: int) -> float:
    """ln p of `label` behind `tokens`, alone in a row."""
    row = torch.tensor([tokens])
    batch = {
        "tokens_BT": row,
        "positions_BT": torch.arange(len(tokens))[None],
        "documents_BT": torch.zeros_like(row),
    }
    with torch.inference_mode():
        hidden = model(batch).hidden[0, -1]
        return float((model.head_weight @ hidden).double().log_softmax(-1)[label])


def brute_force_nats(model, documents: list[list[int]], sequence: int) -> float:
    """Every token from what a window lets it see: the tokens of its document since the window began."""
    total, place = 0.0, 0
    for ids in documents:
        total += math.log(model.spec.tokens)
        for n in range(1, len(ids)):
            begin = max(0, (place + n - 1) // sequence * sequence - place)
            total -= log_probability(model, ids[begin:n], ids[n])
        place += len(ids)
    return total


@pytest.mark.parametrize("sequence", [16, 50, 1000])
@pytest.mark.parametrize("shape", [{}, {"positions": "learned", "max_positions": 1000}])
def test_bits_per_byte_are_those_of_every_token_computed_alone(study, sequence, shape):
    source = study.model(f"bits{len(shape)}", **shape)
    model, _ = read_model(source, study.scratch)
    taken = 4  # documents
    documents = [[*study.vocabulary.encode(text), study.vocabulary.end_id] for text in study.held_out]
    size = sum(len(ids) for ids in documents[:taken])
    scores = scored(study, asked(study, sequence, labels=False, max_tokens=max(256, size)), source)["one"]
    num = scores["documents"]
    assert num >= taken and sum(map(len, documents[:num])) == scores["tokens"]
    num_bytes = len("".join(study.held_out[:num]).encode())
    nats = brute_force_nats(model, documents[:num], sequence)
    assert scores["bytes"] == num_bytes
    assert scores["loss"] == pytest.approx(nats / scores["tokens"], rel=1e-6)
    assert scores["bits_per_byte"] == pytest.approx(nats / math.log(2) / num_bytes, rel=1e-6)


def test_a_model_that_knows_nothing_pays_log2_v_for_every_token(study):
    scores = scored(study, asked(study, labels=False), study.model("flat", init_std=1e-30))["one"]
    assert scores["loss"] == pytest.approx(math.log(study.vocabulary.size), rel=1e-6)


def test_documents_are_whole_as_far_as_they_go_and_a_long_first_one_is_cut(study):
    ends = np.load(study.file(study.tokens, "held_out.ends.npy"))
    for limit in (ends[2], ends[3] - 1):
        text = read_held_out(study.tokens, study.vocabulary, study.scratch, int(limit))
        assert list(text.ends_D) == list(ends[:3])
        assert text.num_bytes == len("".join(study.held_out[:3]).encode())
    text = read_held_out(study.tokens, study.vocabulary, study.scratch, 10)
    assert len(text.tokens_N) == 10 and list(text.ends_D) == [10]
    ids = study.vocabulary.encode(study.held_out[0])[:10]
    assert text.num_bytes == len(study.vocabulary.bytes_of(ids)) > 0


@pytest.mark.parametrize("sequence", [16, 17, 100])
def test_windows_are_those_of_training_and_the_rest_is_padded(study, sequence):
    text = read_held_out(study.tokens, study.vocabulary, study.scratch, 10_000)
    training = Windows(study.tokens, study.scratch, "held_out", sequence)
    rows = {
        name: torch.cat([batch[name] for batch in text.batches(sequence)])
        for name in next(text.batches(sequence))
    }
    expected = training.batch(range(len(training)))
    for name, values in expected.items():
        found = rows[name][: len(training)].numpy()
        if name == "documents_BT":
            found = found - found[:, :1]
        np.testing.assert_array_equal(found, values)
    assert len(rows["tokens_BT"]) == -(-(len(text.tokens_N) - 1) // sequence)
    assert int((rows["labels_BT"] != -100).sum()) == len(text.tokens_N) - len(text.ends_D)
    is_padding = rows["documents_BT"] == -1
    assert int(is_padding.sum()) == max(0, is_padding.numel() - len(text.tokens_N))
    assert (rows["labels_BT"][is_padding] == -100).all()


def test_a_document_says_nothing_about_the_next(study):
    model, _ = read_model(study.model(), study.scratch)
    text = read_held_out(study.tokens, study.vocabulary, study.scratch, 10_000)
    end = int(text.ends_D[0])
    first = next(text.batches(1024))["labels_BT"][0]
    assert first[end - 1] == -100 and first[end - 2] == study.vocabulary.end_id

    def nats_behind(tokens):
        changed = type(text)(tokens_N=tokens, ends_D=text.ends_D, num_bytes=1)
        whole = text_nats(model, changed, sequence=1024, vocab=300, advance=lambda n: None)
        alone = type(text)(tokens_N=tokens[:end], ends_D=text.ends_D[:1], num_bytes=1)
        return whole - text_nats(model, alone, sequence=1024, vocab=300, advance=lambda n: None)

    other = np.concatenate([text.tokens_N[:end][::-1], text.tokens_N[end:]])
    assert nats_behind(other) == pytest.approx(nats_behind(text.tokens_N), rel=1e-9)


def test_options_in_one_row_score_as_one_by_one(study):
    source = study.model("chooser")
    model, _ = read_model(source, study.scratch)
    scores = scored(study, asked(study, 200, text=False), source)["one"]
    examples = Examples(
        study.labels(), study.tokenizer, study.scratch, sequence=200, num_examples=40, seed=0, split="test"
    )
    options = [study.vocabulary.encode(option) for option in OPTIONS]  # none begins another
    correct, normalised = [], []
    for example in examples.examples:
        sums = []
        for option in options:
            ids = [*example.prompt, *option]
            sums.append(
                sum(log_probability(model, ids[:n], ids[n]) for n in range(len(example.prompt), len(ids)))
            )
        means = [total / len(option) for total, option in zip(sums, options, strict=True)]
        correct.append(int(np.argmax(sums) == example.answer))
        normalised.append(int(np.argmax(means) == example.answer))
    assert scores["correct"] == correct
    assert scores["accuracy"] == pytest.approx(sum(correct) / 40)
    assert scores["accuracy_normalised"] == pytest.approx(sum(normalised) / 40)
    assert 0 < sum(correct) < 40 and correct != normalised
    assert scores["majority"] == pytest.approx(16 / 40)
    assert choose(model, examples, advance=lambda n: None).correct == correct


def test_every_model_is_asked_the_same_examples_and_fewer_are_the_first_of_them(study):
    few = scored(study, asked(study, 200, text=False, max_examples=12), study.model("a"))["one"]
    many = scored(study, asked(study, 200, text=False), study.model("a"))["one"]
    assert few["correct"] == many["correct"][:12]
    assert few["examples"] == 12 and many["examples"] == len(PROMPTS)


def test_auto_sequence_cuts_no_prompt(study):
    whole = scored(study, asked(study, "auto", text=False), study.model("a"))["one"]
    assert whole == scored(study, asked(study, 4000, text=False), study.model("a"))["one"]


def test_two_runs_write_the_same_bytes(study):
    found = []
    for _ in range(2):
        config = asked(study)
        run = study.run_file("score", config, inputs_of(study, study.model()), "one", "baselines")
        torch.manual_seed(len(found))
        evaluate(run, io.StringIO())
        found.append(
            [
                (Path(url) / name).read_bytes()
                for url in run.outputs.values()
                for name in ("scores.json", "body.json")
            ]
        )
    assert found[0] == found[1]


def test_a_model_in_shards_scores_as_in_one_file(study):
    names = study.model("pieces", most=9000).names()
    assert sum(name.startswith("model-") for name in names) > 3
    pieces, whole = (scored(study, asked(study), study.model(most=most))["one"] for most in (9000, 1 << 40))
    assert pieces == whole


def test_a_streamed_model_is_gone_before_the_next_is_read(study, monkeypatch):
    read, before = opened.read_model_within, []

    def reading(*given, **named):
        before.append([model() is None for model in known])
        network, spec = read(*given, **named)
        known.append(weakref.ref(network))
        return network, spec

    known: list[weakref.ref] = []
    monkeypatch.setattr(opened, "read_model_within", reading)
    config = asked(study, labels=False, memory_gb=0.0002)
    config["targets"]["two"] = config["targets"]["one"]
    deep = study.model("deep", num_layers=6)
    run = study.run_file("score", config, inputs_of(study, deep) | {"model.two": deep}, "one", "two")
    assert all("streamed" in summary for summary in evaluate(run, io.StringIO()).values())
    assert before == [[], [True]]


def test_the_summary_is_the_scores_without_the_list(study):
    run = study.run_file("score", asked(study), inputs_of(study, study.model()), "one")
    evaluate(run, io.StringIO())
    scores = json.loads((Path(run.outputs["one"]) / "scores.json").read_text())
    body = json.loads((Path(run.outputs["one"]) / "body.json").read_text())
    assert len(scores.pop("correct")) == len(PROMPTS)
    assert body["summary"] == scores
    assert scores["sample"].startswith("Poem") and len(scores["sample"]) > 40
    assert [entry["path"] for entry in body["files"]] == ["scores.json"]


def test_baselines_compress_the_same_documents(study):
    scores = scored(study, asked(study, labels=False), study.model(), "one", "baselines")
    raw = "".join(study.held_out).encode()
    assert scores["baselines"]["gzip"] == pytest.approx(8 * len(gzip.compress(raw, 9)) / len(raw))
    assert scores["baselines"]["bytes"] == scores["one"]["bytes"] == len(raw)
    assert 0 < scores["baselines"]["trigram"] < scores["one"]["bits_per_byte"]
    first = len(study.held_out) * math.log2(study.vocabulary.size) / len(raw)
    assert scores["baselines"]["trigram"] > first


def test_the_trigram_also_learns_from_fewer_tokens(study, monkeypatch):
    monkeypatch.setattr("atelier.engine.evaluate.TRIGRAM_FROM", 9)
    scores = scored(study, asked(study, labels=False), study.model(), "baselines")["baselines"]
    by_tokens = {int(size): bits for size, bits in scores["trigram_by_tokens"].items()}
    assert min(by_tokens) == 512 and max(by_tokens) < scores["trigram_tokens"]
    assert len({*by_tokens.values(), scores["trigram"]}) == len(by_tokens) + 1


def test_only_what_has_an_output_is_scored_and_an_output_without_target_is_refused(study):
    config = asked(study, labels=False)
    config["targets"]["two"] = {"text": True, "labels": True}  # its model is not even given
    assert set(scored(study, config, study.model())) == {"one"}
    with pytest.raises(ConfigError, match="three is not a target"):
        scored(study, config, study.model(), "three")


def test_progress_counts_tokens_up_to_the_total(study):
    stream = io.StringIO()
    run = study.run_file("score", asked(study, 200), inputs_of(study, study.model()), "one")
    evaluate(run, stream)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert lines and all(set(line) == {"progress", "total", "unit", "rate"} for line in lines)
    assert all(0 < line["progress"] <= line["total"] and line["unit"] == "tokens" for line in lines)


def test_a_tokenizer_of_another_vocabulary_is_refused_with_both_numbers(study):
    other = study.new_tokenizer("other", 310)
    for model in (study.model("theirs", vocab=310, tokenizer=other), study.model("half", vocab=310)):
        with pytest.raises(
            ConfigError, match=r"310.*300.*tokenizer that the model was trained with|310.*300"
        ):
            scored(study, asked(study), model)
    inputs = inputs_of(study, study.model()) | {"tokenizer": other}
    with pytest.raises(ConfigError, match=r"tokens.*300.*310.*give the tokenizer that encoded them"):
        evaluate(study.run_file("score", asked(study), inputs, "one"), io.StringIO())


def test_another_tokenizer_of_the_same_size_is_refused(study):
    raw = study.file(study.tokenizer, "tokenizer.json").read_bytes() + b"\n"
    same_size = open_input(artifact(study.folder / "same", "tokenizer", {"tokenizer.json": raw}))
    with pytest.raises(ConfigError, match=r"its tokenizer \w{8} has 300 tokens, the given \w{8} has 300"):
        scored(study, asked(study), study.model("renamed", tokenizer=same_size))


def test_windows_longer_than_the_learned_positions_are_refused_with_both_numbers(study):
    model = study.model("short", positions="learned", max_positions=20)
    with pytest.raises(
        ConfigError, match=r"20 learned positions, but its rows have 64 tokens; score.sequence=20"
    ):
        scored(study, asked(study, 64, labels=False), model)
    with pytest.raises(ConfigError, match=r"20 learned positions"):
        scored(study, asked(study, "auto", text=False), model)
    assert scored(study, asked(study, 20, labels=False), model)["one"]["loss"] > 0


def test_text_needs_a_sequence(study):
    with pytest.raises(ConfigError, match=r"score.sequence: is auto"):
        scored(study, asked(study, "auto"), study.model())


def test_a_diverged_model_is_an_error_not_a_nan(study):
    with pytest.raises(DataError, match=r"model.one: its loss is nan"):
        scored(study, asked(study), study.model("burst", init_std=1e38))


def test_as_a_process_it_writes_the_same_as_here_and_tells_errors_as_json(study):
    here, run = (
        study.run_file("score", asked(study), inputs_of(study, study.model()), "one") for _ in range(2)
    )
    evaluate(here, io.StringIO())
    place = study.folder / "good.json"
    place.write_text(run.model_dump_json(by_alias=True))
    command = [sys.executable, "-W", "error", "-m", "atelier.engine.evaluate", str(place)]
    environment = {**os.environ, "PYTHONPATH": python_path(), "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(command, stdout=-1, stderr=-1, text=True, env=environment, cwd=study.folder)
    assert done.returncode == 0 and "done" in json.loads(done.stdout.splitlines()[-1])
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "torch.nn" in imported and "torch.distributed.tensor" not in imported  # which takes a second
    files = [Path(each.outputs["one"]) / "scores.json" for each in (here, run)]
    assert files[0].read_bytes() == files[1].read_bytes()
    bad = run.model_copy(update={"inputs": {"tokenizer": run.inputs["tokenizer"]}})
    place.write_text(bad.model_dump_json(by_alias=True))
    words = ["atelier.engine.evaluate", str(place)]
    process = start("tests.parity.gang", words, os.environ | {"PYTHONWARNINGS": "ignore"})
    last = json.loads(process.communicate(timeout=60)[0].splitlines()[-1])
    assert process.returncode == last["exit_code"] == 2 and "needs the input" in last["error"]


def test_a_token_that_begins_every_document_costs_nothing_and_what_follows_has_a_context(study) -> None:
    model, _ = read_model(study.model("begun"), study.scratch)
    ids = study.vocabulary.encode("the sea is deep")
    end = study.vocabulary.end_id
    plain = HeldOutText(tokens_N=np.array([*ids, end]), ends_D=np.array([len(ids) + 1]), num_bytes=15)
    begun = HeldOutText(
        tokens_N=np.array([end, *ids, end]), ends_D=np.array([len(ids) + 2]), num_bytes=15, is_begun=True
    )
    how = {"sequence": 64, "vocab": 300, "advance": lambda n: None}
    alone = sum(log_probability(model, [end, *ids][:n], [end, *ids, end][n]) for n in range(1, len(ids) + 2))
    assert text_nats(model, begun, **how) == pytest.approx(-alone, rel=1e-5)
    behind = sum(log_probability(model, ids[:n], [*ids, end][n]) for n in range(1, len(ids) + 1))
    assert text_nats(model, plain, **how) == pytest.approx(math.log(300) - behind, rel=1e-5)


def begun_baselines(study: Study, begin: int | None) -> dict[str, float]:
    """The baselines of the same texts, each with `begin` before it."""
    data = study.file(study.tokenizer, "tokenizer.json").read_bytes()
    texts = TextEnds(begin=begin, ends=(study.vocabulary.end_id,))
    vocabulary = Vocabulary.parse(data, "here", texts)
    tokens = study._made(
        f"tokens_{begin}".lower(),
        lambda output: encode(study.corpus, vocabulary, output, study.scratch, study.progress),
    )
    text = read_held_out(tokens, vocabulary, study.scratch, 10_000)
    exam = Exam(sequence=16, prompt="", vocabulary=vocabulary, text=text, tokens="", examples={}, heads=None)
    return cast(dict[str, float], baselines(exam, text, tokens, study.scratch))


def test_the_trigram_is_not_charged_for_a_token_that_begins_every_document(study) -> None:
    """Whether that token is one of its own or the end token, and no more than a model is."""
    used = {*np.fromfile(study.file(study.tokens, "train.bin"), dtype=np.uint16).tolist()}
    own = next(number for number in range(study.vocabulary.size) if number not in used)
    plain, begun, ended = (begun_baselines(study, begin) for begin in (None, own, study.vocabulary.end_id))
    first = len(study.held_out) * math.log2(study.vocabulary.size) / plain["bytes"]
    bits = [each["trigram"] for each in (plain, begun, ended)]
    print("without, with one, with the end token:", *(f"{one:.3f}" for one in bits))
    assert plain["trigram"] - first < begun["trigram"] < plain["trigram"]
    assert ended["trigram"] == pytest.approx(begun["trigram"], rel=1e-3)
    assert plain["gzip"] == begun["gzip"] == ended["gzip"]
