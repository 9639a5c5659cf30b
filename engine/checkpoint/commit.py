"""Atomic commit of a checkpoint: complete or not at all. Rank 0 commits the files of all ranks.

Local folders: files in a temporary sibling folder, fsync, manifest last, fsync, rename, fsync of the parent.
Other stores have no rename: files get new names at the address itself, then manifest.json commits them. On
both, an existing checkpoint is replaced through its manifest in one step.
"""

import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from atelier.engine.checkpoint.folder import GONE, remove_strays, verify
from atelier.engine.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from atelier.engine.config.document import MOST_BYTES
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.io.storage import (
    TEMPORARY,
    exists,
    is_local,
    join,
    local_path,
    make_folder,
    make_remote_folder,
    names,
    remove,
    size,
    sync_folder,
    write_bytes,
)

_UNFINISHED = TEMPORARY + "step-"


class Commit:
    """One attempt to save: `begin`, then all ranks write into `place`, then `finish` or `discard`."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.attempt = secrets.token_hex(
            4
        )  # in every file name, so that attempts never overwrite each other's files
        parent, name = self.url.rsplit("/", 1)
        self.parent = parent
        self.place = join(parent, f"{TEMPORARY}{name}-{self.attempt}") if is_local(url) else self.url

    def begin(self) -> None:
        """Create the folder and remove files of killed attempts; saves to one folder never overlap."""
        if not is_local(self.url):
            make_remote_folder(self.url)  # created once: ranks would race, and some stores refuse
            return
        folder = local_path(self.parent)
        make_folder(folder)
        for entry in folder.iterdir():
            if entry.name.startswith((_UNFINISHED, GONE)):
                shutil.rmtree(entry, ignore_errors=True)
        local_path(self.place).mkdir()

    def finish(self, manifest: Manifest) -> None:
        """Make `manifest` the checkpoint at the address; an undamaged one with equal content stays.

        Raises DamageError if rank 0 does not see the files of other ranks, and ConfigError for a manifest
        that is too large to be read.
        """
        self._check_sizes(manifest)
        sealed = manifest.sealed()
        if len(sealed) > MOST_BYTES:
            raise ConfigError(
                "parallel",
                f"{manifest.world} ranks write a manifest of {len(sealed) / 1e6:.0f} MB, but at most"
                f" {MOST_BYTES / 1e6:.0f} MB are read back",
                "more replicate and less shard for the same ranks",
            )
        if exists(self.url) and self._is_there(manifest):
            self.discard()
            return
        if not is_local(self.url):
            write_bytes(join(self.url, MANIFEST), sealed)
            remove_strays(self.url, manifest)
            return
        write_bytes(join(self.place, MANIFEST), sealed)
        place, target = local_path(self.place), local_path(self.url)
        if target.is_dir():
            self._replace(manifest, place, target)
        else:
            place.rename(target)
        sync_folder(target.parent)

    def discard(self) -> None:
        """Remove every file of this attempt."""
        if is_local(self.url):
            shutil.rmtree(local_path(self.place), ignore_errors=True)
            return
        for name in names(self.url):
            if self.attempt in name:
                with suppress(OSError):
                    remove(join(self.url, name))
        if not names(self.url):
            remove(self.url)

    def _replace(self, manifest: Manifest, place: Path, target: Path) -> None:
        for entry in manifest.files:
            (place / entry.path).rename(target / entry.path)
        sync_folder(target)
        (place / MANIFEST).replace(target / MANIFEST)
        sync_folder(target)
        remove_strays(self.url, manifest)
        place.rmdir()

    def _check_sizes(self, manifest: Manifest) -> None:
        """Raise DamageError if rank 0 does not see the other ranks' files: they have another folder."""
        for entry in manifest.files:
            place = join(self.place, entry.path)
            try:
                found = size(place)
            except FileNotFoundError:
                raise DamageError(
                    f"{place}: not visible to rank 0; checkpoints need storage that all ranks share"
                ) from None
            if found != entry.bytes:
                raise DamageError(f"{place}: has {found} bytes, but {entry.bytes} were written")

    def _is_there(self, manifest: Manifest) -> bool:
        try:
            found = read_manifest(self.url)
        except DamageError:
            return False
        return found.content() == manifest.content() and not verify(self.url)
