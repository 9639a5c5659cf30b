"""Supervisor of a gang: `python -m atelier.infra.launch.supervisor guard.json`, a child process of the one
that runs a task.

It takes over the leases with new fences, starts the ranks, renews the leases, and ends with the gang: when
its parent dies (its standard input ends) or sends SIGTERM it makes the ranks checkpoint and stop, and kills
those left after the grace time. When the gang has finished it publishes the records. Ranks notice its death
by the pipe they hold. A gang that lost a rank to a signal, that hangs, or whose copies of the weights differ
restarts from its last checkpoint, if it made a new one. Standard output carries JSON lines for the parent;
the ranks' own output goes to files.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from atelier.engine.config.document import number_of
from atelier.engine.config.error import AtelierError, CopiesError, DivergedError, StoppedError, of_system
from atelier.engine.config.message import Message, to_line
from atelier.engine.config.run_file import RESERVE, RESERVED
from atelier.engine.config.site import tunes
from atelier.engine.io.addresses import NAMED
from atelier.engine.io.fork_server import Connection, Process, Refused
from atelier.engine.io.heartbeat import PULSE
from atelier.engine.io.local_url import file_url
from atelier.engine.io.storage import is_local
from atelier.infra.launch.hang_detector import HangDetector, last_error
from atelier.infra.launch.orders import Guard
from atelier.infra.store.lease import Holder, Lease, LeaseLost, Renewal, take
from atelier.infra.store.store import Store, has_body, read_body
from atelier.infra.store.trajectory import checkpoint_steps

GUARD = "ATELIER_GUARD_FD"  # pipe whose end tells a rank that its supervisor is gone
RESTARTS = 3  # each only after a new checkpoint: a second failure at the same step is reported instead
STOPPED = 75
# spins of an OpenMP thread that waits for the others: with the default of 300 000, when another process has
# one of the cores, a step takes many times as long, and the CPU time goes into waiting
SPINS = "10000"
PASSED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "MPLCONFIGDIR",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "TZ",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "PYTHONWARNINGS",
    "PYTHONHASHSEED",
    "COLUMNS",
    NAMED,
    "CC",
    "CXX",
)


STORE_KEYS = ("AWS_", "FSSPEC_")  # prefixes of credentials for a remote store
READ_KEYS = {"hf": ("HF_", "FSSPEC_"), "s3": STORE_KEYS, "s3a": STORE_KEYS}  # of sources that are read
WAYS_OUT = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE")  # also in small letters


def passed(root: str, *more: str, reads: Iterable[str] = ()) -> dict[str, str]:
    """The part of this process's environment that a supervisor and its ranks get: the variables listed, those
    that tune fabric and memory, and the credentials of their store and of the kinds of store that they read,
    but no others.
    """
    prefixes = () if is_local(root) else STORE_KEYS
    names = (*PASSED, *more)
    for kind in reads:
        prefixes += READ_KEYS.get(kind, ("FSSPEC_",))
        names += (*WAYS_OUT, *(name.lower() for name in WAYS_OUT))
    return {
        key: value
        for key, value in os.environ.items()
        if key in names or tunes(key) or key.startswith(prefixes)
    }


def rank_env(root: str, threads: int, reads: Iterable[str] = ()) -> dict[str, str]:
    """Environment of every rank of a gang with `threads` threads per rank."""
    return passed(root, reads=reads) | {
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",  # a fork server must not have numpy's threads when it forks
        "GOMP_SPINCOUNT": SPINS,
    }


class Supervisor:
    """One gang from start to publication. Ranks are forked through `connection`, a fork server's, or
    executed.
    """

    def __init__(self, orders: Guard, connection: Connection | None = None) -> None:
        self.orders = orders
        self.connection = connection
        self.scratch = orders.scratch
        self.store = Store(orders.root)
        self.holder = Holder.me(orders.name)
        self.stop_asked = threading.Event()
        self.ranks: list[Process] = []
        self.leases: list[Lease] = []
        self.death = ""  # how a rank ended unexpectedly
        self.hang = ""  # stuck ranks, if the gang was killed for a hang

    def run(self) -> int:
        """Run the gang and publish; returns its exit code. Raises LeaseLost when another process has
        published or taken over.
        """
        signal.signal(signal.SIGTERM, lambda *_: self.stop_asked.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C goes to the parent, which decides
        threading.Thread(target=self._watch_parent, daemon=True).start()
        for address, fence in self.orders.leases.items():
            lease = take(address, self.holder, handover=fence, stopped=self.stop_asked)
            if lease is None:
                raise LeaseLost(f"{address}: published by another process")
            self.leases.append(lease)
        renewal = Renewal(self.leases)
        try:
            code = self._to_the_end(renewal)
            if code in (0, DivergedError.exit_code):
                self._publish(is_whole=code == 0)
            elif renewal.lost.is_set():
                raise LeaseLost("another process has taken over; the gang was stopped and nothing published")
        finally:
            renewal.stop()
            for lease in self.leases:
                lease.let_go()
        return code

    def _watch_parent(self) -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        self.stop_asked.set()

    def _to_the_end(self, renewal: Renewal) -> int:
        """Run the gang, with restarts; returns its exit code."""
        for restart in range(RESTARTS + 1):
            before = self._checkpoints()
            code = self._gang(renewal, mode="ab" if restart else "wb")
            gained = self._checkpoints() - before
            if self.death and all(has_body(output.payload) for output in self.orders.outputs.values()):
                return 0  # all outputs were written when it died
            is_over = self.stop_asked.is_set() or renewal.lost.is_set() or restart == RESTARTS
            is_over |= bool(self.orders.world)  # one node of a gang: all nodes restart, or none
            if not self.death or not gained or is_over:
                self._tell_hang()
                return code
            at = max(step for _, step in gained)
            again = f"the gang starts again from step {at} (restart {restart + 1} of {RESTARTS})"
            say({"warning": f"{self.death}; {again}", "restart": restart + 1})
        raise AssertionError("the last round returns")

    def _tell_hang(self) -> None:
        """Report a hang, since no rank could report it itself."""
        if self.hang and self.orders.world:
            say({"warning": self.hang})  # its other nodes end with it; a retry may succeed
        elif self.hang:
            say(to_line(AtelierError(f"{self.orders.name}: {self.hang}; run again to continue")))

    def _checkpoints(self) -> set[tuple[str, int]]:
        addresses = [lease.log.address for lease in self.leases]
        return {(address, step) for address in addresses for step in checkpoint_steps(address)}

    def _gang(self, renewal: Renewal, mode: str) -> int:
        count, first = self.orders.ranks, self.orders.first_rank
        self.ranks, self.death, self.hang = [], "", ""
        pulses = self.scratch / "pulse"
        shutil.rmtree(pulses, ignore_errors=True)
        pulses.mkdir(mode=0o700)
        read_end, write_end = os.pipe()  # ranks hold the reading end: EOF when the supervisor ends
        (self.scratch / "rendezvous").unlink(missing_ok=True)
        try:
            self._start_ranks(count, first, mode, pulses, read_end)
            pids = [process.pid for process in self.ranks]
            for lease in self.leases:
                lease.name_writers(pids)
            say({"pids": pids, "guard": os.getpid()})
            return self._wait(
                renewal, HangDetector(pulses, {first + local: pid for local, pid in enumerate(pids)})
            )
        finally:
            os.close(read_end)
            self._kill()
            os.close(write_end)

    def _start_ranks(self, count: int, first: int, mode: str, pulses: Path, read_end: int) -> None:
        (self.scratch / RESERVE).write_bytes(RESERVED)
        for local in range(count):
            rank = first + local
            env = rank_env(self.store.root, self.orders.threads, self.orders.reads) | {
                "ATELIER_RENDEZVOUS": file_url(self.scratch / "rendezvous"),
                **self.orders.env,
                "RANK": str(rank),
                "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": str(count),
                "WORLD_SIZE": str(self.orders.world or count),
                PULSE: str(pulses),
            }
            with (
                open(self.scratch / f"rank{local}.out", mode) as out,
                open(self.scratch / f"rank{local}.err", mode) as err,
            ):
                self.ranks.append(self._start_rank(env, out.fileno(), err.fileno(), read_end))

    def _start_rank(self, env: dict[str, str], out: int, err: int, pipe: int) -> Process:
        module, arguments = self.orders.module, [str(self.scratch / "run.json")]
        held = self.orders.held  # GPUs stay taken as long as a rank lives
        if self.connection is not None:
            try:
                return self.connection.start(
                    module,
                    arguments,
                    env=env,
                    cwd=self.orders.cwd,
                    out=out,
                    err=err,
                    inherited={GUARD: pipe},  # cores are held by this process, which outlives its ranks
                    is_stopped=self.stop_asked.is_set,
                )
            except Refused as reason:
                print(f"{module} is executed, not forked: {reason}", file=sys.stderr)
                self.connection = None
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=env | {GUARD: str(pipe)},
            pass_fds=(pipe, *held),
            start_new_session=True,
            cwd=self.orders.cwd,
        )

    def _wait(self, renewal: Renewal, watch: HangDetector) -> int:
        """Wait for the ranks; the first failure, a hang, a lost lease or a request to stop ends all of
        them.
        """
        told_at = 0.0
        while True:
            codes = [process.poll() for process in self.ranks]
            failed = any(code not in (None, 0) for code in codes)
            if failed and not told_at:
                self.death = self._death(codes)
            if not told_at and (hang := watch.hang()):
                self.death = self.hang = hang
                told_at = time.monotonic()
                self._kill()
                continue
            if (failed or self.stop_asked.is_set() or renewal.lost.is_set()) and not told_at:
                told_at = time.monotonic()
                for process in self.ranks:
                    with suppress(ProcessLookupError):
                        process.terminate()
            if all(code is not None for code in codes):
                return next((code for code in codes if code), 0)
            if told_at and time.monotonic() - told_at > (2.0 if failed else self.orders.grace_s):
                self._kill()
            time.sleep(0.02)

    def _kill(self) -> None:
        """Kill the rest of the gang. Each rank leads its own session, so its children end as well."""
        for process in self.ranks:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()  # one that was forked just now leads no session yet
            process.wait()

    def _death(self, codes: list[int | None]) -> str:
        """How a rank failed when a restart may help: killed by a signal, or differing copies of the weights
        (memory corruption); '' otherwise.
        """
        for local, code in enumerate(codes):
            if code is not None and code < 0:
                rank = self.orders.first_rank + local
                return f"rank {rank} was ended by {signal.Signals(-code).name}"
            if code == CopiesError.exit_code:
                return last_error(self.scratch / f"rank{local}.out") or "copies of the weights differ"
        return ""

    def _publish(self, *, is_whole: bool = True) -> None:
        """Publish the outputs; unless the gang `is_whole`, only those that exist."""
        for lease in self.leases:
            if not lease.is_mine():
                raise LeaseLost(f"{lease.log.address}: taken over by another process; nothing was published")
        fences = {lease.log.address: lease.fence for lease in self.leases}
        for key, output in self.orders.outputs.items():
            is_there = has_body(output.payload)
            if not is_there and not is_whole:
                continue
            if not is_there:
                raise AtelierError(f"{self.orders.name}: the gang succeeded but wrote no output {key}")
            files, summary = read_body(output.payload)
            draft, ended = output.draft, time.time()
            device_s = round(
                (ended - number_of(draft.provenance.get("started"), ended)) * self.orders.ranks, 1
            )
            provenance = {**draft.provenance, "ended": ended, "device_seconds": device_s}
            draft = draft.model_copy(
                update={"files": files, "summary": {**summary, **draft.summary}, "provenance": provenance}
            )
            record = self.store.publish(
                draft, self.holder, fence=fences.get(self.store.address(draft.kind, draft.fingerprint), 0)
            )
            say({"published": key, "kind": record.kind, "fingerprint": record.fingerprint})


def say(message: Message) -> None:
    """One JSON line to the parent, whose death must not prevent the supervisor from stopping its gang
    properly.
    """
    with suppress(BrokenPipeError, OSError):
        print(json.dumps(message), flush=True)


def main() -> int:
    orders = Guard.model_validate_json(Path(sys.argv[1]).read_bytes())
    connection = Connection(socket.socket(fileno=int(sys.argv[2]))) if len(sys.argv) > 2 else None
    try:
        return Supervisor(orders, connection).run()
    except StoppedError:
        return STOPPED
    except (AtelierError, OSError) as error:
        say(to_line(of_system(error) if isinstance(error, OSError) else error))
        return 1


if __name__ == "__main__":
    code = main()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code % 256 if code >= 0 else 128 - code)
