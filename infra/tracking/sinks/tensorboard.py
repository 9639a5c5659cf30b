"""TensorBoard: event files under <store>/tensorboard/<flow>/<run>/<role>, ~/tensorboard for a remote store.

Values are written as TensorBoard's own scalars in float32, because its fast loader shows no others. (Its
protobuf classes are created at import: pyright does not see them.)
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.tensor_pb2 import TensorProto  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.plugins.text import metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from atelier.engine.config.base import Json
from atelier.engine.io.storage import is_local, local_path
from atelier.engine.io.user_folders import home
from atelier.infra.report.table import markdown_rows
from atelier.infra.store.store import SHORT, Store
from atelier.infra.tracking.about import RunInfo
from atelier.infra.tracking.curve import CurveRow
from atelier.infra.tracking.sink import CurveInfo

KNOWN = ".trajectories"  # its files name the folder of each trajectory's curve
QUEUE = 1000  # events in memory before a flush


class TensorBoard:
    """The event files of one store."""

    label = "TensorBoard"

    def __init__(self, root: Path, about: RunInfo) -> None:
        self.root, self.run = root, root / plain(about.flow) / plain(about.run_id)
        self.written: dict[Path, None] = {}

    def curve(self, about: CurveInfo) -> "EventCurve":
        return EventCurve(self, about)

    def folder_of(self, about: CurveInfo) -> Path:
        """The folder of a trajectory's curve: the existing one, else a new one of this run."""
        known = self._known(about.fingerprint)
        with suppress(OSError):
            folder = self.root / known.read_text()
            if folder.is_dir():
                return folder
        folder = self.run / plain(about.role)
        if folder.exists():  # of another task with the same role
            folder = folder.with_name(f"{folder.name}-{about.fingerprint[:8]}")
        folder.mkdir(parents=True, exist_ok=True)
        known.parent.mkdir(parents=True, exist_ok=True)
        known.write_text(str(folder.relative_to(self.root)))
        return folder

    def _known(self, fingerprint: str) -> Path:
        return self.root / KNOWN / fingerprint[:SHORT]

    def forget(self, fingerprint: str) -> None:
        known = self._known(fingerprint)
        with suppress(OSError):
            for path in (self.root / known.read_text()).glob("events.out.tfevents.*"):
                path.unlink()
            known.unlink()

    def places(self) -> list[str]:
        runs = list(dict.fromkeys(folder.parent for folder in self.written))
        return [f"tensorboard --logdir {runs[0] if len(runs) == 1 else self.root}"] if runs else []

    def ping(self) -> None: ...

    def is_lasting(self, error: Exception) -> bool:
        return not isinstance(error, OSError)


class EventCurve:
    """One folder of event files: a run on TensorBoard's pages."""

    def __init__(self, board: TensorBoard, about: CurveInfo) -> None:
        self.board, self.about = board, about
        self._writer: EventFileWriter | None = None
        self._there: set[tuple[str, int]] | None = None
        self._last = 0

    def add(self, rows: Sequence[CurveRow]) -> None:
        if self._there is None:
            self._there = written(self.board.folder_of(self.about))
        for row in rows:
            values = {k: v for k, v in row.values.items() if (k, row.step) not in self._there}
            if values:
                writer = self._writer or self._open()
                writer.add_event(Event(wall_time=row.time, step=row.step, summary=scalars(values)))
                self._there |= {(key, row.step) for key in values}
                self._last = max(self._last, row.step)
        if self._writer is not None:
            self._writer.flush()

    def _open(self) -> EventFileWriter:
        folder = self.board.folder_of(self.about)
        self._writer = writer = EventFileWriter(str(folder), max_queue_size=QUEUE)
        self.board.written[folder] = None
        about = {"name": self.about.name, **self.about.tags, **self.about.params}
        writer.add_event(Event(wall_time=time.time(), step=0, summary=text("about", table(about))))
        return writer

    def finish(self, status: str, last: CurveRow | None) -> None:
        if self._writer is not None:
            self.add([last] if last else [])
            said = Event(wall_time=time.time(), step=self._last, summary=text("status", status))
            self._writer.add_event(said)
            self._writer.close()
            self._writer = None


def scalars(values: Mapping[str, float]) -> Summary:
    return Summary(value=[Summary.Value(tag=key, simple_value=value) for key, value in values.items()])


def text(tag: str, markdown: str) -> Summary:
    """A text for the page Text."""
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[markdown.encode()], tensor_shape=shape)
    about = metadata.create_summary_metadata(display_name=tag, description="")
    return Summary(value=[Summary.Value(tag=tag, tensor=tensor, metadata=about)])


def table(facts: Mapping[str, Json]) -> str:
    return markdown_rows(
        ("", ""), [(key, str(value)) for key, value in facts.items() if value not in ("", None)]
    )


def written(folder: Path) -> set[tuple[str, int]]:
    """(metric, step) of all points in a folder's event files; without partial writes of a killed process."""
    found = set()
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.add((value.tag, event.step))
    return found


def plain(name: str) -> str:
    """`name` as one part of a path."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).lstrip(".") or "model"


def open_sink(store: Store, about: RunInfo) -> TensorBoard:
    base = local_path(store.root) if is_local(store.root) else home()
    return TensorBoard(base / "tensorboard", about)
