"""Store of artifacts: `{root}/{kind}/{fingerprint[:16]}/`, published once, immutable."""

import json
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from atelier.engine.config.document import MOST_BYTES, check_as, section_of
from atelier.engine.config.error import AtelierError, DamageError, nearest
from atelier.engine.config.record import KINDS, FileEntry, Record, Summary, identify
from atelier.engine.io.artifact import BODY
from atelier.engine.io.storage import (
    exists,
    is_local,
    join,
    local_path,
    names,
    read_bytes,
    read_object,
    verify,
    write_bytes,
)
from atelier.infra.store.alias import LATEST, aliases, find_alias
from atelier.infra.store.lease import Holder, LeaseLog, LeaseLost
from atelier.infra.store.run_manifest import manifests

RECORD = "record.json"
SHORT = 16


class Store:
    """A root folder (any fsspec URL) of artifacts."""

    def __init__(self, root: str) -> None:
        self.root = str(local_path(root).absolute()) if is_local(root) else root.rstrip("/")

    def address(self, kind: str, fingerprint: str) -> str:
        return join(self.root, kind, fingerprint[:SHORT])

    def new_payload(self, kind: str, fingerprint: str) -> str:
        """URL of a new folder for the files of one attempt at an artifact."""
        return join(self.address(kind, fingerprint), f"payload-{uuid.uuid4().hex[:8]}")

    def shorts(self, kind: str) -> list[str]:
        """The first digits of the fingerprints of a kind that have an address, finished or not."""
        return names(join(self.root, kind))

    def find(self, kind: str, fingerprint: str) -> Record | None:
        """The record of a finished artifact, or None. Completes a publication that was interrupted between
        log and copy. Raises DamageError when the record cannot be read or is another artifact's.
        """
        address = self.address(kind, fingerprint)
        place = join(address, RECORD)
        try:
            record = Record.read(read_bytes(place, MOST_BYTES), place)
        except (FileNotFoundError, NotADirectoryError):
            return self._complete(address)
        except DamageError as damage:
            record = self._restored(address, damage)
        if record.kind != kind or not record.fingerprint.startswith(fingerprint):
            found, wanted = record.fingerprint[:SHORT], fingerprint[:SHORT]
            raise DamageError(f"{place}: is the record of {record.kind} {found}, not of {kind} {wanted}")
        return record

    def _complete(self, address: str) -> Record | None:
        log = LeaseLog(address)
        for number in reversed(log.numbers()):
            try:
                entry = log.entry(number)
            except FileNotFoundError:
                return None  # the artifact is being removed
            except DamageError:
                continue
            if entry.act == "publish" and entry.record is not None:
                record = Record.read(json.dumps(entry.record), join(log.folder, f"{number:06d}.json"))
                write_bytes(join(address, RECORD), record.text().encode())
                return record
        return None

    def _restored(self, address: str, damage: DamageError) -> Record:
        """Restore a damaged record from the log; raises `damage` when the log does not have it."""
        try:
            record = self._complete(address)
        except (OSError, DamageError):  # e.g. a folder in place of the file
            record = None
        if record is None:
            raise damage
        return record

    def publish(self, draft: Record, holder: Holder, fence: int = 0) -> Record:
        """Publish `draft`, or return the record that was published first. With `fence`, only while that lease
        is the newest entry: raises LeaseLost otherwise. Raises AtelierError when the fingerprint is wrong.
        """
        record = draft.sealed()
        if identify(record.kind, record.version, record.identity, record.parents) != record.fingerprint:
            raise AtelierError(
                f"{record.kind} {record.name}: the fingerprint does not follow from identity and parents"
            )
        address = self.address(record.kind, record.fingerprint)
        log = LeaseLog(address)
        while True:
            last = log.last()
            if last is not None and last.act == "publish" and (first := self._complete(address)):
                return first  # a publish entry always carries its record
            if last is not None and last.damage and (first := self._readable(address)):
                return first
            if fence and (last is None or last.number != fence):
                raise LeaseLost(f"{address}: taken over by another process; nothing was published")
            if log.append(last.number + 1 if last else 1, "publish", holder, record.dump()):
                write_bytes(join(address, RECORD), record.text().encode())
                return record

    def _readable(self, address: str) -> Record | None:
        """The record beside a log whose newest entry cannot be read."""
        place = join(address, RECORD)
        try:
            return Record.read(read_bytes(place, MOST_BYTES), place)
        except (FileNotFoundError, DamageError):
            return None

    def damages(self) -> list[str]:
        """Damage of the records that `records` leaves out, as text."""
        found = []
        for kind in KINDS:
            for short in self.shorts(kind):
                try:
                    self.find(kind, short)
                except DamageError as damage:
                    found.append(str(damage))
        return found

    def records(self, kind: str | None = None) -> Iterator[Record]:
        """All finished artifacts of a kind (or of all kinds) without those whose record is damaged."""
        for one in (kind,) if kind else KINDS:
            for short in self.shorts(one):
                try:
                    record = self.find(one, short)
                except DamageError:
                    continue
                if record is not None:
                    yield record

    def resolve(self, word: str, kind: str | None = None) -> Record:
        """The artifact with a fingerprint (4 or more digits), a name (the newest; else one that a run reused
        under that name) or an alias `name@alias`. Raises AtelierError if there is none, or several.
        """
        name, _, alias = word.partition("@")
        if alias and alias != LATEST:
            return self._aliased(name, alias, kind)
        found = list(self.records(kind))
        if re.fullmatch(r"[0-9a-f]{4,64}", word):
            matches = [r for r in found if r.fingerprint.startswith(word)]
            if len(matches) == 1:
                return matches[0]
            if len(matches) > 1:
                raise AtelierError(f"{word}: {len(matches)} fingerprints begin with it; give more digits")
        named = [r for r in found if r.name == name]
        if named:
            return max(named, key=lambda r: r.provenance.get("ended", 0))
        if (other := self._called_by_a_run(name, kind)) is not None:
            return other
        near = nearest(name, {r.name for r in found})
        what = kind or "artifact"
        way_out = f"did you mean {near}?" if near else "`atelier models` lists them"
        way_out = way_out if found else f"the store has no {what}; is ATELIER_ROOT right?"
        raise AtelierError(f"no {what} called {word!r} in {self.root}; {way_out}{self.unread()}")

    def _called_by_a_run(self, name: str, kind: str | None) -> Record | None:
        """The artifact that the newest run with this name reused under it."""
        rows = [
            row for run in manifests(self) for row in run.tasks if row.model == name and row.kind in KINDS
        ]
        found = (self.find(row.kind, row.fingerprint) for row in reversed(rows) if kind in (None, row.kind))
        return next((record for record in found if record is not None), None)

    def unread(self) -> str:
        """Text to append to a not-found message when damaged records may hide the artifact; else ''."""
        damages = self.damages()
        if not damages:
            return ""
        more = f" and {len(damages) - 1} more" if len(damages) > 1 else ""
        return f"; ignored as damaged: {damages[0]}{more}; {DamageError.way_out}"

    def _aliased(self, name: str, alias: str, kind: str | None) -> Record:
        found = find_alias(self.root, name, alias)
        if found is None or kind not in (None, found.kind):
            there = [one for one in aliases(self.root) if one.name == name and kind in (None, one.kind)]
            known = ", ".join(map(str, there)) or f"{name}@{LATEST}, the newest"
            raise AtelierError(f"no alias {name}@{alias} in {self.root}; there is {known}")
        record = self.find(found.kind, found.fingerprint)
        if record is None:
            raise AtelierError(f"{found} is {found.kind} {found.fingerprint[:8]}, which no longer exists")
        return record

    def check(self, record: Record) -> list[str]:
        """Compare every file with its digest; returns the damages as text."""
        damages = []
        for entry in record.files:
            try:
                verify(join(self.address(record.kind, record.fingerprint), entry.path), entry)
            except DamageError as damage:
                damages.append(str(damage))
        return damages


def read_body(payload_url: str) -> tuple[tuple[FileEntry, ...], Summary]:
    """Files (paths relative to the artifact) and summary that a gang wrote to `payload_url`. Raises
    DamageError for an invalid body.
    """
    place = join(payload_url, BODY)
    body = read_object(place, "a body")
    files, summary = body.get("files"), body.get("summary")
    if not isinstance(files, list) or not isinstance(summary, dict):
        raise DamageError(f"{place}: not a body (files and summary are missing)")
    folder = payload_url.rstrip("/").rsplit("/", 1)[-1]
    entries = [check_as(FileEntry, section_of(entry), place, "a body") for entry in files]
    listed = tuple(entry.model_copy(update={"path": f"{folder}/{entry.path}"}) for entry in entries)
    return listed, cast(Summary, summary)


def has_body(payload_url: str) -> bool:
    return exists(join(payload_url, BODY))


def default_root() -> str:
    return os.environ.get("ATELIER_ROOT") or str(Path(".atelier").absolute())
