"""A gang that counts its collectives: `python -m tests.parity.gang tests.parity.messages a/run.json` writes
a/messages.json on rank 0: calls by name.
"""

import json
import os
from collections import Counter
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from tests.parity import gang


def main(words: list[str]) -> int:
    with profile(activities=[ProfilerActivity.CPU]) as noted:
        ended = gang.main(words)
    if os.environ["RANK"] == "0":
        named = Counter(event.name for event in noted.events() if event.name.startswith("c10d::"))
        (Path(words[0]).parent / "messages.json").write_text(json.dumps(named))
    return ended
