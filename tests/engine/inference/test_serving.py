"""Waiting requests are computed together, and do not affect each other."""

import io
import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from atelier.engine.config.generation import Sampling
from atelier.engine.inference import sampling
from atelier.engine.inference.generator import Generator
from atelier.engine.inference.opened import read_generator
from atelier.engine.inference.sampling import MASKED, next_logits, piece_of
from atelier.engine.inference.serving import Desk, serve
from tests.checkout import python_path
from tests.engine.scored_models import Study

MEMORY = int(1e8)
TOKEN = 2 * 2 * 32 * 4  # bytes of keys and values: both, layers, width, of a number


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def speaker(study: Study) -> Generator:
    torch.set_num_threads(1)
    return read_generator(study.model(), study.scratch, torch.device("cpu"))


def line(**request: Any) -> bytes:
    return json.dumps(request).encode()


def answers(generator: Generator, lines: list[bytes], memory: int = MEMORY) -> list[dict[str, Any]]:
    target = io.StringIO()
    serve(generator, lines, target, memory=memory)
    return [json.loads(each) for each in target.getvalue().splitlines()]


def requests(number: int) -> list[dict[str, Any]]:
    return [
        {
            "id": n,
            "prompt": "Poem 3: the sea"[: n % 15],
            "max_tokens": 20 + n % 7,
            "temperature": n % 2,
            "seed": n,
        }
        for n in range(number)
    ]


def test_32_requests_get_what_each_gets_alone_in_a_third_of_the_passes(speaker: Generator) -> None:
    desk = Desk(speaker, io.StringIO(), MEMORY)

    def passes(asked: list[dict[str, Any]]) -> tuple[dict[int, Any], int]:
        desk._target = target = io.StringIO()
        before = desk.rows.num_passes
        for one in asked:
            desk.take(line(**one))
        while desk.is_busy:
            desk.advance()
        found = [json.loads(each) for each in target.getvalue().splitlines()]
        return {answer["id"]: answer["text"] for answer in found}, desk.rows.num_passes - before

    asked = requests(32)
    alone = [passes([one]) for one in asked]
    texts, number = passes(asked)
    assert texts == {key: text for found, _ in alone for key, text in found.items()} and len(texts) == 32
    assert number * 3 < sum(each for _, each in alone)


def test_a_short_text_is_answered_before_a_long_one_that_came_first(speaker: Generator) -> None:
    long = {"prompt": "Poem", "max_tokens": 60, "temperature": 0.0}
    short = long | {"max_tokens": 3}
    found = answers(speaker, [line(id=7, **long), line(id=8, **short)])
    assert [answer["id"] for answer in found] == [8, 7]
    assert found[1]["text"].startswith(found[0]["text"].rstrip("\N{REPLACEMENT CHARACTER}"))


def test_requests_without_an_id_are_answered_in_their_order(speaker: Generator) -> None:
    sizes = (40, 3, 25, 1)
    found = answers(speaker, [line(prompt="Poem", max_tokens=size, temperature=0.0) for size in sizes])
    one = [answers(speaker, [line(prompt="Poem", max_tokens=size, temperature=0.0)])[0] for size in sizes]
    assert found == one


def test_a_bad_request_among_others_gets_its_error_alone(speaker: Generator) -> None:
    asked, good = (
        requests(6),
        {answer["id"]: answer for answer in answers(speaker, [line(**o) for o in requests(6)])},
    )
    bad = [
        line(id=50, prompt="a", max_tokens=0),
        line(id=51, prompt="a", max_tokens=2_000_000),
        line(id=52, promt="a"),
        line(id=53, prompt="\ud800"),
        line(id=54, prompt="a", best_of=2),  # no head that ranks
        line(id=55, prompt="a", max_tokens=900_000),
        line(id="x", prompt="a"),
        b"{",
    ]
    found = answers(speaker, [*bad[:3], *(line(**one) for one in asked), *bad[3:]])
    errors = {answer.get("id"): answer["error"] for answer in found if "error" in answer}
    assert {answer["id"]: answer for answer in found if "text" in answer} == good
    assert [*sorted(key for key in errors if key)] == [50, 51, 52, 53, 54, 55]
    assert all("\n" not in error for error in errors.values()) and len(found) == 14
    assert "900000 tokens after 1 need 0.46 GB of keys, values and masks, but only 0.1 GB" in errors[55]


class Largest(TorchDispatchMode):
    """Counts the elements of the largest tensor that is made."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.most = max(self.most, made.numel())
        return made


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> int:
    """Of the mask of one pass: fewer than always, so that a prompt of some hundred tokens is a long one."""
    monkeypatch.setattr(sampling, "MASKED", 1 << 16)
    return 1 << 16


def test_a_long_prompt_takes_memory_that_grows_with_its_length_and_not_its_square(
    speaker: Generator, entries: int
) -> None:
    for size in (400, 800):
        with Largest() as seen:
            [answer] = answers(speaker, [line(id=1, prompt="\x01" * size, max_tokens=2)])
        assert "text" in answer and seen.most <= entries < size**2


def test_a_prompt_that_is_read_in_pieces_has_the_logits_of_one_that_is_read_at_once(
    speaker: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = speaker.before("Poem 3: the sea\n" * 60, Sampling()).ids
    found = []
    for most in (MASKED, len(ids) * 100):
        monkeypatch.setattr(sampling, "MASKED", most)
        cache = speaker.model.new_cache(1, len(ids) + 1, torch.float32)
        found.append(next_logits(speaker.model, ids, 0, cache))
        assert (piece_of(len(ids)) < len(ids)) == (most < MASKED)
    assert torch.allclose(*found, rtol=0, atol=1e-5 * float(found[0].abs().max()))


def test_others_go_on_while_a_long_prompt_is_read(speaker: Generator, entries: int) -> None:
    good = {answer["id"]: answer for answer in answers(speaker, [line(**one) for one in requests(4)])}
    long = line(id=9, prompt="\x01" * 700, max_tokens=1)
    found = answers(speaker, [long, *(line(**one | {"max_tokens": 5}) for one in requests(4))])
    assert [answer["id"] for answer in found][-1] == 9 and len(found) == 5
    found = answers(speaker, [long, *(line(**one) for one in requests(4))])
    assert {answer["id"]: answer for answer in found if answer["id"] != 9} == good


def test_a_prompt_too_long_for_the_memory_is_refused_alone(speaker: Generator) -> None:
    good = {answer["id"]: answer for answer in answers(speaker, [line(**one) for one in requests(4)])}
    found = answers(
        speaker, [line(id=9, prompt="\x01" * 60_000), *(line(**one) for one in requests(4))], 80_000_000
    )
    assert {answer["id"]: answer for answer in found if answer["id"] != 9} == good
    [error] = [answer["error"] for answer in found if answer["id"] == 9]
    assert error.startswith("max_tokens: 128 tokens after 60000 need 0.097 GB of keys, values and masks")


def test_every_text_of_a_request_is_bounded(speaker: Generator) -> None:
    """Making tokens of a text takes 350 times its memory, whatever the text is for."""
    long = "x" * 500_001
    for more in ({"prompt": long}, {"wishes": {"topic": long}}, {"wishes": {"keywords": [""] * 250_002}}):
        [answer] = answers(speaker, [line(id=1, **more)])
        assert answer["error"].endswith("characters, more than 500000; shorten it"), answer["error"][:200]


def test_a_request_that_is_left_frees_its_row_and_gets_no_answer(speaker: Generator) -> None:
    asked = requests(6)
    free = {answer["id"]: answer for answer in answers(speaker, [line(**one) for one in asked])}
    target = io.StringIO()
    desk = Desk(speaker, target, MEMORY)
    desk.take(line(id=70, prompt="Poem", max_tokens=90_000, temperature=0.0))
    for one in asked:
        desk.take(line(**one))
    desk.advance()
    desk.take(line(id=71, prompt="Poem", max_tokens=90_000, temperature=0.0))
    for number in (70, 71, 72):
        desk.take(line(id=number, leave=True))
    while desk.is_busy:
        desk.advance()
    assert {each["id"]: each for each in map(json.loads, target.getvalue().splitlines())} == free


def test_what_does_not_fit_beside_others_waits_and_is_answered(speaker: Generator) -> None:
    asked = requests(9)
    free = {answer["id"]: answer for answer in answers(speaker, [line(**one) for one in asked])}
    target = io.StringIO()
    desk = Desk(speaker, target, 100 * TOKEN)  # two or three of them
    for one in asked:
        desk.take(line(**one))
    most = 0
    while desk.is_busy:
        desk.advance()
        most = max(most, sum(row.longest for _, row in desk._running))
    assert {each["id"]: each for each in map(json.loads, target.getvalue().splitlines())} == free
    assert 60 < most <= 100


def test_the_process_ends_when_who_asked_is_gone(study: Study) -> None:
    """While it writes; that it ends where nothing is asked is a test of test_generate.py."""
    run = study.run_file("generate", {"serve": True}, {"model": study.model()})
    path = study.folder / "run.json"
    path.write_text(run.model_dump_json(by_alias=True))
    with subprocess.Popen(
        [sys.executable, "-m", "atelier.engine.generate", str(path)],
        stdin=-1, stdout=-1, env=os.environ | {"PYTHONPATH": python_path()},
    ) as child:  # fmt: skip
        assert child.stdin and child.stdout
        child.stdin.write(line(id=1, prompt="a", max_tokens=2) + b"\n")
        child.stdin.flush()
        assert json.loads(child.stdout.readline())["id"] == 1
        child.stdin.write(line(id=2, prompt="a", max_tokens=200_000, temperature=0.0) + b"\n")
        child.stdin.flush()
        child.stdout.close()
        child.stdin.close()
        try:
            assert child.wait(20) == 0
        finally:
            child.kill()
