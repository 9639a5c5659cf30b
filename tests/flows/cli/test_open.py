"""`atelier open` prints the address of a page that answers, and opens it where there is a browser."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from atelier.flows.cli.main import run
from atelier.infra.store.run_manifest import RunManifest, write_manifest
from atelier.infra.store.store import Store
from tests.infra.records import Family, family

ID = "20261201-100000-aaaaaa"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Family:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    return family(tmp_path)


@pytest.fixture
def pages() -> Iterator[str]:
    """A server that answers everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def run_with(store: Store, **links: str) -> None:
    write_manifest(store, RunManifest(id=ID, flow="pretrain", status="finished", links=links))


def test_the_page_of_a_run_is_opened_in_the_users_browser_and_printed(
    made: Family,
    pages: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    run_with(made.shelf.store, **{"prefect.url": f"{pages}/v2/runs/flow-run/1"})
    assert run(["open", ID]) == 0
    assert capfd.readouterr().out == f"{pages}/v2/runs/flow-run/1\n"
    assert (tmp_path / "opened").read_text() == f"{pages}/v2/runs/flow-run/1\n"


def test_without_a_browser_the_address_is_printed(
    made: Family, pages: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_with(made.shelf.store, **{"mlflow.flow": f"{pages}/#/experiments/1/runs/2"})
    assert run(["open", ID]) == 0
    out, err = capsys.readouterr()
    assert out == f"{pages}/#/experiments/1/runs/2\n" and "no browser opens here" in err
    assert run(["open", ID, "--json"]) == 0
    url = f"{pages}/#/experiments/1/runs/2"
    assert json.loads(capsys.readouterr().out) == {
        "what": "run",
        "id": ID,
        "pages": {"mlflow": url},
        "url": url,
    }


@pytest.mark.parametrize("word", [ID, "student_a"])
def test_without_a_server_it_says_what_to_start(
    made: Family, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_with(made.shelf.store, **{"prefect.url": "http://127.0.0.1:9/v2/runs/flow-run/1"})
    assert run(["open", word]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("has no page here; `atelier up` starts the servers of pages")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["student"], "open: no run is called student, and no model called 'student'"),
        ([ID, "--page", "mlfow"], "open --page: no page 'mlfow'; did you mean mlflow?"),
        ([ID, "--page", "report"], "has no page report here"),
    ],
)
def test_an_unknown_word_or_page_is_refused(
    made: Family, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_with(made.shelf.store)
    assert run(["open", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
