"""Helper: messages of a teacher's site, altered."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load, save
from torch import Tensor

from atelier.engine.config.error import AtelierError
from tests.engine.extensions.sites.apart import ANSWERS, Apart

Tensors = dict[str, Tensor]
Change = Callable[[Tensors, random.Random], Tensors]


class HostileMessages:
    """Site b of `sites` before it has begun, with the messages in the mailbox `kept`; that of step 2 is to be
    changed. `role`: b's, which ends as `good` with what site a has sent.
    """

    def __init__(self, sites: Apart, kept: str | Path, role: str, good: bytes) -> None:
        self.sites, self._setup, self._role, self._good = sites, sites.setups["b"], role, good
        mail = Path(sites.link["mailbox"])
        shutil.copytree(kept, mail)
        self.place = mail / ANSWERS[:16] / "round-000002" / "a"
        self.head, self.body = self.place / "message.json", self.place / "tensors.safetensors"

    def write(self, raw: bytes, **about: Any) -> None:
        """Another body, with the head that belongs to it."""
        body = {"bytes": len(raw), "path": self.body.name, "sha256": hashlib.sha256(raw).hexdigest()}
        self.body.write_bytes(raw)
        self.head.write_text(json.dumps(json.loads(self.head.read_bytes()) | {"body": body} | about))

    def learn(self) -> None:
        self._setup.train(self.sites.training("b", steps=4))

    def refuses(self, problem: str) -> None:
        with pytest.raises(AtelierError, match=problem) as error:
            self.learn()
        assert str(self.place) in str(error.value) and "\n" not in str(error.value)
        assert not self._setup.output(self._role).exists()

    def refuses_only(self, change: Change, seed: str, problem: str) -> None:
        """A changed body is refused, and with the one that was sent b ends as if nothing had been."""
        sent = self.body.read_bytes()
        self.write(save(change(load(sent), random.Random(seed)), {"format": "pt"}))
        self.refuses(problem)
        self.write(sent)
        self.learn()
        assert self._setup.weights(self._role) == self._good
