"""What messages between sites took of a step, by role, as the timing of its metric line. Torch-free.

| key | of a step |
|---|---|
| link_s | seconds of sending, waiting and adding; of answers those of all roles here |
| link_wait_s | seconds of them in which others' messages, or readers, were waited for |
| link_bytes, link_received_bytes | of the bodies that were sent, and of others' that were learned from |
| link_codec | place among the link's codecs, of the contribution that was sent; 0 = the least lossy |
| link_round | the round whose outer step was taken, the last of several |
| link_delay_steps | steps from when its contribution was sent |
| link_ahead_steps | steps that a teacher's answers are ahead of a student at another site |
"""

SUMS = ("link_s", "link_wait_s", "link_bytes", "link_received_bytes")  # others are the last value


class LinkMeter:
    """Of one rank; that of the first is written."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, float]] = {}

    def begin(self) -> None:
        """Of the next step."""
        self._found = {}

    def add(self, role: str, **measured: float) -> None:
        found = self._found.setdefault(role, {})
        for key, value in measured.items():
            found[key] = value + (found.get(key, 0.0) if key in SUMS else 0.0)

    def timing(self, role: str) -> dict[str, float]:
        return self._found.get(role, {})
