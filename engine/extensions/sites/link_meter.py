"""Times and bytes of messages between sites in a step, by role, for its metric line. Torch-free.

| key | value |
|---|---|
| link_s | seconds of sending, waiting and adding; for answers those of all roles here |
| link_wait_s | seconds of these that were spent waiting for messages or readers at other sites |
| link_bytes, link_received_bytes | bytes of the bodies sent, and of others' bodies learned from |
| link_codec | index, among the link's codecs, of the contribution that was sent; 0 = the least lossy |
| link_round | the round whose outer step was taken, the last of several |
| link_delay_steps | steps since its contribution was sent |
| link_ahead_steps | steps that a teacher's answers are ahead of a student at another site |
"""

SUMS = ("link_s", "link_wait_s", "link_bytes", "link_received_bytes")  # others are the last value


class LinkMeter:
    """Measurements of one rank; those of rank 0 are written."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, float]] = {}

    def begin(self) -> None:
        """Begin the next step."""
        self._found = {}

    def add(self, role: str, **measured: float) -> None:
        found = self._found.setdefault(role, {})
        for key, value in measured.items():
            found[key] = value + (found.get(key, 0.0) if key in SUMS else 0.0)

    def timing(self, role: str) -> dict[str, float]:
        return self._found.get(role, {})
