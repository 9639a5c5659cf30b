"""Provenance of code: uncommitted changes have a digest, including files that git does not track yet."""

import subprocess
from pathlib import Path

import pytest

from atelier.infra.code import provenance


def test_the_content_of_a_file_that_git_does_not_know_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    monkeypatch.setattr(provenance, "PROJECT", tmp_path)
    git("init")
    (tmp_path / "a.py").write_text("a = 1\n")
    git("add", ".")
    git("commit", "-m", "first")
    assert provenance._origin()["diff"] == ""
    found = set()
    for text in ("b = 1\n", "b = 2\n"):
        (tmp_path / "kind.py").write_text(text)
        found.add(provenance._origin()["diff"])
    assert len(found) == 2 and "" not in found
