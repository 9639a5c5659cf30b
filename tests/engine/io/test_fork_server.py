"""A forked rank behaves as an executed one, and no process is left unsupervised."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.io import fork_server
from atelier.engine.io.fork_server import Connection, Forked, ForkServer, Refused
from tests.checkout import TOP, python_path

MODULE = "tests.engine.io.forked"
SKLEARN = {"KMP_DUPLICATE_LIB_OK": "True", "KMP_INIT_AT_FORK": "FALSE"}
ENV = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path()}


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    found = ForkServer([MODULE], ENV, str(TOP))
    yield found
    found.close()
    assert found.process.poll() == 0


class Asked:
    """One process over a connection of its own, its output in a file."""

    def __init__(self, folder: Path, connection: Connection) -> None:
        self.folder, self.connection = folder, connection
        self.out, self.err = folder / "out", folder / "err"
        self.pipe = os.pipe()

    def start(self, *arguments: str, **more: str) -> Forked:
        with self.out.open("w") as out, self.err.open("w") as err:
            return self.connection.start(
                MODULE, arguments, env=ENV | more, cwd=str(self.folder), out=out.fileno(), err=err.fileno(),
                inherited={"PIPE": self.pipe[0]},
            )  # fmt: skip

    def executed(self, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
        with self.out.open("w") as out, self.err.open("w") as err:
            return subprocess.Popen(
                [sys.executable, "-m", MODULE, *arguments], env=ENV | more | {"PIPE": str(self.pipe[0])},
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, pass_fds=(self.pipe[0],),
                start_new_session=True,
            )  # fmt: skip

    def said(self) -> dict[str, Any]:
        return json.loads(self.out.read_text())


@pytest.fixture
def asked(tmp_path: Path, server: ForkServer) -> Iterator[Asked]:
    connection = Connection(server.connect())
    found = Asked(tmp_path, connection)
    yield found
    connection.close()
    for end in found.pipe:
        os.close(end)


def test_a_forked_process_finds_what_an_executed_one_finds(asked: Asked) -> None:
    assert asked.executed("x", HELLO="world").wait(30) == 0
    executed = asked.said()
    assert asked.start("x", HELLO="world").wait() == 0
    assert asked.said() == executed
    assert executed["pipe"] == os.fstat(asked.pipe[0]).st_ino and executed["env"]["HELLO"] == "world"
    assert executed["leads"] and executed["sigterm"] and executed["threads"] == 1


@pytest.mark.parametrize(("act", "code"), [("die", -signal.SIGKILL), ("fail", 3), ("raise", 1), ("", 0)])
def test_its_end_is_told_as_of_a_child(asked: Asked, act: str, code: int) -> None:
    process = asked.start(act)
    assert process.wait() == code == process.poll()
    assert not Path(f"/proc/{process.pid}").exists()
    assert ("RuntimeError: told to" in asked.err.read_text()) == (act == "raise")


def test_several_at_once_and_ended_by_signals(asked: Asked) -> None:
    processes = [asked.start("wait") for _ in range(3)]
    assert [process.poll() for process in processes] == [None] * 3
    processes[1].terminate()
    assert processes[1].wait() == -signal.SIGTERM
    processes[0].kill()
    processes[2].kill()
    assert [process.wait() for process in processes] == [-9, -15, -9]
    processes[0].terminate()  # of one that is gone: nothing


@pytest.mark.parametrize(
    "variable", ["OMP_DYNAMIC", "PYTHONHASHSEED", "LD_PRELOAD", "MALLOC_CHECK_", "KMP_INIT_AT_FORK"]
)
def test_what_libraries_read_when_they_are_loaded_cannot_be_another(asked: Asked, variable: str) -> None:
    with pytest.raises(Refused, match=f"another {variable}"):
        asked.start(**{variable: "7"})
    assert asked.start().wait() == 0  # and the next is served


def test_what_a_library_sets_when_it_is_imported_later_is_nothing_else(asked: Asked) -> None:
    """scikit-learn's import, in this process, adds to the environment that its processes are started with."""
    assert asked.start(**SKLEARN).wait() == 0


@pytest.mark.slow
def test_scikit_learn_sets_these_when_it_is_imported(asked: Asked) -> None:
    code = "import json, os; before = {*os.environ}; import sklearn; print(json.dumps({k: v for k, v in"
    code += " os.environ.items() if k not in before}))"
    env = {name: value for name, value in os.environ.items() if not name.startswith("KMP_")}
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout
    added = json.loads(said)
    assert added.items() >= SKLEARN.items()
    assert asked.start(**added).wait() == 0


def test_more_descriptors_than_can_be_handed_on_are_refused_and_the_next_is_served(asked: Asked) -> None:
    for number in (70, 300):  # more than the server takes; more than the system sends
        many = {f"FD_{n}": asked.pipe[0] for n in range(number)}
        with asked.out.open("w") as out, pytest.raises(Refused):
            asked.connection.start(
                MODULE, [], env=ENV, cwd=str(TOP), out=out.fileno(), err=out.fileno(), inherited=many
            )
    assert asked.start().wait() == 0


def test_a_server_that_stands_still_does_not_hold_up_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "PATIENCE_S", 0.3)
    server = ForkServer([MODULE], ENV, str(TOP))
    asked = Asked(tmp_path, Connection(server.connect()))
    process = asked.start("wait")
    server.process.send_signal(signal.SIGSTOP)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    other = Connection(server.connect())
    with asked.out.open("w") as out, pytest.raises(Refused, match="stopped"):
        other.start(
            MODULE, [], env=ENV, cwd=str(TOP), out=out.fileno(), err=out.fileno(), inherited={},
            is_stopped=lambda: True,
        )  # fmt: skip
    server.process.send_signal(signal.SIGCONT)
    other.close()
    asked.connection.close()
    server.close()


def test_a_server_with_threads_forks_nobody(tmp_path: Path) -> None:
    server = ForkServer([MODULE], ENV | {"THREADED": "1"}, str(TOP))
    asked = Asked(tmp_path, Connection(server.connect()))
    with pytest.raises(Refused, match="2 threads"):
        asked.start(THREADED="1")
    asked.connection.close()
    server.close()


def test_a_start_that_nobody_heard_of_does_not_run(asked: Asked, server: ForkServer) -> None:
    """As when the supervisor is killed between its request and the answer."""
    ours = server.connect()
    wait_end, go_end = os.pipe()
    request = {"module": MODULE, "arguments": ["wait"], "env": ENV, "cwd": str(TOP), "inherited": ["PIPE"]}
    with asked.out.open("w") as out:
        given = [out.fileno(), out.fileno(), wait_end, asked.pipe[0]]
        socket.send_fds(ours, [json.dumps(request).encode()], given)
    os.close(wait_end)
    answer = json.loads(ours.recv(1 << 16))
    assert Path(f"/proc/{answer['pid']}").exists()  # forked, and it waits for a word
    os.close(go_end)
    ended = json.loads(ours.recv(1 << 16))
    ours.close()
    assert ended == {"pid": answer["pid"], "code": 0} and asked.out.read_text() == ""


def test_a_killed_server_is_told_and_what_it_started_is_still_supervised(tmp_path: Path) -> None:
    server = ForkServer([MODULE], ENV, str(TOP))
    asked = Asked(tmp_path, Connection(server.connect()))
    process = asked.start("wait")
    server.process.kill()
    server.process.wait()
    with pytest.raises(Refused):
        asked.start()
    assert process.poll() is None
    process.kill()
    assert process.wait() == -signal.SIGKILL
    with pytest.raises(Refused):
        server.connect()
    asked.connection.close()
    server.close()


def test_it_ends_when_nobody_can_ask_and_nothing_runs(tmp_path: Path) -> None:
    server = ForkServer([MODULE], ENV, str(TOP))
    connection = Connection(server.connect())
    process = Asked(tmp_path, connection).start("wait")
    server._control.close()  # as when the process that holds it is killed
    connection.close()
    time.sleep(0.2)
    assert server.process.poll() is None  # somebody has to see the end of what it started
    process.kill()
    assert server.process.wait(10) == 0


def test_one_that_nobody_has_asked_ends_at_once() -> None:
    server = ForkServer([MODULE], ENV, str(TOP))
    server.close()
    assert server.process.poll() is not None
