"""`mlflow models serve` of a registered version: many clients at once, and errors of one client."""

import fcntl
import http.client
import json
import os
import signal
import socket
import sys
import termios
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from atelier.infra.tracking.predictor import requests_of
from tests.flow.served import wait_for
from tests.infra.tracking.served_version import Server, processes
from tests.infra.tracking.tiny_version import registered, tiny_files

CLIENTS = 32
POSITIONS = 128


def unread(pid: int) -> int:
    """Bytes in the standard input of a process, a pipe."""
    with Path(f"/proc/{pid}/fd/0").open("rb", buffering=0) as pipe:
        return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4), sys.byteorder)


def ticks(pid: int) -> int:
    """What a process has computed, in hundredths of a second."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


@contextmanager
def held(pid: int) -> Iterator[None]:
    """All threads of a process stand still, and it is killed in the end: no later test waits for it."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: states(pid) == {"T"}, 20, "a process that stands still")
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def states(pid: int) -> set[str]:
    """The states of a process's threads, as the kernel names them."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    uri = registered(folder, tiny_files(positions="learned", max_positions=POSITIONS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATELIER_SERVE_HOSTS", "model.example, other.example:81")
        started = Server(folder, uri)
    try:
        wait_for(started.is_up, 120, "the server")
        yield started
    finally:
        started.process.terminate()
        started.process.wait(60)


def requests() -> list[dict[str, Any]]:
    return [
        {
            "prompt": "def main(argument):"[: 1 + n % 17],
            "max_tokens": 30 + n,
            "temperature": n % 4 // 3,
            "seed": n,
        }
        for n in range(CLIENTS)
    ]


@pytest.mark.slow
def test_32_clients_at_once_get_what_each_gets_alone(server: Server) -> None:
    alone = [server.ask(**one) for one in requests()]
    assert {status for status, _ in alone} == {200} and len({str(text) for _, text in alone}) > CLIENTS / 2
    together: list[tuple[int, Any]] = [(0, None)] * CLIENTS
    begin = threading.Barrier(CLIENTS)

    def client(number: int) -> None:
        begin.wait()
        together[number] = server.ask(**requests()[number])

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
    assert server.ask(inputs=requests()) == (200, {"predictions": [text for _, (text,) in alone]})


def test_every_body_that_mlflow_reads_asks_the_same(server: Server) -> None:
    rows = [{"prompt": text, "max_tokens": 9, "temperature": 0.5, "seed": 3} for text in ("def ", "class")]
    names, values = list(rows[0]), [list(row.values()) for row in rows]
    told = {"predictions": [server.ask(**row)[1][0] for row in rows]}
    columns = {name: [row[name] for row in rows] for name in names}
    same = {name: value for name, value in rows[0].items() if name != "prompt"}
    bodies = [
        {"inputs": rows}, {"inputs": columns}, {"instances": rows}, {"dataframe_records": rows},
        {"dataframe_split": {"columns": names, "data": values}},
        {"inputs": columns["prompt"], "params": same}, {"instances": columns["prompt"], "params": same},
    ]  # fmt: skip
    assert [server.ask(**body) for body in bodies] == [(200, told)] * len(bodies)
    lines = [names, *values]
    assert server.send("\n".join(",".join(map(str, line)) for line in lines), "text/csv") == (200, told)


def test_a_bad_request_is_a_400_in_one_line_for_that_client_alone(server: Server) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"prompt": "a", "promt": 1}, "got prompt, promt"),
        ({"inputs": ["a", None]}, "row 2: prompt is None; give a text"),
        (
            {"prompt": "a", "max_tokens": 0},
            "request.max_tokens: input should be greater than or equal to 1 (given: 0)",
        ),
        ({"prompt": "a", "max_tokens": 10**9}, "(given: 1000000000)"),
        (
            {"prompt": "a", "temperature": -1.0},
            "request.temperature: input should be greater than or equal to 0 (given: -1.0)",
        ),
        ({"prompt": "a" * 200}, f"has 200 tokens, but the model learned {POSITIONS} positions"),
        ({"inputs": ["a", "b" * 300]}, "row 2: prompt: has 300 tokens"),
    ]
    good = {"prompt": "def ", "max_tokens": 100, "temperature": 0.0}
    alone = server.ask(**good)
    with ThreadPoolExecutor(4) as pool:
        answers = [
            (pool.submit(server.ask, **good), pool.submit(server.ask, **one), words) for one, words in bad
        ]
    for right, wrong, words in answers:
        assert right.result() == alone
        status, told = wrong.result()
        assert status == 400 and words in told["message"] and "\n" not in told["message"]


def test_only_its_own_names_and_pages_reach_it(server: Server) -> None:
    own, evil = f"127.0.0.1:{server.port}", f"evil.example:{server.port}"
    named = {"Host": "model.example"}
    for headers in ({}, {"Host": f"localhost:{server.port}"}, {"Origin": f"http://{own}"}, named):
        assert server.get("/ping", **headers)[0] == 200, headers
    for headers in ({"Host": evil}, {"Host": ""}, {"Host": "127.0.0.1:1"}, {"Origin": "http://evil.example"}):
        for path in ("/ping", "/version", "/docs", "/openapi.json", "/nowhere"):
            status, text = server.get(path, **headers)
            assert status == 403 and text.endswith("; ATELIER_SERVE_HOSTS names others"), headers


def test_fields_of_csv_that_look_like_numbers_stay_text(server: Server) -> None:
    rows = [{"prompt": text, "max_tokens": 5, "temperature": 0} for text in ("007", "1e5", "NA", "true")]
    told = {"predictions": [server.ask(**row)[1][0] for row in rows]}
    lines = ["prompt,max_tokens,temperature", *(f"{row['prompt']},5,0" for row in rows)]
    assert server.send("\n".join(lines), "text/csv") == (200, told)


def test_a_body_that_cannot_be_read_is_a_400_in_one_line(server: Server) -> None:
    json_, csv, deep = "application/json", "text/csv", "nested deeper"
    bad = [
        ("[" * 3000, json_, 400, deep), ('{"a":' * 3000 + "1" + "}" * 3000, json_, 400, deep),
        ("{", json_, 400, "not JSON"), ('{"prompt": NaN}', json_, 400, "NaN is not a JSON number"),
        ("7", json_, 400, "JSON object"), ('{"inputs": "a", "more": 1}', json_, 400, "got 'more' besides"),
        ('{"prompt": 7}', json_, 400, "is 7; give a text"), ("a,b\n1\n", csv, 400, "row 1 has 1 fields"),
        ("", csv, 400, "is empty"), ("PAR1", "application/octet-stream", 415, "Content-Type"),
        ("", "", 415, "send"),
    ]  # fmt: skip
    for body, kind, status, words in bad:
        found, told = server.send(body, kind)
        assert (found, words in told["message"], told["message"].count("\n")) == (status, True, 0), told


def test_a_killed_generator_fails_its_requests_and_the_next_starts_another(server: Server) -> None:
    good = {"prompt": "def ", "max_tokens": 20, "temperature": 0.0}
    alone = server.ask(**good)
    (pid,) = server.generators()
    line = json.dumps({"id": 1, **requests_of([good], {})[0]}) + "\n"
    with ThreadPoolExecutor(3) as pool:
        with held(pid):
            asked = [pool.submit(server.ask, **good) for _ in range(3)]
            wait_for(lambda: unread(pid) >= 3 * len(line), 20, "three requests at the generator")
        found = [one.result() for one in asked]
    why = {"error_code": "INTERNAL_ERROR", "message": "the generating process ended with exit code -9"}
    assert found == [(500, why)] * 3
    assert server.ask(**good) == alone
    (other,) = server.generators()
    assert other != pid


def test_a_client_that_leaves_changes_nothing_for_others(server: Server) -> None:
    good = {"prompt": "class ", "max_tokens": 100, "temperature": 0.0}
    alone = server.ask(**good)
    body = json.dumps(good | {"seed": 2}).encode()
    head = f"POST /invocations HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: {len(body)}\r\n"
    head += "Content-Type: application/json\r\n\r\n"
    for sent in (body, body[:9]):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(head.encode() + sent)
    assert server.ask(**good) == alone


@pytest.mark.slow
def test_a_client_that_hangs_up_frees_what_computes_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Server(tmp_path, registered(tmp_path, tiny_files()))
    try:
        wait_for(started.is_up, 120, "the server")
        good = {"prompt": "class ", "max_tokens": 20, "temperature": 0.0}
        alone = started.ask(**good)
        (generator,) = started.generators()
        body = json.dumps({"prompt": "def ", "max_tokens": 300_000, "temperature": 0.0}).encode()
        head = (
            f"POST /invocations HTTP/1.1\r\nHost: 127.0.0.1:{started.port}\r\nContent-Length: {len(body)}\r\n"
        )
        clients = [socket.create_connection(("127.0.0.1", started.port)) for _ in range(9)]
        for client in clients:
            client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        before = ticks(generator)
        wait_for(lambda: ticks(generator) > before + 30, 60, "the generator to compute")
        for client in clients:
            client.close()
        wait_for(lambda: is_idle(generator), 60, "the generator to be free")
        assert started.generators() == [generator] and started.ask(**good) == alone
    finally:
        under = [pid for pid, parent, _ in processes() if parent == started.process.pid]
        for pid in (*started.generators(), *under, started.process.pid):  # one that hangs, too
            os.kill(pid, signal.SIGKILL)
        started.process.wait(60)


def is_idle(pid: int) -> bool:
    """Whether a process computes nothing for a while."""
    before = ticks(pid)
    time.sleep(0.5)
    return ticks(pid) == before


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_is_ended_leaves_no_process_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    started = Server(tmp_path, registered(tmp_path, tiny_files()))
    try:
        wait_for(started.is_up, 120, "the server")
        assert started.ask(prompt="def ", max_tokens=3)[0] == 200
        (generator,) = started.generators()
        (under,) = {pid for pid, parent, _ in processes() if parent == started.process.pid}
        if how is signal.SIGKILL:  # in the middle of a text; after a SIGTERM the server waits for its end
            threading.Thread(target=_ask_for_much, args=(started,), daemon=True).start()
            before = ticks(generator)
            wait_for(lambda: ticks(generator) > before + 30, 60, "the generator to compute")
            os.kill(under, how)
        started.process.send_signal(how)
        started.process.wait(60)
        gone = {generator, under}
        wait_for(lambda: not gone & {pid for pid, _, line in processes() if line}, 30, "the processes to end")
        assert list((tmp_path / "temporary").glob("atelier-*")) == []
    finally:
        started.process.kill()


def _ask_for_much(server: Server) -> None:
    """For a text that takes minutes, of a server that is killed meanwhile."""
    with suppress(OSError, http.client.HTTPException):
        server.ask(prompt="def ", max_tokens=300_000, temperature=0.0)
