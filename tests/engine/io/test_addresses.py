"""Addresses that a form may name."""

import http.server
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.data import Source
from atelier.engine.config.error import ConfigError
from atelier.engine.io.addresses import NAMED, check_address, is_allowed, is_public, with_hosts, written
from atelier.engine.io.source_files import files_of
from atelier.flows.run.compose import compose
from atelier.infra.launch.supervisor import passed
from atelier.infra.stack.settings import worker
from atelier.infra.store.source_contents import contents_of
from atelier.infra.tracking.address import check_form_uri
from tests.checkout import TOP

SECRET = b"aws_secret_access_key = planted"


class Inside(http.server.BaseHTTPRequestHandler):
    """A service of this machine: every file is the secret, but those that lead elsewhere."""

    asked: list[str]
    elsewhere = ""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        is_moved = "moved" in self.path
        self.send_response(302 if is_moved else 200)
        if is_moved:
            self.send_header("Location", self.elsewhere)
        self.send_header("Content-Length", "0" if is_moved else str(len(SECRET)))
        self.send_header("ETag", "1")
        self.end_headers()
        if self.command == "GET" and not is_moved:
            self.wfile.write(SECRET)

    def log_message(self, *_: Any) -> None: ...


Servers = tuple[type[Inside], int, int]


@pytest.fixture(scope="module")
def ports() -> Iterator[Servers]:
    """A service and another; both by one handler."""
    found = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Inside) for _ in range(2)]
    for each in found:
        threading.Thread(target=each.serve_forever, args=(0.05,), daemon=True).start()
    one, other = (each.server_address[1] for each in found)
    Inside.elsewhere = f"http://127.0.0.1:{other}/creds.txt"
    yield Inside, one, other
    for each in found:
        each.shutdown()
        each.server_close()


@pytest.fixture(autouse=True)
def asked(ports: Servers) -> list[str]:
    ports[0].asked = []
    return ports[0].asked


def read(url: str) -> list[tuple[str, str]]:
    return contents_of(files_of(Source(source=url)))


def test_an_address_whose_query_has_an_ending_is_no_file_of_text(ports: Servers, asked: list[str]) -> None:
    for tail in ("?x=.txt", "#.txt", "?a#.txt"):
        with pytest.raises(ConfigError, match="is not a text file"):
            read(f"http://127.0.0.1:{ports[1]}/creds{tail}")
    assert read(f"http://127.0.0.1:{ports[1]}/creds.txt")


def test_a_form_reads_nothing_of_this_machine_however_it_is_written(
    ports: Servers, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAMED, "")
    hosts = [
        "127.0.0.1",
        "localhost",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "[::ffff:127.0.0.1]",
    ]
    for host in hosts:
        with pytest.raises(ConfigError, match=NAMED if host in ("127.0.0.1", "localhost") else None):
            read(f"http://{host}:{ports[1]}/creds.txt")
        with pytest.raises(ConfigError):
            read(f"simplecache::http://{host}:{ports[1]}/creds.txt")
    assert asked == []


def test_a_form_is_led_to_nothing_of_this_machine_by_a_redirect_or_a_name(
    ports: Servers, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = socket.getaddrinfo

    def rebound(name: Any, *more: Any, **named: Any) -> Any:
        return found("127.0.0.1" if name == "public.example" else name, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", rebound)
    monkeypatch.setenv(NAMED, f"127.0.0.1:{ports[1]}")
    with pytest.raises(ConfigError, match=NAMED):
        read(f"http://127.0.0.1:{ports[1]}/moved.txt")
    with pytest.raises(ConfigError, match=NAMED):
        read(f"http://public.example:{ports[2]}/creds.txt")
    assert set(asked) == {"/moved.txt"}
    assert read(f"http://127.0.0.1:{ports[1]}/creds.txt"), "what the operator names is read"


def test_addresses_of_no_open_network_are_not_public() -> None:
    closed = ["127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
              "0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fd00::1", "ff02::1",
              "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "198.18.0.1", "240.0.0.1",
              "fec0::1", "feff::1", "3fff::1", "168.63.129.16", "::ffff:168.63.129.16", "192.0.0.192",
              "192.88.99.1", "2002:a83f:8110::"]  # fmt: skip
    assert [each for each in closed if is_public(each)] == []
    assert is_public("93.184.216.34") and is_public("2606:2800:220:1::1") and is_public("64:ff9b::5db8:d822")


def test_an_address_of_this_machine_itself_is_not_public() -> None:
    """In a network of its own that has a public address, and where any address may be bound."""
    ask = (
        "from atelier.engine.io.addresses import is_public\nfor a in ('8.8.4.4', '8.8.8.8', '2606:4700::1'):"
    )
    ask += " print(is_public(a))"
    bound = "echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind; "
    for before, expected in (("", "False True False"), (bound, "True True False")):
        up = "ip link set lo up; ip addr add 8.8.4.4/32 dev lo; ip addr add 2606:4700::1/128 dev lo; "
        command = ["unshare", "-rn", "sh", "-ec", f'{up}{before}exec "$@"', "sh", sys.executable, "-c", ask]
        found = subprocess.run(command, cwd=TOP, capture_output=True, text=True)
        if found.returncode and not found.stdout:
            pytest.skip(f"no network of its own can be made here: {found.stderr[-200:]}")
        assert found.stdout.split() == expected.split()


def test_the_operator_names_hosts_networks_and_ports() -> None:
    names = {"data.internal": ["10.0.0.5", "10.0.0.6"]}.get
    named = "data.internal:8080, 10.1.0.0/16 [fd00::1]:90,fd00::2"
    for address, port, right in (
        ("10.0.0.6", 8080, True), ("10.0.0.6", 80, False), ("10.1.9.9", 1, True), ("10.2.0.1", 1, False),
        ("fd00::1", 90, True), ("fd00::1", 91, False), ("fd00::2", 5, True), ("::ffff:10.1.0.1", 1, True),
    ):  # fmt: skip
        assert is_allowed(address, port, named, lambda name: names(name) or []) == right, (address, port)
    assert not is_allowed("127.0.0.1", 1, "unknown.example,,")
    reads = [
        "/data",
        "http://10.0.0.5/a",
        "https://[fd00::1]/a",
        "http://127.1:8/a",
        "https://data.example/a",
    ]
    assert with_hosts("a.internal", reads) == "a.internal 10.0.0.5:80 [fd00::1]:443 127.0.0.1:8"


def test_a_form_is_told_at_once_what_it_may_not_name() -> None:
    for url in ("http://127.0.0.1/a.txt", "https://localhost./a", "http://user@10.0.0.1:8/a", "ftp://h/a.txt",
                "zip://a.txt::http://[::1]/b.zip", "reference://x", "sftp://h/a", "http:///a", "http://0/a.txt",
                "http://h:99999/a", "http://[1/a", "postgresql://h/db",
                "reference::https://example.org/a.json", "reference::file:///a.json",
                "zip::simplecache::reference::s3://a/b.json", "arrow_hdfs::file:///a"):  # fmt: skip
        with pytest.raises(ConfigError, match=NAMED):
            check_address(url, "data.source", "")
    for url in ("/a/b.txt", "hf://datasets/a/b", "s3://bucket/a", "https://example.org/a.txt", "see http://x",
                "zip://a.txt::https://example.org/b.zip", "sqlite:////a.db", "zip://a.txt::b.zip",
                "simplecache::zip::https://example.org/b.zip", "zip://a.txt::/b/c"):  # fmt: skip
        check_address(url, "data.source", "")
    check_address("ftp://data.internal/a.txt", "data.source", "Data.Internal")
    assert (written("LOCALHOST".lower()), written("1.2"), written("a.example")) == (
        "127.0.0.1",
        "1.0.0.2",
        "",
    )


def test_what_a_form_refuses_the_command_line_takes() -> None:
    words = ["experiment=tiny", "data.source=http://169.254.169.254/latest/a.txt", "tracker=none"]
    with pytest.raises(ConfigError, match=r"source: 169.254.169.254 is not a public address; ATELIER_FORM"):
        compose("corpus", words, from_form=True)
    assert compose("corpus", words)


def test_a_form_names_no_tracker_but_the_stacks_and_those_that_the_operator_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's client follows names and redirects to any address."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    monkeypatch.setenv(NAMED, "10.1.0.0/16 tracker.example:443 data.example:80")

    for uri in ("http://rebound.example:5000", "http://10.0.0.9:5000", "https://93.184.216.34", "sqlite:////a.db",
                "http://data.example:81", "http://127.0.0.1:5001", "postgresql://db/x",
                "http://a:99999"):  # fmt: skip
        with pytest.raises(ConfigError, match=rf"^tracker.uri: .*not the stack's.* leave it out; {NAMED}"):
            check_form_uri(uri, str(tmp_path), ["http://conf.example"])
    for uri in ("", "http://127.0.0.1:5000", "http://localhost:5000/", "https://tracker.example",
                "http://10.1.2.3:1", "http://data.example", "http://conf.example"):  # fmt: skip
        check_form_uri(uri, str(tmp_path), ["http://conf.example"])
    words = ["experiment=tiny", "tracker.uri=http://rebound.example:5000"]
    with pytest.raises(ConfigError, match=rf"^tracker.uri: {words[1][12:]} is not the stack's"):
        compose("corpus", words, from_form=True)
    assert compose("corpus", words).tracker.uri == words[1][12:]


def test_a_forms_run_is_at_one_site() -> None:
    for words in (["sites=[a,b]", "sites.loopback=true"], ["sites.names=[a,b]"]):
        with pytest.raises(ConfigError, match=r"^sites: a form's run is at one site"):
            compose("nebula", ["experiment=tiny", *words], from_form=True)


def test_flows_of_workers_and_their_gangs_check_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAMED, raising=False)
    assert NAMED not in passed("/store") and worker("/store", {})[NAMED] == ""
    monkeypatch.setenv(NAMED, "10.0.0.5")
    assert passed("/store")[NAMED] == worker("/store", {})[NAMED] == "10.0.0.5"
