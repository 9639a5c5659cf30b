"""A hub of models and data sets on loopback, with the paths that huggingface_hub asks: branches, commits, the
digests of git and LFS, ranges of files.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE = 1 << 12  # bytes from which a file is kept as LFS keeps it; the real hub's are 10 MB
API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.+))?)?$")
FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)$")


@dataclass
class Repository:
    """`commits`: commit -> its files; `branches`: branch -> commit."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def files(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commit = self.branches.get(revision, revision)
        return (commit, self.commits[commit]) if commit in self.commits else None


class Hub(ThreadingHTTPServer):
    """`status`: what everything is answered with, 0 = as it is. `asked`: paths that were asked for; `sent`:
    bytes of files that were sent; `only`: the token that is asked for, if any.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Desk)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, Repository] = {}
        self.status, self.only, self.sent, self.asked = 0, "", 0, list[str]()
        self.says: dict[bytes, str] = {}  # content -> digest that is said of it, of what is not as it is said

    def says_of(self, data: bytes) -> str:
        """The digest of a file: LFS's of a large one, git's of any other."""
        if data in self.says:
            return self.says[data]
        if len(data) >= LARGE:
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()

    def commit(self, repository: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Put a commit on a branch of `datasets/owner/name` or `models/owner/name`; returns its id."""
        there = self.repositories.setdefault(repository, Repository())
        name = hashlib.sha1(f"{len(there.commits)} {sorted(files.items())}".encode()).hexdigest()
        there.commits[name], there.branches[branch] = dict(files), name
        return name


class _Desk(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        raw = urlsplit(self.path).path  # a branch may have a quoted slash in it
        self.server.asked.append(path)
        if self.server.status:
            return self._answer(self.server.status, b"no")
        if self.server.only and self.headers.get("Authorization") != f"Bearer {self.server.only}":
            return self._answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        if found := API.match(raw):
            return self._api(*(unquote(part or "") for part in found.groups()))
        if found := FILE.match(raw):
            return self._file(*(unquote(part or "") for part in found.groups()))
        return self._answer(404, b"")

    do_HEAD = do_POST = do_GET

    def _at(self, repository: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        there = self.server.repositories.get(repository)
        if there is None:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
            return None
        if (found := there.files(revision or "main")) is None:
            self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        return found

    def _api(self, kind: str, name: str, what: str, revision: str, folder: str) -> None:
        found = self._at(f"{kind}/{name}", revision)
        if found is None:
            return
        commit, files = found
        if what != "tree":
            siblings = [{"rfilename": path} for path in sorted(files)]
            return self._json({"id": name, "sha": commit, "siblings": siblings, "private": False})
        if folder in files or (folder and not any(path.startswith(f"{folder}/") for path in files)):
            return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        deep = "recursive=true" in self.path.lower()
        self._json(list(_tree(self.server, files, f"{folder}/" if folder else "", deep)))

    def _file(self, kind: str, name: str, revision: str, path: str) -> None:
        found = self._at(f"{'datasets' if kind else 'models'}/{name}", revision)
        if found is None:
            return
        commit, files = found
        if path not in files:
            return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        data, status, more = (
            files[path],
            200,
            {"X-Repo-Commit": commit, "ETag": f'"{self.server.says_of(files[path])}"'},
        )
        if wanted := re.match(r"bytes=(\d+)-(\d*)$", self.headers.get("Range", "")):
            first, last = int(wanted[1]), int(wanted[2] or len(data) - 1)
            if first >= len(data):
                return self._answer(416, b"")
            more["Content-Range"] = f"bytes {first}-{min(last, len(data) - 1)}/{len(data)}"
            data, status = data[first : last + 1], 206
        self.server.sent += len(data) if self.command == "GET" else 0
        self._answer(status, data, more)

    def _json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, data: bytes, more: dict[str, str] | None = None) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(status)
        for key, value in {**(more or {}), "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def _tree(hub: Hub, files: dict[str, bytes], folder: str, deep: bool) -> Iterator[dict[str, object]]:
    seen = set[str]()
    for path, data in sorted(files.items()):
        if not path.startswith(folder):
            continue
        parts = path.removeprefix(folder).split("/")
        for depth in range(1, len(parts) if deep else min(2, len(parts))):
            name = folder + "/".join(parts[:depth])
            if name not in seen:
                seen.add(name)
                yield {
                    "type": "directory",
                    "oid": hashlib.sha1(name.encode()).hexdigest(),
                    "size": 0,
                    "path": name,
                }
        if deep or len(parts) == 1:
            about: dict[str, object] = {
                "type": "file",
                "size": len(data),
                "path": path,
                "oid": hub.says_of(data),
            }
            if len(data) >= LARGE:
                pointer = hashlib.sha1(hub.says_of(data).encode()).hexdigest()
                about |= {
                    "oid": pointer,
                    "lfs": {"oid": hub.says_of(data), "size": len(data), "pointerSize": 134},
                }
            yield about


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
