import io
import json
import os
import subprocess
import sys

import pytest
import torch

from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.generation import Sampling
from atelier.engine.data.decoding import whole_characters
from atelier.engine.generate import generate
from atelier.engine.inference.opened import read_generator
from atelier.engine.inference.sampling import sample
from atelier.engine.parallel.gang import other_ranks
from tests.checkout import python_path
from tests.engine.scored_models import Study
from tests.forks import start

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Study:
    return Study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def speaker(study):
    torch.set_num_threads(1)
    return read_generator(study.model(), study.scratch, CPU)


def sampling(**more) -> Sampling:
    return Sampling(**({"max_tokens": 25, "temperature": 0.8, "top_p": 1.0, "seed": 3} | more))


def drawn(logits, temperature, top_p, times=2000) -> list[float]:
    """How often each token came."""
    generator = torch.Generator().manual_seed(0)
    tokens = [sample(torch.tensor(logits), temperature, top_p, generator) for _ in range(times)]
    return [tokens.count(token) / times for token in range(len(logits))]


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def answers(study, speaker_url, config, requests=()) -> list[dict]:
    target = io.StringIO()
    run = study.run_file("generate", config, {"model": speaker_url})
    generate(
        run, [line if isinstance(line, bytes) else json.dumps(line).encode() for line in requests], target
    )
    return lines(target.getvalue())


def without_cache(speaker, prompt: str, how: Sampling) -> str:
    """The continuation, every token from the whole text so far."""
    ids = speaker.vocabulary.encode(prompt) or [speaker.vocabulary.end_id]
    generator, new = torch.Generator().manual_seed(how.seed), []
    while len(new) < how.max_tokens:
        tokens = torch.tensor([ids + new])
        batch = {
            "tokens_BT": tokens,
            "positions_BT": torch.arange(tokens.shape[1])[None],
            "documents_BT": torch.zeros_like(tokens),
        }
        with torch.inference_mode():
            logits = speaker.model.head_weight @ speaker.model(batch).hidden[0, -1]
        token = sample(logits, how.temperature, how.top_p, generator)
        if token == speaker.vocabulary.end_id:
            break
        new.append(token)
    return speaker.vocabulary.bytes_of(new).decode("utf-8", "replace")


def test_temperature_0_takes_the_most_probable_token_and_the_first_of_equals():
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    assert sample(torch.tensor([0.0, 2.0, 1.0, 2.0]), 0.0, 1.0, generator) == 1
    assert torch.equal(generator.get_state(), state)


def test_tokens_come_as_often_as_the_softmax_says():
    expected = torch.tensor([1.0, 0.0, -1.0, 2.0]).div(0.7).softmax(-1).tolist()
    assert drawn([1.0, 0.0, -1.0, 2.0], 0.7, 1.0) == pytest.approx(expected, abs=0.03)


def test_top_p_keeps_the_fewest_tokens_that_together_reach_it():
    logits = torch.tensor([0.1, 0.5, 0.15, 0.25]).log().tolist()
    assert drawn(logits, 1.0, 0.7) == pytest.approx([0, 0.5 / 0.75, 0, 0.25 / 0.75], abs=0.03)
    assert drawn(logits, 1.0, 0.49) == [0, 1, 0, 0]


def test_a_tiny_temperature_is_as_good_as_none():
    generator = torch.Generator().manual_seed(0)
    assert sample(torch.tensor([300.0, 301.0, -300.0]), 1e-300, 0.5, generator) == 1


def test_logits_that_are_not_finite_are_an_error_not_a_token():
    with pytest.raises(DataError, match="not finite"):
        sample(torch.tensor([0.0, float("nan")]), 0.8, 1.0, torch.Generator())


def test_characters_cut_into_bytes_come_out_whole_and_broken_ones_as_a_replacement():
    raw = "aé世🐟".encode() + b"\xff\xe4\xb8" + b"z" + b"\xf0\x9f"
    pieces = list(whole_characters(bytes([byte]) for byte in raw))
    assert "".join(pieces) == raw.decode("utf-8", "replace")
    assert pieces[:4] == ["a", "é", "世", "🐟"]


@pytest.mark.parametrize(
    "shape", [{}, {"positions": "learned", "norm": "layer", "mlp": "gelu", "num_kv_heads": 1}]
)
def test_the_cache_does_not_change_the_text(study, shape):
    speaker = read_generator(study.model(f"m{len(shape)}", **shape), study.scratch, CPU)
    for prompt in ("Poem 3: the sea", ""):
        for how in (sampling(), sampling(temperature=0.0), sampling(top_p=0.5, seed=8)):
            assert speaker.text(prompt, how) == without_cache(speaker, prompt, how)


def test_the_same_seed_gives_the_same_text_whatever_else_runs(study, speaker):
    alone = speaker.text("wave", sampling())
    stream = speaker.stream("wave", sampling())
    pieces = [next(stream)]
    torch.manual_seed(99)
    other = speaker.text("Boote", sampling(seed=4))
    torch.rand(7)
    assert "".join([*pieces, *stream]) == alone
    assert other != alone
    assert speaker.text("wave", sampling(seed=4)) != alone


def test_streamed_pieces_join_to_the_text_that_serving_gives(study):
    model = study.model()
    prompts = ["Poem 1:", "", "世界 🐟"]
    streamed = answers(study, model, {"prompts": prompts, "max_tokens": 60, "seed": 5})
    served = answers(
        study, model, {"serve": True}, [{"prompt": p, "max_tokens": 60, "seed": 5} for p in prompts]
    )
    for number, answer in enumerate(served):
        pieces = [line["text"] for line in streamed[:-1] if line["prompt"] == number]
        assert len(pieces) > 10
        assert "".join(pieces) == answer["text"]
    assert 30 < streamed[-1]["done"]["tokens"] <= 180
    assert streamed[-1]["done"]["tokens_per_s"] > 0


def test_a_model_in_shards_says_what_it_says_in_one_file(study, speaker):
    pieces = read_generator(study.model("pieces", most=9000), study.scratch, CPU)
    whole = read_generator(study.model("pieces"), study.scratch, CPU)
    asked = Sampling(max_tokens=40, temperature=1.0, seed=3)
    assert pieces.text("def ", asked) == whole.text("def ", asked) != ""


def test_text_stops_before_any_of_the_tokens_that_end_it(study, speaker):
    how = sampling(temperature=0.0, max_tokens=30)
    tokens = []
    plain, bytes_of = speaker.text("Poem", how), speaker.vocabulary.bytes_of
    stream, ends = speaker.vocabulary.stream, speaker.vocabulary.ends
    speaker.vocabulary.stream = lambda before, ids: stream(
        before, (tokens.append(each) or each for each in ids)
    )
    try:
        speaker.text("Poem", how)
        speaker.vocabulary.stream, speaker.vocabulary.ends = stream, (*ends, tokens[7])
        stopped = speaker.text("Poem", how)
    finally:
        speaker.vocabulary.stream, speaker.vocabulary.ends = stream, ends
    first = tokens.index(tokens[7])
    assert stopped == bytes_of(tokens[:first]).decode("utf-8", "replace")
    assert plain.startswith(stopped.rstrip("�")) and len(stopped) < len(plain)


def test_a_prompt_longer_than_the_learned_positions_is_refused_with_both_numbers(study):
    speaker = read_generator(study.model("short", positions="learned", max_positions=6), study.scratch, CPU)
    with pytest.raises(ConfigError, match=r"has \d+ tokens, but the model learned 6 positions"):
        speaker.text("the sea is deep " * 3, sampling())
    before = speaker.num_tokens
    speaker.text("", sampling(temperature=0.0))
    assert speaker.num_tokens - before <= 6


def test_a_bad_request_is_answered_and_the_next_one_served(study, speaker):
    good = {"prompt": "Poem", "max_tokens": 5}
    bad = [
        b"{not json",
        b"\xff\xfe",
        b"[1]",
        b"\n",
        {"prompt": "a", "temperature": -1},
        {"prompt": "a", "top_p": 0},
        {"promt": "a"},
        b'{"prompt": "\\ud800"}',
    ]
    found = answers(
        study, study.model(), {"serve": True}, [good, *(part for one in bad for part in (one, good))]
    )
    assert found[0] == {"text": speaker.text("Poem", Sampling(max_tokens=5))}
    assert [sorted(answer) for answer in found[1:]] == [["error"], ["text"]] * len(bad)
    assert found[2::2] == [found[0]] * len(bad)
    assert "did you mean prompt" in found[13]["error"]


def test_a_model_with_another_vocabulary_than_its_tokenizer_is_refused_with_both_numbers(study):
    model = study.model("wide", vocab=study.vocabulary.size + 20)
    with pytest.raises(
        ConfigError,
        match=rf"model has {study.vocabulary.size + 20} tokens, the tokenizer {study.vocabulary.size};",
    ):
        read_generator(model, study.scratch, CPU)


def test_as_a_process_it_serves_line_by_line_and_tells_errors_as_json(study):
    run = study.run_file("generate", {"serve": True}, {"model": study.model()})
    (study.folder / "run.json").write_text(run.model_dump_json(by_alias=True))
    command = [sys.executable, "-W", "error", "-m", "atelier.engine.generate"]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONPATH": python_path()}
    with subprocess.Popen(
        [*command, str(study.folder / "run.json")], stdin=-1, stdout=-1, env=environment, cwd=study.folder
    ) as child:
        assert child.stdin and child.stdout
        for _ in range(2):
            child.stdin.write(json.dumps({"prompt": "世界", "max_tokens": 30}).encode() + b"\n")
            child.stdin.flush()
            assert set(json.loads(child.stdout.readline())) == {"text"}  # answered before the input ends
        child.stdin.close()
        assert child.stdout.read() == b""
    assert child.returncode == 0

    words = ["atelier.engine.generate", "nowhere.json"]
    failed = start("tests.parity.gang", words, os.environ | {"PYTHONWARNINGS": "ignore"})
    said, errors = failed.communicate(timeout=60)
    assert (failed.returncode, errors) == (2, "")
    assert json.loads(said)["exit_code"] == 2
    assert "nowhere.json" in json.loads(said)["error"]


def test_more_ranks_than_gpus_are_refused_before_any_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    refused = pytest.raises(ConfigError, match="split: 4 ranks, but torch sees 2 GPUs here")
    with refused, other_ranks("no.such.module", "run.json", 4):
        raise AssertionError("it began")
