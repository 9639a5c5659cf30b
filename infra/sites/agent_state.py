"""What this site's agent says of its peers to the runs here: a file in the mailbox folder, written anew when
something changes and every few seconds.
"""

import time

from atelier.engine.config.base import Spec, canonical
from atelier.engine.config.error import DamageError
from atelier.engine.config.link import SiteName
from atelier.engine.io.storage import join, local_path, read_as, write_bytes

NAME, EVERY_S, STALE_S = "agent.json", 5.0, 30.0


class AgentState(Spec):
    problems: dict[SiteName, str] = {}  # by peer; '' = it is reached, or reaches this site by itself


class StateFile:
    """The file in the mailbox folder `url`."""

    def __init__(self, url: str) -> None:
        self._path = join(url, NAME)
        self._said, self._at = "", 0.0

    def write(self, problems: dict[str, str]) -> None:
        """Say what keeps this site's agent from each of its peers."""
        text = canonical(AgentState(problems=problems).model_dump(mode="json"))
        if text.decode() != self._said or time.monotonic() - self._at > EVERY_S:
            write_bytes(self._path, text)
            self._said, self._at = text.decode(), time.monotonic()

    def problem(self, peer: str) -> str | None:
        """What keeps the agent from a peer, '' = nothing; None where no agent runs here."""
        try:
            if time.time() - local_path(self._path).stat().st_mtime > STALE_S:
                return None
            return read_as(AgentState, self._path, "what an agent says").problems.get(peer, "")
        except (OSError, DamageError):
            return None
