"""A folder or bucket, at any fsspec URL, through which agents exchange objects. Each site has
`<URL>/<digits of its certificate>/in/<call>.<block>`, `out/<call>.<block>` and `door`.

Others may write anything there. So only names of the right pattern are read, links are not followed, and
reads are bounded.
"""

import base64
import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem
from pydantic import Field

from atelier.engine.config.base import Spec, canonical
from atelier.engine.config.document import parse_as
from atelier.engine.config.error import AtelierError, ConfigError, DamageError
from atelier.engine.config.record import Digest
from atelier.engine.io import storage
from atelier.engine.io.remote import ask
from atelier.engine.io.storage import filesystem, is_local, join, local_path, write_bytes, writing
from atelier.infra.sites.keys import Card, Keys
from atelier.infra.sites.sealed import LABEL, NotOpened, other_version, verify
from atelier.infra.sites.signature import sign

MOST = 4 << 20  # bytes of the messages in an object
MOST_OBJECT = MOST + (256 << 10)  # with the head and what signing and sealing add
MOST_DOOR = 4096
PRIVATE = 0o700  # mode of a folder that is being made
NAME = re.compile(r"([0-9a-f]{32})\.(\d{1,7})")
DOOR, IN, OUT, SHORT = "door", "in", "out", 32
BEAT_S, DEAD_S = 2.0, 15.0  # seconds between changes of a door; without one for so long an agent is away
LOOK_DOOR_S = 1.0
START = hashlib.sha256(LABEL).hexdigest()[:16]  # prefix of the numbers of starts of this version


class BucketError(AtelierError):
    """The bucket does not answer, or an entry in it is not a file."""


@contextmanager
def _asking(url: str) -> Iterator[None]:
    """Turn all errors of a store into BucketError. Texts of unknown errors are dropped: they may contain a
    signed URL.
    """
    try:
        yield
    except (AtelierError, FileNotFoundError):
        raise
    except OSError as error:
        problem = error.strerror or type(error.__cause__ or error).__name__
        raise BucketError(f"{url}: {problem}") from None
    except Exception as error:  # each kind of store has errors of its own
        raise BucketError(f"{url}: {type(error).__name__}") from None


class Bucket:
    """The folder at `url` of the site with this certificate digest."""

    def __init__(self, url: str, digest: str) -> None:
        self.url = url
        self.place = join(url, digest[:SHORT])

    def _at(self, *parts: str) -> str:
        """The URL of an entry. Raises BucketError if a folder above it is a link."""
        if is_local(self.url):
            for place in (self.place, join(self.place, IN), join(self.place, OUT)):
                if local_path(place).is_symlink():
                    raise BucketError(f"{place}: is a link; remove it, or choose another bucket")
        return join(self.place, *parts) if parts else self.place

    def read(self, *parts: str, most: int = MOST_OBJECT) -> bytes | None:
        """An object; None = there is none. Raises DamageError if it has more than `most` bytes or is not a
        file, and BucketError.
        """
        with _asking(self.url):
            url = self._at(*parts)
            system, path = filesystem(url)
            try:
                if isinstance(system, LocalFileSystem):
                    return _read_local(path, most)
                data: bytes = ask(system, "cat_file", path, start=0, end=most + 1, num_bytes=most)
            except FileNotFoundError:
                return None
        if len(data) > most:
            raise DamageError(f"it has more than {most} bytes")
        return data

    def write(self, data: bytes, *parts: str) -> None:
        """Raises BucketError if the folder of the site is gone: only that site makes it."""
        with _asking(self.url):
            try:
                with writing(self._at(*parts), makes_folder=False) as file:
                    file.write(data)
            except FileNotFoundError:
                raise BucketError(f"{self._at(*parts[:-1])} is gone") from None

    def exists(self, *parts: str) -> bool:
        with _asking(self.url):
            return storage.exists(self._at(*parts))

    def remove(self, *parts: str) -> None:
        """Remove an object, or a link itself."""
        with _asking(self.url):
            url = self._at(*parts)
            if is_local(url) and local_path(url).is_symlink():
                local_path(url).unlink(missing_ok=True)
            elif is_local(url):
                storage.remove(url)
            else:
                with suppress(FileNotFoundError):  # one request; storage.remove would list first
                    system, path = filesystem(url)
                    ask(system, "rm_file", path)

    def clear(self) -> None:
        """Remove everything here, except objects written meanwhile."""
        with _asking(self.url):
            url = self._at()
            if is_local(url):
                shutil.rmtree(local_path(url), ignore_errors=True)
            else:
                storage.remove(url)

    def blocks(self, way: str) -> list[tuple[str, int]]:
        """Calls and numbers of the objects in `in` or `out`; other names are ignored."""
        with _asking(self.url):
            found = [NAME.fullmatch(name) for name in storage.names(self._at(way))]
        return sorted(
            (match[1], int(match[2])) for match in found if match and str(int(match[2])) == match[2]
        )

    def make(self) -> None:
        """Make the folders of a site, with the mode of the bucket's. Raises BucketError if one is a link, or
        not a folder.
        """
        if not is_local(self.url):
            return
        with _asking(self.url), ExitStack() as opened:
            top = os.open(local_path(self.url), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, top)
            mode = stat.S_IMODE(os.fstat(top).st_mode)
            place = _make_local(self._at(), top, mode)
            opened.callback(os.close, place)
            for way in (IN, OUT):
                os.close(_make_local(self._at(way), place, mode))


def _make_local(url: str, parent: int, mode: int) -> int:
    """Open the folder at `url`, in the folder of the descriptor `parent`; returns a descriptor. A missing one
    is made with `mode`, whatever the umask. Another user may replace its path at any time, so the mode is set
    only if it is `PRIVATE`, as of a folder made here.
    """
    name, is_made = local_path(url).name, True
    try:
        os.mkdir(name, PRIVATE, dir_fd=parent)
    except FileExistsError:
        is_made = False
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise BucketError(
                f"{url}: is a link, or not a folder; remove it, or choose another bucket"
            ) from None
        raise
    if is_made and stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o777 == PRIVATE:
        with suppress(PermissionError):
            os.fchmod(descriptor, mode)
    if is_made:
        os.fsync(parent)
    return descriptor


def _read_local(path: str, most: int) -> bytes:
    """Raises DamageError for a link, which may point anywhere."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DamageError("it is a link") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamageError("it is not a file")
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise DamageError(f"it has more than {most} bytes")
    return data


def check_bucket(url: str, place: str) -> None:
    """Raise ConfigError unless objects can be written, read and removed at `url`."""
    out = "check that it is there, that you may write there, and the credentials in the environment"
    try:
        if is_local(url) and not Path(local_path(url)).is_dir():
            raise ConfigError(
                place, f"{url} is not a folder of this machine", "make it with mkdir, or give another"
            )
        probe, data = join(url, f"{storage.TEMPORARY}probe-{os.urandom(8).hex()}"), os.urandom(16)
        with _asking(url):
            write_bytes(probe, data)
            found = storage.read_bytes(probe, len(data))
            storage.remove(probe)
    except FileNotFoundError:
        raise ConfigError(place, f"{url} cannot be reached (no such bucket or folder)", out) from None
    except (BucketError, DamageError) as error:
        problem = str(error).removeprefix(f"{url}: ")
        raise ConfigError(place, f"{url} cannot be written to ({problem})", out) from None
    if found != data:
        raise ConfigError(place, f"{url} gives back other bytes than were written", out)


def new_start() -> str:
    """A number for a start of an agent: the prefix of this version of the exchange, then random digits."""
    return START + secrets.token_hex(8)


class Beacon(Spec):
    """Shows that a site's agent answers in a bucket: its start (new_start), and a count that rises while it
    runs. All versions know these fields.
    """

    certificate: Digest
    nonce: str = Field(pattern=r"^[0-9a-f]{32}$")
    beat: int = Field(ge=0)

    @property
    def text(self) -> bytes:
        return canonical({"what": "an agent answers here", **self.model_dump(mode="json")})


class SignedBeacon(Spec):
    """A door and its signature (base64)."""

    door: Beacon
    signature: str = Field(max_length=200)


def publish(bucket: Bucket, door: Beacon, keys: Keys) -> None:
    signature = base64.b64encode(sign(keys.key, door.text)).decode()
    bucket.write(SignedBeacon(door=door, signature=signature).model_dump_json().encode(), DOOR)


class DoorWatch:
    """Watches whether a peer's agent answers in a bucket. It looks for changes and compares no clocks."""

    def __init__(self, bucket: Bucket, card: Card, now: Callable[[], float] = time.monotonic) -> None:
        self._bucket, self._card, self._now = bucket, card, now
        self._door: Beacon | None = None
        self._problem: AtelierError | None = None  # of the last look
        self._changed = self._looked = -1e9
        self._lock = threading.Lock()  # several threads look

    def nonce(self) -> str:
        """The nonce of the running agent's start. Raises BucketError if no agent runs, and NotOpened if the
        door's signature is not the agent's.
        """
        with self._lock:
            if self._now() - self._looked > LOOK_DOOR_S:
                self._look()
            if self._problem is not None:
                raise self._problem
            if self._door is None:
                raise BucketError(f"the agent of {self._card.site} does not run")
            if self._now() - self._changed > DEAD_S:
                raise BucketError(
                    f"the agent of {self._card.site} has not changed its door for {DEAD_S:.0f} s"
                )
            return self._door.nonce

    def _look(self) -> None:
        self._looked, self._problem = self._now(), None
        try:
            self._read()
        except AtelierError as error:  # until the next look
            self._problem = error.with_traceback(None)

    def _read(self) -> None:
        data = self._bucket.read(DOOR, most=MOST_DOOR)
        if data is None:
            self._door = None
            return
        try:
            found = parse_as(SignedBeacon, data, "its door", "a door")
            verify(self._card, base64.b64decode(found.signature, validate=True), found.door.text)
        except ValueError:
            raise NotOpened("its door has no valid signature") from None
        if found.door.certificate != self._card.digest:
            raise NotOpened("its door is of another certificate")
        if not found.door.nonce.startswith(START):
            raise BucketError(other_version(self._card.site))
        before = self._door
        if before is None or before.nonce != found.door.nonce or found.door.beat > before.beat:
            self._door, self._changed = found.door, self._now()
