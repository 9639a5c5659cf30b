"""Secrets and settings of the stack: private, random, and only those that each process needs."""

import asyncio
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prefect.workers.process import ProcessJobConfiguration

from atelier.engine.config.error import ConfigError
from atelier.infra.stack import service, settings
from atelier.infra.stack.deployments import TEMPLATE
from atelier.infra.stack.service import Service
from atelier.infra.stack.settings import (
    Addresses,
    Credentials,
    check_binding,
    stack_folder,
    write_private,
)
from tests.flow.served import wait_for

MADE = Credentials(user="atelier", password="planted-p", flask_key="planted-f")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask() -> object:
    before = os.umask(0)
    yield
    os.umask(before)


def test_credentials_are_random_for_each_store_and_stay(tmp_path: Path) -> None:
    one, other = Credentials.of(tmp_path / "one"), Credentials.of(tmp_path / "other")
    assert len({one.password, one.flask_key, other.password, other.flask_key}) == 4
    assert min(len(text) for text in (one.password, one.flask_key)) >= 32
    assert Credentials.of(tmp_path / "one") == one


def test_only_their_owner_reads_them_whatever_the_umask(tmp_path: Path, open_umask: None) -> None:
    folder = tmp_path / "stack"
    folder.mkdir(mode=0o777)  # one that was there before
    Credentials.of(folder)
    settings.mlflow_server(folder, MADE)
    assert mode(folder) == 0o700
    assert {path.name: mode(path) for path in folder.iterdir()} == {
        "credentials.json": 0o600,
        "mlflow-auth.ini": 0o600,
    }


def test_credentials_that_others_can_read_are_closed(tmp_path: Path) -> None:
    made = Credentials.of(tmp_path / "stack")
    (tmp_path / "stack" / "credentials.json").chmod(0o644)
    assert Credentials.of(tmp_path / "stack") == made
    assert mode(tmp_path / "stack" / "credentials.json") == 0o600


def test_a_port_that_a_server_of_a_deleted_store_holds_is_named_with_its_process() -> None:
    serve = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[2]))); print(flush=True);"
        " sys.stdin.read()"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-c", serve, "atelier.infra.stack.prefect_server", str(port)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdout.readline()
        with pytest.raises(ConfigError, match=rf"process {server.pid}, a server that .*kill {server.pid}"):
            service.check_port("prefect", port)
        server.stdin.close()


def test_a_private_file_is_never_readable_by_others_not_even_for_a_moment(
    tmp_path: Path, open_umask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    replace = os.replace

    def looked_at(fresh: Path, path: Path) -> None:
        seen.append(mode(fresh))
        replace(fresh, path)

    monkeypatch.setattr(os, "replace", looked_at)
    for text in ("one", "two"):
        write_private(tmp_path / "file", text)
    assert seen == [0o600, 0o600] and (tmp_path / "file").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_service_and_its_log_are_private_also_over_an_old_log(tmp_path: Path, open_umask: None) -> None:
    (tmp_path / "some.log").touch(mode=0o666)
    writes = f"import pathlib; pathlib.Path({str(tmp_path / 'made')!r}).touch()"
    some = Service(name="some", arguments=("timeit", "-n1", "-r1", writes), environment={}, umask=0o077)
    entry = service.start(some, tmp_path)
    wait_for(lambda: not service.is_running(entry), 60, "its end")
    assert not service.is_running(entry)  # asked again, it has been reaped
    assert mode(tmp_path / "some.log") == mode(tmp_path / "made") == 0o600


def test_a_store_of_another_machine_keeps_its_stack_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert stack_folder(str(tmp_path / "store")) == tmp_path / "store" / "stack"
    assert stack_folder("memory://store").is_relative_to(tmp_path / ".cache" / "atelier" / "stack")


def test_servers_and_workers_inherit_no_settings_of_other_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_KEY", "planted")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "planted")
    assert "planted" not in settings.clean_environment().values()


def test_a_worker_gets_the_clients_credentials_and_no_servers_secret(tmp_path: Path) -> None:
    client = Addresses(prefect="http://127.0.0.1:1", mlflow="http://127.0.0.1:2").client(MADE)
    environment = settings.worker(str(tmp_path), client)
    assert environment["PREFECT_API_AUTH_STRING"] == "atelier:planted-p"
    assert "planted-f" not in environment.values()
    assert not any(key.startswith("PREFECT_SERVER_API") for key in environment)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.example.org"])
def test_an_address_beyond_this_machine_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="can be reached by others"):
        check_binding(host)


def test_a_job_takes_nothing_from_whoever_starts_it() -> None:
    """Prefect's server checks job variables in some places only; a pool that uses none needs no check."""
    wish = {
        "command": "touch x",
        "env": {"A": "b"},
        "env.B": "c",
        "working_dir": "/tmp",
        "stream_output": False,
        "name": "x",
    }
    nobody: Any = object()  # a client, which is asked for what the template refers to: nothing
    make = ProcessJobConfiguration.from_template_and_values
    made = asyncio.run(make(TEMPLATE, wish, client=nobody))
    assert made == asyncio.run(make(TEMPLATE, {}, client=nobody))
    assert (
        made.command == "python -m atelier.infra.stack.flow_process"
        and made.env == {}
        and made.working_dir is None
        and made.stream_output
    )
