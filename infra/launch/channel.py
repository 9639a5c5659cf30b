"""What a gang on a batch system's machines and the one who asked for it say to each other:
`{root}/gangs/<id>/` on the store that they share. Nothing but the store connects them.

Messages come in numbered files, so that nobody has to list a folder: a store's list may be late.
"""

import json
from typing import Any

from atelier.engine.io.storage import exists, join, read_json, remove, write_bytes

FOLDER = "gangs"


class Channel:
    """The folder of one gang. `life` counts how often the batch system has started it."""

    def __init__(self, root: str, gang: str) -> None:
        self.folder = join(root, FOLDER, gang)
        self._read = (0, 0)  # life and number of the last message that was read

    def put(self, name: str, document: Any) -> None:
        write_bytes(join(self.folder, f"{name}.json"), json.dumps(document).encode())

    def get(self, name: str) -> Any:
        """The document, or None when there is none yet."""
        try:
            return read_json(join(self.folder, f"{name}.json"), "a letter")
        except FileNotFoundError:
            return None

    def say(self, life: int, number: int, messages: list[dict[str, Any]]) -> None:
        """The first node's messages number 1, 2, ... of a life."""
        self.put(_name(life, number), messages)

    def hear(self) -> list[dict[str, Any]]:
        """Messages that came since the last call, in order."""
        found: list[dict[str, Any]] = []
        life, number = self._read
        while True:
            heard = self.get(_name(life, number + 1))
            if heard is None and exists(join(self.folder, f"{_name(life + 1, 1)}.json")):
                heard = self.get(_name(life, number + 1))  # nothing is said in a life after the next began
                if heard is None:
                    life, number = life + 1, 0
                    continue
            if heard is None:
                self._read = life, number
                return found
            number += 1
            found += heard

    def tell_end(self, life: int, how: dict[str, Any]) -> None:
        self.put(f"end-{life:03d}", how)

    def end(self) -> dict[str, Any] | None:
        """How the latest of the gang's lives that have ended did; None when none has."""
        found, life = None, self._read[0]
        while (end := self.get(f"end-{life:03d}")) is not None:
            found, life = end, life + 1
        return found

    def stop(self) -> None:
        """Ask all nodes for a checkpoint and an end."""
        self.put("stop", {})

    def is_stopped(self) -> bool:
        return exists(join(self.folder, "stop.json"))

    def delete(self) -> None:
        remove(self.folder)


def _name(life: int, number: int) -> str:
    return f"said-{life:03d}-{number:06d}"
