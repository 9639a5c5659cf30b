"""One of two ranks that wait for a contribution; run as a script by test_outer_inbox.py. `what` happens to
the rank `which` alone; the end of each rank's wait goes to a file.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from atelier.engine.config.error import AtelierError
from atelier.engine.config.parallel import Parallel
from atelier.engine.extensions.sites.mailbox import HEAD, Mailbox
from atelier.engine.extensions.sites.outer_inbox import OuterInbox
from atelier.engine.io.process import leave
from atelier.engine.loop.stop import StopRequest
from atelier.engine.parallel.gang import start_gang
from tests.engine.trainings import train


def main(layout: str, folder: Path, what: str, which: int) -> None:
    gang = start_gang(Parallel.model_validate_json(layout))
    own = folder / f"rank-{gang.rank}"
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
    inbox = OuterInbox(context, cast(Any, None))
    try:
        inbox.heads(box, 1, member, ["b"], None)
        found = ""
    except AtelierError as error:
        found = f"{type(error).__name__}: {error}"
    torch.save(found, folder / f"{gang.rank}.pt")
    gang.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    leave(0)
