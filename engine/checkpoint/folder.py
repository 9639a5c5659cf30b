"""The checkpoints of a trajectory: list, verify, find the newest good one, remove old ones."""

import re
import shutil
from contextlib import suppress

from atelier.engine.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.io.storage import TEMPORARY, is_local, join, local_path, names, remove, size, sync_folder
from atelier.engine.io.storage import verify as verify_file

_STEP = re.compile(r"step-(\d{8,})")
GONE = TEMPORARY + "gone-"


def step_name(step: int) -> str:
    """The name of a checkpoint's folder."""
    return f"step-{step:08d}"


def address(folder_url: str, step: int) -> str:
    """The URL of the checkpoint of `step`."""
    return join(folder_url, step_name(step))


def step_of(url: str) -> int:
    """The step in a checkpoint's folder name. Raises ConfigError for any other name."""
    name = url.rstrip("/").rsplit("/", 1)[-1]
    found = _STEP.fullmatch(name)
    if not found or step_name(int(found[1])) != name:
        raise ConfigError(
            url, "is not a checkpoint's address", f"its last part must be like {step_name(100)}"
        )
    return int(found[1])


def steps(folder_url: str) -> list[int]:
    """The steps that have a checkpoint, complete or not, ascending."""
    found = []
    for name in names(folder_url):
        with suppress(ConfigError):
            found.append(step_of(name))
    return sorted(found)


def verify(url: str, *, trajectory: str | None = None) -> list[str]:
    """All damage of the checkpoint at `url`, one line per file; [] if it is intact."""
    try:
        manifest = read_manifest(url, step=step_of(url), trajectory=trajectory)
    except DamageError as damage:
        return [str(damage)]
    damages = []
    for entry in manifest.files:
        place = join(url, entry.path)
        try:
            verify_file(place, entry)
        except DamageError as damage:
            damages.append(str(damage))
        except OSError as error:
            damages.append(f"{place}: cannot be read ({error.strerror or error})")
    return damages


def newest_good(
    folder_url: str, *, trajectory: str, at_most: int | None = None
) -> tuple[int | None, list[str]]:
    """The newest step up to `at_most` with a complete checkpoint of this trajectory; damage of newer ones.

    Reads every byte that it verifies: call it on one rank and broadcast the result.
    """
    damages: list[str] = []
    for step in reversed(steps(folder_url)):
        if at_most is not None and step > at_most:
            continue
        found = verify(address(folder_url, step), trajectory=trajectory)
        if not found:
            return step, damages
        damages += found
    return None, damages


def retain(folder_url: str, keep: int, protected: set[int]) -> list[int]:
    """Remove checkpoints older than the `keep` newest, except protected steps; returns the removed steps.

    Checkpoints with a damaged manifest, or a file that is missing or of another size, do not count, so that
    `keep` usable ones remain. Each disappears from `steps` at once, not file by file.

    Raises ConfigError for keep < 1.
    """
    if keep < 1:
        raise ConfigError("keep", f"{keep} would remove every checkpoint", "give 1 or more")
    kept, removed = 0, []
    for step in reversed(steps(folder_url)):
        url = address(folder_url, step)
        if kept >= keep and step not in protected:
            drop(url)
            removed.append(step)
        elif kept < keep and looks_whole(url, step):
            kept += 1
    return sorted(removed)


def looks_whole(url: str, step: int) -> bool:
    """Whether the manifest is good and every file has its size; reads no tensor data."""
    try:
        manifest = read_manifest(url, step=step)
        return all(size(join(url, entry.path)) == entry.bytes for entry in manifest.files)
    except (DamageError, OSError):
        return False


def drop(url: str) -> None:
    """Remove a checkpoint; it disappears from `steps` at once, not file by file."""
    if not is_local(url):
        remove(join(url, MANIFEST))  # first: without it the rest is not a checkpoint
        remove(url)
        return
    path = local_path(url)
    gone = path.with_name(GONE + path.name)
    shutil.rmtree(gone, ignore_errors=True)
    path.rename(gone)
    sync_folder(path.parent)
    shutil.rmtree(gone)


def remove_strays(url: str, manifest: Manifest) -> None:
    """Remove files that the manifest does not list, from replaced or unfinished saves."""
    listed = {MANIFEST, *(entry.path for entry in manifest.files)}
    for name in names(url):
        if name not in listed:
            remove(join(url, name))
