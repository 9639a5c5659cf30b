"""What keeps this site's agent from its peers, for the runs here: a file in the mailbox folder, written anew
when something changes and every few seconds, and gone when the agent has ended.
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
        """By peer; '' = it is reached, or reaches this site by itself."""
        text = canonical(Said(problems=problems).model_dump(mode="json"))
        if text != self._said or time.monotonic() - self._at > EVERY_S:
            write_bytes(self._path, text)
            self._said, self._at = text, time.monotonic()

    def end(self) -> None:
        """No agent runs here any more."""
        remove(self._path)

    def of(self, peer: str) -> str | None:
        """What keeps the agent from a peer, '' = nothing; None where no agent runs here."""
        try:
            if time.time() - local_path(self._path).stat().st_mtime > STALE_S:
                return None
            return read_as(Said, self._path, "what an agent says of its peers").problems.get(peer, "")
        except (OSError, DamageError):
            return None
