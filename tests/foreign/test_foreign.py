"""Foreign input works or is refused by name; the drawn cases find a fault that is put back."""

import json
from itertools import islice
from pathlib import Path

import pytest

from tests.foreign.search import drawn, found, is_slow, kind, names

KINDS = [pytest.param(name, marks=pytest.mark.slow) if is_slow(name) else name for name in names()]


@pytest.mark.parametrize("name", KINDS)
def test_drawn_cases_work_or_are_refused(name: str, tmp_path: Path):
    for number, case in enumerate(islice(drawn(name), kind(name).COUNT)):
        (folder := tmp_path / str(number)).mkdir()
        assert kind(name).check(case, folder) in ("works", "refused"), case


@pytest.mark.parametrize("name", KINDS)
def test_cases_that_once_ended_wrongly_hold(name: str, tmp_path: Path):
    for number, case in enumerate(found(name)):
        (folder := tmp_path / str(number)).mkdir()
        assert kind(name).check(case, folder) in ("works", "refused"), case


@pytest.mark.parametrize("name", KINDS)
def test_a_fault_that_is_put_back_is_found(name: str, tmp_path: Path):
    with kind(name).broken(), pytest.raises(AssertionError):
        for number, case in enumerate(islice(drawn(name), 5 * kind(name).COUNT)):
            (folder := tmp_path / str(number)).mkdir()
            kind(name).check(case, folder)


@pytest.mark.parametrize("name", KINDS)
def test_a_case_is_json_and_depends_on_its_number_alone(name: str):
    first, again = (list(islice(drawn(name), 5)) for _ in range(2))
    assert first == again == json.loads(json.dumps(first))
