"""The folder in which sites' messages lie."""

from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from atelier.engine.config.codec import Codec
from atelier.engine.link.mailbox import Mailbox


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
