"""`atelier versions`: the version and commit that every record keeps."""

import json
import subprocess

import pytest

from atelier import __version__
from atelier.flows.cli.main import run
from atelier.infra.code import provenance
from tests.checkout import TOP


def test_the_versions_are_those_that_a_record_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["versions", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kept = provenance.code_provenance()
    assert (found["commit"], found["changes"], found["engine"]) == (
        kept["commit"],
        kept["diff"],
        kept["engine"],
    )
    assert found["libraries"] == kept["versions"]
    assert found["libraries"]["atelier-lm"] == found["version"] == __version__
    head = subprocess.run(["git", "-C", str(TOP), "rev-parse", "HEAD"], capture_output=True, text=True)
    assert head.returncode or found["commit"] == head.stdout.strip()


@pytest.mark.parametrize(
    ("commit", "diff", "said"),
    [
        ("c0ffee" * 6, "", "no changes"),
        ("c0ffee" * 6, "ab" * 8, "with changes abab"),
        ("", "", "commit unknown"),
    ],
)
def test_the_text_says_whether_the_code_was_changed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, commit: str, diff: str, said: str
) -> None:
    monkeypatch.setattr(provenance, "_origin", lambda folder: {"commit": commit, "diff": diff})
    provenance.code_provenance.cache_clear()
    try:
        assert run(["versions"]) == 0
    finally:
        provenance.code_provenance.cache_clear()
    assert said in capsys.readouterr().out.splitlines()[0]


def test_a_word_too_many_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["versions", "torch"]) == 2
    assert "takes no argument 'torch'" in capsys.readouterr().err
