"""Sources on servers that refuse, hang or give little information: a real server on loopback."""

import gzip
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from atelier.engine.config.data import Source
from atelier.engine.config.error import ConfigError
from atelier.engine.io import source_files
from atelier.engine.io.source_files import content_id, files_of

TEXT = gzip.compress(b"a text about ships\n" * 99)


class Library(ThreadingHTTPServer):
    """Serves TEXT under any name with `etag`, or answers everything with `status`."""

    daemon_threads = True

    def __init__(self) -> None:
        self.status, self.etag, self.text, self.tells_size = 200, "", TEXT, True
        library = self

        class Desk(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(library.status)
                if library.etag:
                    self.send_header("ETag", library.etag)
                if library.tells_size:
                    self.send_header("Content-Length", str(len(library.text)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(library.text)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                """Quiet."""

        super().__init__(("127.0.0.1", 0), Desk)
        self.url = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def library() -> Iterator[Library]:
    server = Library()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_a_server_that_refuses_is_named_with_its_answer(library: Library, status: int) -> None:
    library.status = status
    with pytest.raises(ConfigError, match=rf"data\.source: {library.url}/a\.txt cannot be read .*{status}"):
        files_of(Source(source=f"{library.url}/a.txt"))


def test_what_a_server_does_not_have_does_not_exist(library: Library) -> None:
    library.status = 404
    with pytest.raises(ConfigError, match="does not exist"):
        files_of(Source(source=f"{library.url}/a.txt"))


def test_a_bucket_without_keys_is_named_with_where_keys_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs", reason="s3fs is missing: it is of the extra s3")
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(key, raising=False)
    for key in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(key, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"s3://bucket/x\.txt cannot be read .*credentials.*environment"):
        files_of(Source(source="s3://bucket/x.txt"))


def test_a_file_is_known_by_its_etag_and_without_one_by_its_content(
    library: Library,
) -> None:
    url = f"{library.url}/a.txt.gz"
    library.etag = '"one"'
    assert content_id(url) == f"remote:one:{len(TEXT)}"
    library.etag = ""
    assert content_id(url) == hashlib.sha256(TEXT).hexdigest()
    library.text = TEXT[:-1] + b"x"
    assert content_id(url) == hashlib.sha256(library.text).hexdigest()


@pytest.mark.parametrize("tells_size", [True, False])
def test_a_file_of_which_nothing_is_told_is_not_read_without_end(
    library: Library, tells_size: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_files, "MOST_UNMARKED", len(TEXT) - 1)
    library.tells_size = tells_size
    with pytest.raises(ConfigError, match=r"neither an etag nor a time of change.*copy it"):
        content_id(f"{library.url}/a.txt.gz")


@pytest.mark.parametrize("url", ["http://me:secret@host/x.txt", "filecache::ftp://me:secret@host/x.txt"])
def test_an_address_with_a_password_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError, match="contains a password") as caught:
        files_of(Source(source=url))
    assert "secret" not in str(caught.value)
