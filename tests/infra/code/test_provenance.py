"""Provenance of code: uncommitted changes have a digest, including files that git does not track yet."""

import subprocess
from pathlib import Path

import pytest

from atelier.infra.code import frozen, provenance
from tests.projects import Make


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_the_content_of_a_file_that_git_does_not_know_counts(tmp_path: Path) -> None:
    git(tmp_path, "init")
    (tmp_path / "a.py").write_text("a = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    assert provenance._origin(tmp_path)["diff"] == ""
    found = set()
    for text in ("b = 1\n", "b = 2\n"):
        (tmp_path / "kind.py").write_text(text)
        found.add(provenance._origin(tmp_path)["diff"])
    assert len(found) == 2 and "" not in found


def test_records_name_version_commit_and_changes_of_a_project_and_frozen_code_keeps_them(
    make_project: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def now() -> dict[str, str]:
        provenance.root_provenance.cache_clear()
        return provenance.roots_provenance()["mine"]

    folder = make_project("mine")
    assert now() == {"version": "", "commit": "", "diff": ""}  # no repository yet
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    commit = git(folder, "rev-parse", "HEAD")
    assert now() == {"version": "", "commit": commit, "diff": ""}
    (folder / "conf" / "model" / "mine.yaml").write_text("kind: mine\n")
    changed = now()
    assert changed["commit"] == commit and changed["diff"]
    frozen_digest = frozen.freeze(str(tmp_path / "store"))
    copy = frozen.thaw(str(tmp_path / "store"), frozen_digest, tmp_path / "thawed")
    monkeypatch.setenv("ATELIER_ROOTS", f'[["mine", "{copy / "roots" / "mine"}"]]')
    assert now() == changed
    provenance.root_provenance.cache_clear()
