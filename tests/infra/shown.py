"""The points of a training's curves as each tracker has them: metric -> [(step, value)], by trajectory.
A model's scores and lineage, which MLflow alone has, are left out.
"""

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

from tests.infra.runs import client, runs

Points = dict[str, list[tuple[int, float]]]
BLOCK, HEADER, RECORD = 32768, 7, 7  # bytes of W&B's log: a block, the file's header, a record's header


def in_mlflow(root: Path) -> dict[str, Points]:
    found = {}
    for run in runs(root, "tags.`atelier.kind` = 'trajectory'"):
        keys = [key for key in run.data.metrics if not key.startswith(("score/", "teacher/"))]
        history = {key: client(root).get_metric_history(run.info.run_id, key) for key in keys}
        points = {key: sorted((m.step, m.value) for m in metrics) for key, metrics in history.items()}
        found[run.data.tags["atelier.trajectory"][:16]] = points
    return found


def in_tensorboard(root: Path) -> dict[str, Points]:
    found = {}
    for known in (root / "tensorboard" / ".trajectories").iterdir():
        board = EventAccumulator(str(root / "tensorboard" / known.read_text()), size_guidance={"scalars": 0})
        board.Reload()
        tags = board.Tags()["scalars"]
        found[known.name] = {tag: sorted((e.step, e.value) for e in board.Scalars(tag)) for tag in tags}
    return found


def in_wandb(root: Path) -> dict[str, Points]:
    """From the folders of offline sessions, one for each run."""
    found: dict[str, Points] = {}
    for path in (root / "wandb").glob("offline-run-*/*.wandb"):
        points = defaultdict(list)
        for record in wandb_records(path):
            if record.WhichOneof("record_type") == "history":
                row = {
                    item.key or item.nested_key[0]: json.loads(item.value_json)
                    for item in record.history.item
                }
                for key in row.keys() - {"_step", "_timestamp", "_runtime"}:
                    points[key].append((row["_step"], row[key]))
        run = path.stem.removeprefix("run-")
        assert run not in found, f"two sessions of {run}"
        found[run] = {key: sorted(each) for key, each in points.items()}
    return found


def wandb_exits(root: Path) -> dict[str, int]:
    return {
        path.stem.removeprefix("run-"): record.exit.exit_code
        for path in (root / "wandb").glob("offline-run-*/*.wandb")
        for record in wandb_records(path)
        if record.WhichOneof("record_type") == "exit"
    }


def wandb_records(path: Path) -> Iterator[Record]:
    """The records of W&B's transaction log, which has LevelDB's format."""
    data, place, parts = path.read_bytes(), HEADER, b""
    assert data[:4] == b":W&B"
    while place + RECORD <= len(data):
        if BLOCK - place % BLOCK < RECORD:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + RECORD])
        parts += data[place + RECORD : place + RECORD + length]
        place += RECORD + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""
