"""The fork server's process (engine/io/fork_server.py): it has imported the ranks' modules and forks a rank
per request.
"""

import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypedDict

from atelier.engine.io import source_check

MOST_DESCRIPTORS = 64  # maximum passed to one process
MESSAGE = 1 << 17  # bytes of the largest request, mostly its environment
# read at load time of the interpreter or a library: a fork has its server's values
SET_LATER = ("OMP_NUM_THREADS",)  # torch.set_num_threads sets it for every compute thread
# set by scikit-learn, joblib and threadpoolctl on import, if not set
SET_BY_IMPORTS = {"KMP_DUPLICATE_LIB_OK": "True", "KMP_INIT_AT_FORK": "FALSE"}
LOADED = ("OMP_", "GOMP_", "MKL_", "KMP_", "OPENBLAS_", "LD_", "PYTHON", "MALLOC_", "GLIBC_", "TORCH_")


class StartRequest(TypedDict):
    """A process to fork. Its descriptors come along: out, err, one to wait for, then the inherited ones."""

    module: str
    arguments: list[str]
    env: dict[str, str]
    cwd: str
    inherited: list[str]  # environment variables that name the descriptors


class Answer(TypedDict, total=False):
    """The server's answer: the `pid` of a started process, with `code` once it has ended; or a refusal."""

    pid: int
    code: int
    refused: str


class ForkingProcess:
    """The server side: one thread, one event loop."""

    def __init__(self, control: socket.socket, modules: Iterable[str]) -> None:
        self.modules = {name: importlib.import_module(name) for name in modules}
        source_check.remember_sources()
        gc.collect()
        gc.freeze()  # imported pages stay shared: a child's garbage collection does not write to them
        self.selector = selectors.DefaultSelector()
        self.control = control
        self.connections: set[socket.socket] = set()
        self.children: dict[int, tuple[int, socket.socket]] = {}  # pidfd -> pid, connection that started it
        self.selector.register(control, selectors.EVENT_READ, self._connect)

    def run(self) -> None:
        while self.selector.get_map():
            for key, _ in self.selector.select():
                key.data(key.fileobj)

    def _connect(self, control: socket.socket) -> None:
        data, descriptors, _, _ = socket.recv_fds(control, MESSAGE, 1)
        if not data:
            self.selector.unregister(control)
            return
        connection = socket.socket(fileno=descriptors[0])
        self.connections.add(connection)
        self.selector.register(connection, selectors.EVENT_READ, self._start)

    def _start(self, connection: socket.socket) -> None:
        descriptors: list[int] = []
        try:
            data, descriptors, _, _ = socket.recv_fds(connection, MESSAGE, MOST_DESCRIPTORS)
        except OSError:
            data = b""
        if not data:
            self.selector.unregister(connection)
            self.connections.discard(connection)
            connection.close()
            return
        try:
            request = json.loads(data)
            reason = self._against(request) or self._fork(request, descriptors, connection)
        except (OSError, ValueError) as error:  # no processes or descriptors left: only this start fails
            reason = str(error)
        if reason:
            _tell(connection, {"refused": reason})
        for descriptor in descriptors:
            os.close(descriptor)

    def _fork(self, request: StartRequest, descriptors: list[int], connection: socket.socket) -> str:
        if len(descriptors) != 3 + len(request["inherited"]):
            return f"only {len(descriptors)} of its descriptors arrived"
        pid = os.fork()
        if not pid:
            self._child(request, descriptors)
        pidfd = os.pidfd_open(pid)
        self.children[pidfd] = (pid, connection)
        self.selector.register(pidfd, selectors.EVENT_READ, self._reap)
        _tell(connection, {"pid": pid}, pidfd)
        return ""

    def _against(self, request: StartRequest) -> str:
        """The reason why a fork would differ from an executed process; '' if it would not."""
        if request["module"] not in self.modules:
            return f"{request['module']} is not loaded"
        ours, theirs = (_loaded(env) for env in (os.environ, request["env"]))
        if ours != theirs:
            names = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
            return f"it was started with another {', '.join(names)}"
        return _initialised()

    def _reap(self, pidfd: int) -> None:
        pid, connection = self.children.pop(pidfd)
        self.selector.unregister(pidfd)
        _, status = os.waitpid(pid, 0)
        os.close(pidfd)
        if connection in self.connections:
            _tell(connection, {"pid": pid, "code": os.waitstatus_to_exitcode(status)})

    def _child(self, request: StartRequest, descriptors: list[int]) -> NoReturn:
        """In the forked process: set it up as requested, close the server's descriptors, run the module."""
        code = 1
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            out, err, wait_end, *inherited = descriptors
            for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
                os.dup2(source, target)
            _close_others({0, 1, 2, wait_end, *inherited})
            if not os.read(wait_end, 1):
                os._exit(0)
            os.close(wait_end)
            os.environ.clear()
            os.environ.update(request["env"])
            os.environ.update({name: str(n) for name, n in zip(request["inherited"], inherited, strict=True)})
            os.chdir(request["cwd"])
            _show_as([sys.executable, "-m", request["module"], *request["arguments"]])
            module = self.modules[request["module"]]
            sys.argv = [str(module.__file__), *request["arguments"]]
            code = module.main(list(request["arguments"]))
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(code)


def _loaded(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that libraries read at load time, without those that libraries set themselves."""
    return {
        name: value
        for name, value in env.items()
        if name.startswith(LOADED) and name not in SET_LATER and SET_BY_IMPORTS.get(name) != value
    }


def _initialised() -> str:
    """State of this process that a fork must not inherit; '' if there is none."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"it has {threads} threads"
    cuda = sys.modules.get("torch.cuda")
    return "CUDA is initialised" if cuda is not None and cuda.is_initialized() else ""


def _close_others(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))


def _show_as(words: list[str]) -> None:
    """Make process lists show these words, by overwriting this process's argument memory."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[45]), int(fields[46])
        text = "\0".join(words).encode()[: end - begin - 1]
        if 0 < begin < end:
            ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def _tell(connection: socket.socket, message: Answer, *descriptors: int) -> None:
    with suppress(OSError):  # the client is gone: the started process exits
        socket.send_fds(connection, [json.dumps(message).encode()], descriptors)
