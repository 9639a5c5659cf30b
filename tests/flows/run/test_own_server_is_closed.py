"""The Prefect server of a plain run is closed to other users of the machine and to pages of other sites."""

import base64
import http.client
import json
import os
import pickle
import re
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import prefect
import pytest
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from atelier.engine.config.error import AtelierError
from atelier.flows.run import embedded_server
from atelier.flows.run.embedded_server import EmbeddedServer, others_environment
from atelier.infra.launch.supervisor import passed
from atelier.infra.stack.prefect_results import refuse_results
from tests.checkout import TOP
from tests.prefect_server import started

pytestmark = pytest.mark.slow  # Prefect's server takes 7 s and more to start
EVIL = "http://evil.example"
FLOW: Any = prefect.flow  # its types ask for a decorator


def nothing() -> None: ...


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    one = started(tmp_path_factory.mktemp("prefect"))
    with temporary_settings({PREFECT_API_URL: one.url, PREFECT_API_AUTH_STRING: one.login}):
        yield one
    one.close()


@pytest.fixture(scope="module")
def flow_run(server: EmbeddedServer) -> str:
    with get_client(sync_client=True) as client:
        return str(client.create_flow_run(FLOW(nothing, name="seen")).id)


def ask(server: EmbeddedServer, method: str, path: str, **headers: str) -> tuple[int, str]:
    """One request with these headers: status, and which pages may read the answer."""
    address = urlsplit(server.url).netloc
    with closing(http.client.HTTPConnection(address, timeout=60)) as link:
        body = b"{}" if method == "POST" else None
        link.request(method, path, body, {"Content-Type": "application/json", "Host": address} | headers)
        answer = link.getresponse()
        answer.read()
        return answer.status, answer.headers.get("access-control-allow-origin", "")


def test_who_has_no_password_reads_cancels_and_deletes_nothing(server: EmbeddedServer, flow_run: str) -> None:
    attacks = [
        ("POST", "/api/flow_runs/filter"), ("GET", f"/api/flow_runs/{flow_run}"),
        ("POST", f"/api/flow_runs/{flow_run}/set_state"), ("DELETE", f"/api/flow_runs/{flow_run}"),
        ("GET", "/api/admin/settings"), ("POST", "/api/admin/database/clear"),
    ]  # fmt: skip
    assert [ask(server, *each)[0] for each in attacks] == [401] * len(attacks)
    with get_client(sync_client=True) as client:
        assert [str(run.id) for run in client.read_flow_runs()] == [flow_run]


def test_the_paths_without_the_password_are_those_that_the_page_names(server: EmbeddedServer) -> None:
    address = urlsplit(server.url).netloc
    with closing(http.client.HTTPConnection(address, timeout=60)) as link:  # one: there are many paths

        def answer(method: str, path: str) -> tuple[int, bytes]:
            link.request(method, path, None, {"Content-Type": "application/json"})
            found = link.getresponse()
            return found.status, found.read()

        described = json.loads(answer("GET", "/openapi.json")[1])["paths"]
        paths = {f"/api{re.sub(r'{[^}]*}', 'x', path)}": next(iter(each)) for path, each in described.items()}
        opened = {path for path, method in paths.items() if answer(method.upper(), path)[0] != 401}
        opened |= {path for path in ("/docs", "/redoc", "/openapi.json") if answer("GET", path)[0] == 200}
    page = (TOP / "docs/operate/security.md").read_text()
    assert len(paths) > 100 and opened >= {"/api/health", "/api/ready"}
    assert [path for path in opened if f"`{path}`" not in page] == []


def test_a_page_of_another_site_and_a_foreign_name_are_refused(server: EmbeddedServer) -> None:
    port = urlsplit(server.url).port
    for headers in ({"Origin": EVIL}, {"Origin": "null"}, {"Host": f"evil.example:{port}"}, {"Host": ""}):
        assert ask(server, "GET", "/api/health", **headers) == (403, ""), headers
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        assert ask(server, "GET", "/api/health", Host=host)[0] == 200


def test_the_password_is_in_no_command_line_no_file_and_no_gang(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = server.login.partition(":")[2]
    command = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
    files = [path for path in server.home.rglob("*") if path.is_file()]
    assert secret.encode() not in command and len(files) > 2
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert [f"{path} {path.stat().st_mode:o}" for path in files if path.stat().st_mode & 0o077] == []
    monkeypatch.setattr(embedded_server, "_started", [server])
    for key, value in server.client().items():
        monkeypatch.setenv(key, value)
    assert secret in os.environ["PREFECT_API_AUTH_STRING"]
    for root in ("/store", "s3://bucket/store"):
        assert secret not in str(passed(root, reads=("hf", "s3", "http")))
    assert secret not in str(others_environment()) and "PATH" in others_environment()


class Planted:
    """Its pickle makes a file where it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_a_forged_state_has_no_pickle_loaded(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write states has a run completed before it begins, and names a file as its result."""
    monkeypatch.setattr(prefect.states, "RESULT_READ_RETRY_DELAY", 0.0)
    mark, planted = tmp_path / "loaded", tmp_path / "result"
    pickled = base64.b64encode(pickle.dumps(Planted(mark))).decode()
    metadata = {"storage_key": str(planted), "serializer": {"type": "pickle"}, "prefect_version": "3.0.0"}
    planted.write_text(json.dumps({"metadata": metadata, "result": pickled}))

    def forge() -> str:
        context = FlowRunContext.get()
        assert context is not None and context.flow_run is not None
        body = {"state": {"type": "COMPLETED", "data": metadata}, "force": True}
        with get_client(sync_client=True) as client:
            route = "/flow_runs/{id}/set_state"
            client.request("POST", route, path_params={"id": context.flow_run.id}, json=body)
        return "forged"

    refuse_results()
    flow = FLOW(nothing, name="forged", flow_run_name=forge, persist_result=False)
    with pytest.raises(AtelierError, match="which are never opened"):
        flow()
    assert not mark.exists()


def test_a_forged_state_has_no_module_imported(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect's client imports the library of the pickles when it reads the run, whoever named it."""
    mark, named = tmp_path / "imported", "planted_serializer"
    lines = (
        f"import pathlib; pathlib.Path({str(mark)!r}).touch()",
        "dumps = loads = compress = decompress = len",
    )
    (tmp_path / f"{named}.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    refuse_results()
    inner = {"type": "pickle", "picklelib": named}
    with get_client(sync_client=True) as client:
        for serializer in (
            inner,
            {"type": "compressed", "compressionlib": named, "serializer": {"type": "json"}},
            {"type": "compressed/pickle", "serializer": inner},
            {"type": ["pickle"], "picklelib": named},
        ):
            run = client.create_flow_run(FLOW(nothing, name="forged", persist_result=False))
            data = {"storage_key": "a", "serializer": serializer}
            body = {"state": {"type": "COMPLETED", "data": data}, "force": True}
            route = "/flow_runs/{id}/set_state"
            client.request("POST", route, path_params={"id": run.id}, json=body)
            assert client.read_flow_run(run.id).state_name == "Completed"
            [state] = [one for one in client.read_flow_run_states(run.id) if one.is_completed()]
            with pytest.raises(AtelierError, match="which are never opened"):
                state.result(retry_result_failure=False)
            assert not mark.exists() and named not in sys.modules, serializer
