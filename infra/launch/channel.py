"""Channel between a batch job's gang and its submitter: `{root}/gangs/<id>/` in the store that they share.
Nothing but the store connects them.

Messages are numbered files, so that the reader need not list a folder: an object store's list may be late.
"""

import json
from typing import cast

from atelier.engine.config.base import Json
from atelier.engine.config.message import GangEnd, Message
from atelier.engine.io.storage import exists, join, read_json, remove, write_bytes

FOLDER = "gangs"


class Channel:
    """The folder of one gang. `life` counts how often the batch system has requeued it."""

    def __init__(self, root: str, gang: str) -> None:
        self.folder = join(root, FOLDER, gang)
        self._read = (0, 0)  # life and number of the last message read

    def put(self, name: str, document: Json) -> None:
        write_bytes(join(self.folder, f"{name}.json"), json.dumps(document).encode())

    def get(self, name: str) -> Json:
        """The document, or None when there is none yet."""
        try:
            return read_json(join(self.folder, f"{name}.json"), "a message of a gang")
        except FileNotFoundError:
            return None

    def say(self, life: int, number: int, messages: list[Message]) -> None:
        """Write batch `number` (1, 2, ...) of the first node's messages in a life."""
        self.put(_name(life, number), cast(list[Json], messages))

    def receive(self) -> list[Message]:
        """Messages since the last call, in order."""
        found: list[Message] = []
        life, number = self._read
        while True:
            heard = self.get(_name(life, number + 1))
            if heard is None and exists(join(self.folder, f"{_name(life + 1, 1)}.json")):
                heard = self.get(_name(life, number + 1))  # a life writes nothing once the next began
                if heard is None:
                    life, number = life + 1, 0
                    continue
            if heard is None:
                self._read = life, number
                return found
            number += 1
            found += cast(list[Message], heard)

    def tell_end(self, life: int, how: GangEnd) -> None:
        """Write how a life ended."""
        self.put(f"end-{life:03d}", cast(Json, how))

    def end(self) -> GangEnd | None:
        """How the latest ended life of the gang ended; None when none has ended."""
        found, life = None, self._read[0]
        while (end := self.get(f"end-{life:03d}")) is not None:
            found, life = cast(GangEnd, end), life + 1
        return found

    def stop(self) -> None:
        """Request all nodes to save a checkpoint and stop."""
        self.put("stop", {})

    def is_stopped(self) -> bool:
        return exists(join(self.folder, "stop.json"))

    def delete(self) -> None:
        remove(self.folder)


def _name(life: int, number: int) -> str:
    return f"said-{life:03d}-{number:06d}"
