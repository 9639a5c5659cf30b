"""The mailbox folder of messages between sites."""

from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from atelier.engine.extensions.sites import mailbox
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.mailbox import KnownTrainings, Mailbox


def test_what_comes_late_into_a_round_that_is_removed_ends_nothing_and_is_removed_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Mailbox(str(tmp_path), "ab" * 32)
    for number in (1, 2):
        box.send(number, "a", [b"1"], {}, 0, codec=Codec())
    late = Path(box.folder(1, "b"))
    remove = LocalFileSystem.rm

    def while_an_agent_writes(system: LocalFileSystem, path: str, *given: Any, **more: Any) -> None:
        late.mkdir(parents=True)
        (late / "message.json").write_text("")
        Path(path).rmdir()  # Directory not empty

    with monkeypatch.context() as patched:
        patched.setattr(LocalFileSystem, "rm", while_an_agent_writes)
        box.forget(1)
    assert late.exists() and box.rounds() == [1, 2]
    assert LocalFileSystem.rm is remove
    box.forget(1)
    assert not late.exists() and box.rounds() == [2]


def test_what_is_said_of_a_training_is_read_again_when_its_file_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many trainings have ended, and also where a file is damaged."""
    for digits in ("ab", "cd", "ef"):
        Mailbox(str(tmp_path), digits * 32).open("a", "ab")
    (tmp_path / ("cd" * 8) / "a-training.json").write_bytes(b"{")
    reads, read = list[str](), mailbox.read_as

    def counted(kind: Any, url: str, what: str) -> Any:
        if url.startswith(str(tmp_path)):  # an agent of another test may look at its own
            reads.append(url)
        return read(kind, url, what)

    monkeypatch.setattr(mailbox, "read_as", counted)
    found = KnownTrainings(str(tmp_path), "a")
    for _ in range(3):
        assert [about.trajectory[:2] for about in found.listed()] == ["ab", "ef"]
    assert len(reads) == 3
    Mailbox(str(tmp_path), "ab" * 32).open("a", "abc")
    (tmp_path / ("ef" * 8) / "a-training.json").unlink()
    assert [about.sites for about in found.listed()] == [("a", "b", "c")] and len(reads) == 4
