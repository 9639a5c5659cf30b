"""Artifacts as a gang sees them: read verified inputs, write an output's files and body.json. The task
publishes them with a record. Torch-free.
"""

import fcntl
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from atelier.engine.config.base import Json
from atelier.engine.config.document import MOST_BYTES, parse_lines
from atelier.engine.config.record import FileEntry, Record
from atelier.engine.io.storage import (
    Part,
    copy_file,
    fetch,
    is_local,
    join,
    local_path,
    make_folder,
    put_file,
    put_parts,
    read_bytes,
    read_object,
    sync_folder,
    verify,
    writing,
)

BODY = "body.json"
VERIFIED = "verified"  # folder of stamps in scratch


@dataclass(frozen=True)
class ArtifactInput:
    """A finished artifact: its record and the URL of its files."""

    url: str
    record: Record

    def entry(self, name: str) -> FileEntry:
        """The entry of the file `name` (its last path part, or its path below the payload folder).

        Raises FileNotFoundError if the record has none.
        """
        for entry in self.record.files:
            if entry.path == name or entry.path.split("/", 1)[-1] == name:
                return entry
        raise FileNotFoundError(f"{self.url}: no file {name} in its record")

    def names(self) -> list[str]:
        """The paths of its files below the payload folder."""
        return [entry.path.split("/", 1)[-1] for entry in self.record.files]

    def file(self, name: str, scratch: Path) -> Path:
        """A verified local path of a file: in place for a local store, otherwise a copy in `scratch`. Of
        processes with one scratch folder, such as a gang's ranks on a node, one reads it to verify it.
        """
        entry = self.entry(name)
        url = join(self.url, entry.path)
        if is_local(url):
            _verify_once(local_path(url), entry, scratch)
            return local_path(url)
        target = scratch / self.record.fingerprint[:16] / entry.path
        with _turn(scratch, url):
            if not target.exists():  # verify the fetched copy itself
                fresh = target.with_name(f".{uuid.uuid4().hex[:8]}")
                fetch(url, fresh)
                verify(str(fresh), entry, url)
                fresh.replace(target)
        return target

    def json(self, name: str, scratch: Path) -> dict[str, Json]:
        """The JSON object in a file."""
        return read_object(str(self.file(name, scratch)))

    def lines(self, name: str, scratch: Path) -> list[dict[str, Json]]:
        """The objects of a file with one object per line."""
        path = str(self.file(name, scratch))
        return parse_lines(read_bytes(path), path)


def _verify_once(path: Path, entry: FileEntry, scratch: Path) -> None:
    """`verify`, unless a process with this scratch folder did since the file was last changed. Raises
    DamageError for a damaged or missing file.
    """
    try:
        state = path.stat()
    except OSError:
        verify(str(path), entry)  # says what is wrong
        return
    seen = (
        str(path),
        entry.sha256,
        state.st_dev,
        state.st_ino,
        state.st_size,
        state.st_mtime_ns,
        state.st_ctime_ns,
    )
    stamp = scratch / VERIFIED / hashlib.sha256(repr(seen).encode()).hexdigest()
    if stamp.exists():
        return
    with _turn(scratch, str(path)):
        if not stamp.exists():
            verify(str(path), entry)
            stamp.touch()


@contextmanager
def _turn(scratch: Path, what: str) -> Iterator[None]:
    """Let one process with this scratch folder after another do something."""
    folder = scratch / VERIFIED
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{hashlib.sha256(what.encode()).hexdigest()[:16]}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # it ends with the file, or with the process
        yield


def open_input(url: str) -> ArtifactInput:
    """Read and check the record at `url`."""
    place = join(url, "record.json")
    return ArtifactInput(url=url.rstrip("/"), record=Record.read(read_bytes(place, MOST_BYTES), place))


class ArtifactOutput:
    """The files of one output: `add` each, then `close` with the summary. body.json is written last and lists
    the digests.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._entries: list[FileEntry] = []
        self._after: list[Callable[[], None]] = []

    def when_closed(self, act: Callable[[], None]) -> None:
        """Call `act` once after the output is complete."""
        if act not in self._after:
            self._after.append(act)

    def add(self, name: str, local: Path) -> None:
        """Copy a local file to the output as `name`."""
        entry = put_file(local, join(self.url, name))
        self._entries.append(entry.model_copy(update={"path": name}))

    def link(self, name: str, url: str, entry: FileEntry) -> None:
        """Add a file of the same store, of this size and digest. The original stays."""
        target = join(self.url, name)
        if not is_local(url):
            copy_file(url, target)
        else:
            make_folder(local_path(target).parent)
            try:
                os.link(local_path(url), local_path(target))
                sync_folder(local_path(target).parent)
            except OSError:  # no links in this file system
                put_file(local_path(url), target)
        self._entries.append(entry.model_copy(update={"path": name}))

    def add_bytes(self, name: str, data: bytes) -> None:
        with writing(join(self.url, name)) as file:
            file.write(data)
        self._entries.append(FileEntry(path=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest()))

    def add_parts(self, name: str, parts: Iterable[Part]) -> None:
        """Add a file made of these parts, written and hashed one by one."""
        entry = put_parts(join(self.url, name), parts)
        self._entries.append(entry.model_copy(update={"path": name}))

    def add_json(self, name: str, document: Json) -> None:
        self.add_bytes(
            name, (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
        )

    def close(self, summary: Mapping[str, Json]) -> None:
        """Write body.json: entries of the files, and the summary."""
        body = {"files": [entry.model_dump() for entry in self._entries], "summary": summary}
        with writing(join(self.url, BODY)) as file:
            file.write(json.dumps(body, indent=1, sort_keys=True, ensure_ascii=False).encode())
        for act in self._after:
            act()
