"""Access to the stack, and permissions of its users."""

import gzip
import hashlib
import http.client
import io
import json
import os
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from atelier.infra.code.frozen import freeze
from tests.checkout import TOP
from tests.flow.served import Served, basic, processes, wait_for

pytestmark = pytest.mark.service

PREFECT = Subprotocol("prefect")
EVIL = "http://evil.example"
PLANTED = "planted-5e1c7b2f"
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


@pytest.fixture(scope="module", autouse=True)
def secret() -> Any:
    """In the environment of `atelier up`, before the stack starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", PLANTED)
        yield PLANTED


def ask(
    url: str, path: str, method: str = "GET", body: Any = None, host: str = "", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """One request with these headers alone: status, headers, body."""
    address = url.removeprefix("http://")
    link = http.client.HTTPConnection(address, timeout=60)
    content = json.dumps(body).encode() if body is not None else b""
    link.putrequest(method, path, skip_host=True)
    sent = {"Host": host or address, "Content-Length": str(len(content)), "Content-Type": "application/json"}
    for name, value in (sent | {name.replace("_", "-"): value for name, value in headers.items()}).items():
        link.putheader(name, value)
    with closing(link):
        link.endheaders(content)
        answer = link.getresponse()
        return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()


def own(served: Served) -> dict[str, str]:
    return basic("atelier", served.password)


WRONG: list[dict[str, str]] = [
    {},
    basic("atelier", "wrong"),
    basic("atelier", ""),
    basic("", ""),
    basic("admin", "password1234"),
]
UNREADABLE = [{"Authorization": "Bearer x"}, {"Authorization": "Basic"}, {"Authorization": "Basic ?"}]


@pytest.mark.parametrize("headers", WRONG)
def test_nothing_is_read_or_started_without_the_password(served: Served, headers: dict[str, str]) -> None:
    deployment = served.api("GET", "/deployments/name/corpus/atelier")["id"]
    token = served.api("GET", "/csrf-token?client=tests")["token"]
    csrf = {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": "tests"}
    for path in ("/api/admin/version", "/api/admin/settings", "/api/csrf-token?client=x", "/api/flows/count"):
        assert ask(served.prefect, path, **headers)[0] == 401, path
    for path in ("/api/flow_runs/filter", f"/api/deployments/{deployment}/create_flow_run"):
        assert ask(served.prefect, path, "POST", {}, **headers)[0] == 403, path
        assert ask(served.prefect, path, "POST", {}, **headers, **csrf)[0] == 401, path
    for path in (
        "/",
        "/version",
        "/metrics",
        "/graphql",
        "/api/2.0/mlflow/experiments/search?max_results=5",
        "/ajax-api/2.0/mlflow/experiments/search?max_results=5",
        "/api/2.0/mlflow-artifacts/artifacts",
        "/get-artifact?path=x&run_uuid=y",
        "/model-versions/get-artifact?path=a&name=b&version=1",
    ):
        assert ask(served.mlflow, path, **headers)[0] == 401, path
    for path in ("/api/2.0/mlflow/runs/search", "/api/2.0/mlflow/users/create", "/graphql", "/v1/traces"):
        assert ask(served.mlflow, path, "POST", {}, **headers)[0] == 401, path


@pytest.mark.parametrize("headers", UNREADABLE)
def test_a_header_that_is_no_password_opens_nothing(served: Served, headers: dict[str, str]) -> None:
    assert ask(served.prefect, "/api/admin/version", **headers)[0] == 401
    for path in ("/", "/api/2.0/mlflow/experiments/search?max_results=5"):
        assert ask(served.mlflow, path, **headers)[0] in (401, 500), path


def test_the_password_opens_both(served: Served) -> None:
    assert ask(served.prefect, "/api/admin/version", **own(served))[0] == 200
    assert ask(served.mlflow, "/api/2.0/mlflow/experiments/search?max_results=5", **own(served))[0] == 200


def test_a_page_of_another_site_gets_nothing_even_with_the_password(served: Served) -> None:
    token = served.api("GET", "/csrf-token?client=tests")["token"]
    csrf = {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": "tests"}
    for origin in (EVIL, "null", f"{served.prefect}.evil.example", served.prefect[:-1]):
        for path in ("/api/admin/version", "/", "/docs", "/api/health"):
            assert ask(served.prefect, path, Origin=origin, **own(served))[0] == 403, (origin, path)
        status, _, _ = ask(
            served.prefect, "/api/flow_runs/filter", "POST", {}, Origin=origin, **own(served), **csrf
        )
        assert status == 403
    for path in ("/api/2.0/mlflow/runs/search", "/ajax-api/2.0/mlflow/runs/search"):
        assert ask(served.mlflow, path, "POST", {}, Origin=EVIL, **own(served))[0] == 403, path
    status, headers, _ = ask(
        served.mlflow, "/api/2.0/mlflow/experiments/search?max_results=5", Origin=EVIL, **own(served)
    )
    assert "access-control-allow-origin" not in headers, "a browser would hand the answer to the page"


def test_a_browser_is_told_that_another_site_may_not_ask(served: Served) -> None:
    wish = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for url, path in (
        (served.prefect, "/api/flow_runs/filter"),
        (served.mlflow, "/ajax-api/2.0/mlflow/runs/search"),
    ):
        status, headers, _ = ask(url, path, "OPTIONS", Origin=EVIL, **wish)
        assert status >= 400 and "access-control-allow-origin" not in headers
        status, headers, _ = ask(url, path, "OPTIONS", Origin=url, **wish)
        assert status < 400 and headers["access-control-allow-origin"] == url


def test_a_name_that_points_here_by_somebody_elses_will_is_refused(served: Served) -> None:
    for host in ("evil.example", f"evil.example:{served.prefect_port}", "127.0.0.1", "127.0.0.1:1"):
        assert ask(served.prefect, "/api/admin/version", host=host, **own(served))[0] == 403, host
        assert ask(served.prefect, "/", host=host)[0] == 403, host
        assert ask(served.mlflow, "/", host=host, **own(served))[0] == 403, host
    for host in (f"127.0.0.1:{served.prefect_port}", f"localhost:{served.prefect_port}"):
        assert ask(served.prefect, "/api/admin/version", host=host, **own(served))[0] == 200, host


@pytest.mark.parametrize("path", ["/api/events/in", "/api/events/out", "/api/logs/out"])
def test_a_web_socket_asks_for_the_password_and_its_own_page(served: Served, path: str) -> None:
    url = served.prefect.replace("http", "ws") + path
    with pytest.raises(InvalidStatus, match="403"), connect(url):
        pass
    with pytest.raises(InvalidStatus, match="403"), connect(url, subprotocols=[PREFECT], origin=Origin(EVIL)):
        pass
    for token in ("wrong", ""):
        with connect(url, subprotocols=[PREFECT]) as socket:
            socket.send(json.dumps({"type": "auth", "token": token}))
            with pytest.raises(ConnectionClosed):
                socket.recv(timeout=30)
    with connect(url, subprotocols=[PREFECT]) as socket:
        socket.send(json.dumps({"type": "auth", "token": f"atelier:{served.password}"}))
        assert json.loads(socket.recv(timeout=30))["type"] == "auth_success"


def test_nothing_of_the_stack_listens_beyond_this_machine(served: Served) -> None:
    leaders = {served.pid(part) for part in ("prefect", "mlflow", "worker-light", "worker-local")}
    sockets = {inode for pid in processes() if session_of(pid) in leaders for inode in sockets_of(pid)}
    found = [
        fields[1].split(":")
        for family in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]
        if (fields := line.split())[3] == "0A" and fields[9] in sockets
    ]
    assert {served.prefect_port, served.mlflow_port} <= {int(port, 16) for _, port in found}
    assert {address for address, _ in found} <= LOOPBACK


def session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def sockets_of(pid: int) -> set[str]:
    found = set()
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def test_what_the_servers_keep_is_readable_by_its_owner_alone(served: Served) -> None:
    folders = [served.root / "stack", served.root / "prefect", served.root / "prefect-worker"]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"credentials.json", "mlflow-auth.ini", "mlflow-users.db", "state.json", "prefect.db"} <= names
    assert {"prefect.log", "mlflow.log", "worker-light.log", "worker-local.log"} <= names
    assert [f"{path} {path.stat().st_mode:o}" for path in folders if path.stat().st_mode & 0o077] == []
    own_files = [path for path in files if path.is_relative_to(folders[0]) or path.suffix == ".db"]
    own_files.append(served.root / "mlflow.db")
    assert [f"{path} {path.stat().st_mode:o}" for path in own_files if path.stat().st_mode & 0o077] == []


@pytest.mark.parametrize(
    "chosen", [{"command": "touch x"}, {"env": {"A": "b"}}, {"working_dir": "/tmp"}, {"anything": 1}]
)
def test_nobody_chooses_the_command_the_environment_or_the_folder_of_a_job(
    served: Served, chosen: dict[str, Any]
) -> None:
    deployment = served.api("GET", "/deployments/name/corpus/atelier")
    status, text = post(served, f"/deployments/{deployment['id']}/create_flow_run", {"job_variables": chosen})
    assert (status, "Additional properties are not allowed" in text) == (422, True), text
    more = {"name": "mine", "flow_id": deployment["flow_id"], "work_pool_name": "light"}
    status, text = post(served, "/deployments/", more | {"job_variables": chosen})
    assert (status, "Additional properties are not allowed" in text) == (422, True), text


def test_a_job_that_prefect_takes_with_a_command_of_its_own_does_not_run_it(
    served: Served, tmp_path: Path
) -> None:
    """Prefect checks job variables in two of the four places that take them; the pool uses none."""
    deployment = served.api("GET", "/deployments/name/corpus/atelier")
    mark = tmp_path / "mark"
    (tmp_path / "sitecustomize.py").write_text(f"open({str(mark)!r}, 'w')")  # run by any Python that sees it
    run = served.api(
        "POST",
        "/flow_runs/",
        {
            "flow_id": deployment["flow_id"],
            "deployment_id": deployment["id"],
            "work_pool_name": "light",
            "parameters": {"overrides": ["train.stepz=3"]},
            "job_variables": {"command": f"touch {mark}", "env": {"PYTHONPATH": str(tmp_path)}},
            "state": {"type": "SCHEDULED", "name": "Scheduled"},
        },
    )
    state = served.wait_final(run["id"], 120)
    assert (
        state["type"] == "FAILED" and "the flow corpus has no train" in state["message"] and not mark.exists()
    )


def post(served: Served, path: str, body: Any, method: str = "POST") -> tuple[int, str]:
    """Signed in as it should be; status and text of the answer."""
    token = served.api("GET", "/csrf-token?client=tests")["token"]
    csrf = {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": "tests"}
    status, _, text = ask(served.prefect, f"/api{path}", method, body, **own(served), **csrf)
    return status, text.decode()


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("train_steps", -5, "less than the minimum of 0"),
        ("train_steps", "many", "not valid"),
        ("optim_lr", 7, "greater than the maximum of 1"),
        ("model", "gpt_nan", "is not one of ['auto'"),
        ("pool", "here", "is not one of"),
        ("overrides", [3], "is not of type 'string'"),
        ("code", "HEAD", "does not match"),
    ],
)
def test_the_form_refuses_what_no_run_takes(served: Served, field: str, value: Any, says: str) -> None:
    deployment = served.api("GET", "/deployments/name/pretrain/atelier")["id"]
    given = {"advanced": {field: value}} if field in ("overrides", "code") else {field: value}
    status, text = post(served, f"/deployments/{deployment}/create_flow_run", {"parameters": given})
    assert status == 409 and field in text and says in text, text


def test_a_pool_that_nobody_serves_and_a_wrong_password_are_one_line_each(served: Served) -> None:
    line = "pool: no worker serves the pool 'local_b'; start one: atelier worker local_b\n"
    refused = served.atelier("pretrain", "experiment=tiny", "pool=local_b")
    assert (refused.returncode, refused.stderr) == (2, line)
    command = [sys.executable, "-m", "atelier", "pretrain", "experiment=tiny", "pool=local"]
    locked = served.environment | {"PREFECT_API_AUTH_STRING": "atelier:wrong"}
    done = subprocess.run(command, env=locked, cwd=TOP, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert (
        f"{served.prefect}/api does not accept the user and password; `atelier status --env`" in done.stderr
    )


HOSTILE = [
    "data.source=${oc.env:AWS_SECRET_ACCESS_KEY}",
    "data.source=$\\{oc.env\\:AWS_SECRET_ACCESS_KEY\\}",
    "model._target_=os.system",
    "hydra.searchpath=[file:///tmp]",
    "train.steps=-5",
    "data=../../etc/passwd",
]
AT_ONCE = 3  # runs: more starve each other on two cores, and one without a heartbeat for a minute is crashed


def test_a_run_refuses_what_the_server_was_told_not_to_look_at(served: Served) -> None:
    deployment = served.api("GET", "/deployments/name/pretrain/atelier")["id"]
    status, _ = post(served, f"/deployments/{deployment}", {"enforce_parameter_schema": False}, "PATCH")
    assert status == 204
    try:
        wishes: list[dict[str, Any]] = [{"overrides": [text]} for text in HOSTILE]
        wishes += [{"train_steps": -5}, {"code": "HEAD"}, {"code": "0" * 32}, {"model": ["gpt_nano"]}]
        runs: list[str] = []
        for first in range(0, len(wishes), AT_ONCE):
            some = [(submitted(served, "pretrain", **wish), wish) for wish in wishes[first : first + AT_ONCE]]
            runs += [run for run, _ in some]
            for run, wish in some:
                state = served.wait_final(run, 180)
                [key] = wish
                assert state["type"] == "FAILED", (wish, state["message"], state)
                place = key.replace("_", ".") if key != "overrides" else wish[key][0].split("=")[0]
                assert f"{place}:" in state["message"], (wish, state)
                assert "Traceback" not in state["message"] and len(state["message"].splitlines()) == 1
    finally:
        post(served, f"/deployments/{deployment}", {"enforce_parameter_schema": True}, "PATCH")
    told = logs_of(served, runs)
    assert [text for one in told if PLANTED in (text := json.dumps(one))] == []


def submitted(served: Served, flow: str, **parameters: Any) -> str:
    """The run's id, as a client of Prefect gets it: while its database is locked, the server answers 503 and
    clients ask again.
    """

    def ask_again() -> str:
        try:
            return served.submit(flow, **parameters)
        except HTTPError as error:
            if error.code != 503:
                raise
            return ""

    return wait_for(ask_again, 60, "the server's database")


def logs_of(served: Served, runs: list[str]) -> list[Any]:
    """All that Prefect was told of these runs, once it was told something of each."""

    def told() -> list[Any]:
        found = served.api("POST", "/logs/filter", {"logs": {"flow_run_id": {"any_": runs}}})
        return found if {one["flow_run_id"] for one in found} == set(runs) else []

    states = [served.api("GET", f"/flow_runs/{run}") for run in runs]
    return [*wait_for(told, 60, "the logs"), *states]


def test_code_with_one_wrong_byte_is_not_unpacked(served: Served) -> None:
    folder = served.root / "code"
    first = freeze(str(served.root))
    packed = bytearray(with_one_more_file((folder / f"{first}.tar.gz").read_bytes()))
    digest = hashlib.sha256(packed).hexdigest()[:32]
    packed[len(packed) // 2] ^= 1
    (folder / f"{digest}.tar.gz").write_bytes(packed)
    state = served.wait_final(submitted(served, "corpus", code=digest), 120)
    assert state["type"] == "FAILED"
    assert f"{digest}.tar.gz: its content does not match its digest" in state["message"]
    assert not (Path.home() / ".cache" / "atelier" / "code" / digest).exists()


def with_one_more_file(packed: bytes) -> bytes:
    """Code of another digest than that of the workers."""
    raw = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as old,
        tarfile.open(fileobj=raw, mode="w") as new,
    ):
        for member in old.getmembers():
            new.addfile(member, old.extractfile(member))
        new.addfile(tarfile.TarInfo("conf/one_more.yaml"))
    return gzip.compress(raw.getvalue())
