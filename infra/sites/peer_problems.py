"""Tell runs at this site why its agent does not reach a peer: a file in the mailbox folder, rewritten at
changes and every few seconds, and removed when the agent ends.
"""

import time

from atelier.engine.config.base import Spec, canonical
from atelier.engine.config.error import DamageError
from atelier.engine.config.site_name import SiteName
from atelier.engine.io.storage import join, local_path, read_as, remove, write_bytes

NAME, EVERY_S, STALE_S = "agent.json", 5.0, 30.0


class Said(Spec):
    problems: dict[SiteName, str]


class PeerProblems:
    """The file in the mailbox folder `url`."""

    def __init__(self, url: str) -> None:
        self._path = join(url, NAME)
        self._said, self._at = b"", 0.0

    def write(self, problems: dict[str, str]) -> None:
        """By peer; '' = it is reached, or it calls this site."""
        text = canonical(Said(problems=problems).model_dump(mode="json"))
        if text != self._said or time.monotonic() - self._at > EVERY_S:
            write_bytes(self._path, text)
            self._said, self._at = text, time.monotonic()

    def end(self) -> None:
        """Remove the file: no agent runs here any longer."""
        remove(self._path)

    def of(self, peer: str) -> str | None:
        """Why the agent does not reach a peer; '' = it does, None = no agent runs here."""
        try:
            if time.time() - local_path(self._path).stat().st_mtime > STALE_S:
                return None
            return read_as(Said, self._path, "an agent's problems").problems.get(peer, "")
        except (OSError, DamageError):
            return None
