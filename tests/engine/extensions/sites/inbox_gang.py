"""One of two ranks that wait for a contribution, once for each case; run by test_outer_inbox.py. Something
happens to one rank alone; the end of each wait of this rank goes to a file.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from atelier.engine.config.error import AtelierError
from atelier.engine.config.parallel import Parallel
from atelier.engine.extensions.sites.mailbox import HEAD, Mailbox
from atelier.engine.extensions.sites.outer_inbox import OuterInbox
from atelier.engine.loop.stop import StopRequest
from atelier.engine.parallel.gang import Gang, start_gang
from tests.engine.trainings import train

CASES = [(what, rank) for what in ("stop", "damage") for rank in (0, 1)]  # which happens to which rank


def end_of(gang: Gang, own: Path, what: str, which: int) -> str:
    stop, box = StopRequest(own), Mailbox(str(own), "ab" * 32)
    if gang.rank == which and what == "stop":
        stop.ask()
    if gang.rank == which and what == "damage":
        head = Path(box.folder(1, "b")) / HEAD
        head.parent.mkdir(parents=True)
        head.write_bytes(b"{")
    link = {"rows": {"a": 4, "b": 4}, "every": 4, "site": "a", "mailbox": str(own)}
    member: Any = SimpleNamespace(name="m", step=4, spec=SimpleNamespace(segments=()))
    training = SimpleNamespace(train=train(8, global_batch=8, link=link))
    build = SimpleNamespace(scratch=own)
    context: Any = SimpleNamespace(training=training, gang=gang, build=build, stop=stop, warn=print)
    try:
        OuterInbox(context, cast(Any, None)).heads(box, 1, member, ["b"], None)
    except AtelierError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(arguments: list[str]) -> int:
    folder, gang = Path(arguments[0]), start_gang(Parallel(shard=2))
    ends = [end_of(gang, folder / f"{number}-rank-{gang.rank}", *case) for number, case in enumerate(CASES)]
    (folder / f"{gang.rank}.json").write_text(json.dumps(ends))
    gang.close()
    return 0
