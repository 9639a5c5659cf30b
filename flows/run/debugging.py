"""Prepare a task of a past run to be run again by one process: its recorded run file, with every place that
it writes to moved into a scratch folder, and copies of its checkpoints there.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from atelier.engine.config.base import Json, parse
from atelier.engine.config.document import check_as, parse_object
from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Axes, Parallel
from atelier.engine.config.run_file import Member, RunFile, SegmentAddress, Training, Trainings
from atelier.engine.io.storage import fetch, is_local, join, local_path, names
from atelier.flows.run.log_reader import RUN_FILE, gang_folders, task_of
from atelier.flows.run.named_run import tasks_of
from atelier.infra.launch.orders import Guard
from atelier.infra.store.local_folders import local_folder
from atelier.infra.store.run_manifest import RunManifest, manifests
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import checkpoint_steps

PLACE = "debug"
TRAIN = "atelier.engine.train"
AXES = (*Axes.model_fields, "pipeline")
ALONE: dict[str, Json] = {**dict.fromkeys(AXES, 1), "later": {}, "stages": (), "speeds": (), "roles": {}}
COPIED = ("checkpoints", "log")  # folders of a trajectory: the first is copied in part, the second not at all


@dataclass(frozen=True)
class RecordedGang:
    """The recorded gang of a task: the run file, and what started it. `run`: the run that it belongs to."""

    run: str
    place: Path
    file: RunFile
    module: str
    threads: int
    ranks: int

    @property
    def split(self) -> dict[str, int]:
        """The axes on which the gang was split."""
        sizes = {name: getattr(self.file.layout, name) for name in AXES}
        return {name: size for name, size in sizes.items() if isinstance(size, int) and size > 1}


def recorded(store: Store, manifest: RunManifest, task: str) -> RecordedGang:
    """The newest gang of the task: of this run, or if it reused the task's products, of the run that made
    them. Raises ConfigError if it had none, or if its files are not on this machine.
    """
    made = [row.fingerprint for row in manifest.tasks if row.name == task or row.name == f"{task}.{row.key}"]
    others = [
        one
        for one in reversed(manifests(store))
        if one.id != manifest.id and any(row.fingerprint in made for row in one.tasks)
    ]
    for run in (manifest, *others):
        scratch = local_folder(store) / "scratch" / run.id
        gangs = [folder for folder in gang_folders(scratch) if task_of(folder) == task]
        for folder in reversed(gangs):
            return _read(run.id, folder)
    why = "it has no run file here (it runs in the flow's process, on another machine, or gc removed it)"
    way_out = "`atelier runs` lists other runs of it; `atelier logs` shows what it said"
    raise ConfigError(PLACE, f"{task} of the run {manifest.id}: {why}", way_out)


def _read(run: str, folder: Path) -> RecordedGang:
    place = folder / RUN_FILE
    file = check_as(RunFile, parse_object(place.read_bytes(), str(place)), str(place), "a run file")
    guard = parse(Guard, json.loads((folder / "guard.json").read_bytes()), str(folder / "guard.json"))
    return RecordedGang(run, place, file, guard.module, guard.threads, guard.world or guard.ranks)


@contextmanager
def scratch_folder(store: Store, name: str) -> Iterator[Path]:
    """A new folder beside the store's other scratch, where checkpoints can be linked; removed afterwards."""
    parent = local_folder(store) / "scratch"
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = Path(mkdtemp(prefix=f"debug-{name}-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def moved(
    recorded: RecordedGang, folder: Path, *, step: int | None, on_cpu: bool
) -> tuple[RunFile, dict[str, int]]:
    """The run file for one process that writes only into `folder`, and the step at which each trained role
    begins: its last checkpoint before its end, or at or before `step`. Raises ConfigError for a training over
    several sites.
    """
    file, starts = recorded.file, dict[str, int]()
    layout = file.layout.model_dump(exclude_unset=True) | ALONE | {"compile": "none"}
    if on_cpu:
        layout["device"] = "cpu"
    changes: dict[str, Json] = {
        "scratch": str(folder / "work"),
        "outputs": {key: str(folder / "outputs" / key / "payload") for key in file.outputs},
        "sources": {},
        "gpu": "" if on_cpu else file.gpu,
    }
    (folder / "work").mkdir()
    if recorded.module == TRAIN:
        trainings = parse(Trainings, file.config, "config")
        found = tuple(_moved_training(one, folder, step, starts) for one in trainings.trainings)
        whole = trainings.model_copy(update={"trainings": found})
        changes["config"] = whole.model_dump(mode="json", by_alias=True)
    one = parse(Parallel, layout, "layout")
    document = {**file.document(), **changes, "layout": one.model_dump(mode="json", exclude_unset=True)}
    return parse(RunFile, document, "run.json"), starts


def _moved_training(training: Training, folder: Path, step: int | None, starts: dict[str, int]) -> Training:
    if any(member.mode == "elsewhere" for member in training.members.values()) or getattr(
        training.train, "link", None
    ):
        raise ConfigError(PLACE, "a training over several sites exchanges messages", "debug it at one site")
    members = {
        name: _moved_member(name, member, folder, step, starts) for name, member in training.members.items()
    }
    return training.model_copy(update={"members": members, "until": 0})


def _moved_member(
    name: str, member: Member, folder: Path, step: int | None, starts: dict[str, int]
) -> Member:
    segments = list[SegmentAddress]()
    for each in member.segments:
        most = member.segments[-1].end - 1 if step is None else step
        url = folder / "trajectory" / each.fingerprint[:16]
        at = _copied(each.url, url, most)
        starts[name] = max(starts.get(name, 0), at)
        segments.append(each.model_copy(update={"url": str(url), "is_leased": True}))
    return member.model_copy(update={"segments": tuple(segments), "accept_code": True})


def _copied(source: str, target: Path, most: int) -> int:
    """Copy a trajectory with its newest checkpoint up to step `most`; returns that step, 0 = none."""
    if target.exists():  # shared by several roles or trainings
        return max(checkpoint_steps(str(target)), default=0)
    target.mkdir(parents=True)
    for name in names(source):
        if name not in COPIED:
            _copy(join(source, name), target / name)
    step = max((one for one in checkpoint_steps(source) if one <= most), default=0)
    if step:
        part = f"checkpoints/step-{step:08d}"
        _copy(join(source, part), target / part, links=True)
    return step


def _copy(source: str, target: Path, *, links: bool = False) -> None:
    """Copy a file or folder; with `links` files of a local store are the same bytes under a second name."""
    below = [name for name in names(source) if name != source.rpartition("/")[2]]  # S3 lists a file as itself
    for name in below:
        _copy(join(source, name), target / name, links=links)
    if below or (is_local(source) and local_path(source).is_dir()):
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not (links and is_local(source)):
            raise OSError
        os.link(local_path(source), target)
    except OSError:  # a remote store, or a file system without links
        fetch(source, target)


def words_of(recorded: RecordedGang, run_file: Path, places: list[str], *, stops_first: bool) -> list[str]:
    """Arguments of the interpreter that debugs the run file."""
    start = ["--start"] if stops_first else []
    return ["-m", "atelier.engine.debug", recorded.module, str(run_file), *start, *places]


def check_task(manifest: RunManifest, task: str | None) -> str:
    """The task, or the only one. Raises ConfigError if none is given and the run has several."""
    there = tasks_of(manifest)
    if task is None and len(there) != 1:
        raise ConfigError(PLACE, f"which task of the run {manifest.id}?", f"its tasks: {', '.join(there)}")
    return task or there[0]
