"""Run one machine's share of a batch job's gang: `python -m atelier.infra.launch.node_agent <root> <gang>`.

It reads the gang's orders from the store, unpacks the code that they name, joins the rendezvous with the
other nodes, and starts its ranks under a supervisor. The first node writes the gang's messages to the store.
SIGTERM (preemption, time limit), a requested stop, and the end of another node stop it at a checkpoint; a
requeued job continues from there.
"""

import os
import shutil
import signal
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType

from atelier.engine.config.document import check_as
from atelier.engine.config.error import AtelierError, StoppedError, of_system
from atelier.engine.config.message import GangEnd, Message, to_line
from atelier.engine.config.run_file import root_places
from atelier.infra.code.frozen import go_on_frozen
from atelier.infra.launch.channel import Channel
from atelier.infra.launch.gang import DiedError, compile_cache, start_gang
from atelier.infra.launch.orders import GangLetter, Orders
from atelier.infra.launch.rendezvous import NodePlace, Rendezvous, share_of
from atelier.infra.launch.slurm import requeue_this_job

INDEX = ("SLURM_NODEID", "JOB_COMPLETION_INDEX")  # Slurm's, Kubernetes'
LIFE = "SLURM_RESTART_COUNT"
STOPPED = 75
TELL_S = 1.0


class NodeAgent:
    """This node's share of the gang."""

    def __init__(self, root: str, gang: str, orders: GangLetter) -> None:
        self.root, self.gang, self.orders = root, gang, orders
        self.index = next((int(os.environ[name]) for name in INDEX if name in os.environ), 0)
        self.life = int(os.environ.get(LIFE) or 0)
        self.channel = Channel(root, gang)
        self.stop, self.is_over = threading.Event(), threading.Event()
        self.is_ended = False  # by the batch system
        self._sent: list[Message] = []
        self._number = 0
        self._rendezvous: Rendezvous | None = None
        self._lock = threading.Lock()

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._on_signal)
        scratch = Path(tempfile.mkdtemp(prefix="atelier-node-"))
        teller = threading.Thread(target=self._tell, daemon=True)
        teller.start()
        how: GangEnd = {"code": 0}
        try:
            self._gang(scratch)
        except StoppedError:
            how = {"code": STOPPED}
            if not self.is_ended and not self.channel.is_stopped():  # ended by another node
                why = self._rendezvous.why() if self._rendezvous else "stopped"
                how = {**to_line(AtelierError(why)), "code": 1, "has_died": True}
        except (AtelierError, OSError) as error:
            line = to_line(of_system(error) if isinstance(error, OSError) else error)
            how = {**line, "code": 1, "has_died": isinstance(error, DiedError)}
        finally:
            self.is_over.set()
            teller.join()
            shutil.rmtree(scratch, ignore_errors=True)
        if self.is_first:
            self.channel.tell_end(self.life, how)
        elif "error" in how:
            print(how["error"], file=sys.stderr)
        if (code := how.get("code", 0)) != STOPPED:
            return code
        if self.is_ended and self.is_first:
            requeue_this_job()
        return STOPPED if self.is_first else 0  # a nonzero exit would kill the other nodes before they finish

    def _gang(self, scratch: Path) -> None:
        given, size = self.orders, self.orders.nodes
        share = share_of(given.ranks, size)
        here = {"scratch": str(scratch / "work"), "roots": root_places()}
        run = given.run.model_copy(update=here)
        (scratch / "work").mkdir()
        place = NodePlace(id=f"{self.gang}-{self.life}", index=self.index, pools=("",) * size)
        self._rendezvous = rendezvous = Rendezvous(self.root, place, self.stop) if size > 1 else None
        env = compile_cache(self.root)
        if rendezvous is not None:
            rendezvous.arrive()
            env |= rendezvous.gather(run, self._wait_for) if self.is_first else rendezvous.follow()[1]
            watcher = threading.Thread(target=rendezvous.watch, args=(self.stop, self.is_over), daemon=True)
            watcher.start()
        orders = Orders(
            name=given.name,
            module=given.module,
            root=given.root,
            threads=given.threads,
            grace_s=given.grace_s,
            leases=given.leases if self.is_first else {},
            outputs=given.outputs if self.is_first else {},
            run=run,
            scratch=scratch / "gang",
            ranks=share,
            first_rank=self.index * share,
            world=given.ranks if size > 1 else 0,
            env=env,
        )
        try:
            start_gang(orders, self._say, self.stop)
        except BaseException as error:
            if rendezvous is not None:
                rendezvous.end(f"{type(error).__name__}: {error}")
            raise

    def _say(self, message: Message) -> None:
        with self._lock:
            self._sent.append(message)

    def _wait_for(self, text: str) -> None:
        self._say({"waiting": text})

    def _tell(self) -> None:
        """Thread: write messages to the channel, and set `stop` when the channel requests it."""
        while True:
            is_last = self.is_over.wait(TELL_S)
            with self._lock:
                said, self._sent = self._sent, []
            with suppress(OSError):
                if said and self.is_first:
                    self.channel.say(self.life, self._number + 1, said)
                    self._number += 1
                    said = []
                if not self.stop.is_set() and self.channel.is_stopped():
                    self.stop.set()
            with self._lock:
                self._sent = said + self._sent
            if is_last:
                return

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.is_ended = True
        self.stop.set()


def main() -> int:
    root, gang = sys.argv[1:]
    letter = Channel(root, gang).get("orders")
    if not isinstance(letter, dict):
        print(f"{root}: no orders of {gang}; do all nodes see the same store?", file=sys.stderr)
        return 2
    try:
        go_on_frozen(root, str(letter["code"]), "atelier.infra.launch.node_agent", root, gang)
        orders = check_as(GangLetter, letter, f"{root}, gang {gang}", "its orders")
    except AtelierError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return NodeAgent(root, gang, orders).run()


if __name__ == "__main__":
    sys.exit(main())
