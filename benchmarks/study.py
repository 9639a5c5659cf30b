"""A teacher of the flow titan for benchmarks/objectives.py, and its further training for the aims."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from aims import AIMS
from machine import use_own_code

from atelier.engine.config.batch import NOT_SCORED
from atelier.engine.data.datasets.load import rows_of
from atelier.engine.data.datasets.natural import IMITATIONS, Imitation
from atelier.engine.inference.generator import Generator
from atelier.engine.inference.models import WholeModel
from atelier.engine.inference.opened import read_generator
from atelier.engine.inference.scoring import label_nats
from atelier.engine.io.artifact import ArtifactInput, open_input
from atelier.engine.model.load import read_weights
from tests.engine.trainings import artifact

Batch = dict[str, np.ndarray]

use_own_code()


class Study:
    """A trained teacher and what it was trained on."""

    def __init__(self, store: Path, steps: int, scratch: Path, *, threads: int, tiny: bool) -> None:
        self.store, self.steps, self.scratch = store, steps, scratch
        self.threads, self.tiny = threads, tiny
        self.sequence = 64 if tiny else 256
        self._train()
        self.teacher = self.artifact("model", "teacher")
        self.rng = np.random.default_rng(1)
        self.ask(self.teacher)

    def ask(self, model: ArtifactInput) -> None:
        """What follows is asked of this model."""
        folder = self.scratch / Path(model.url).name
        folder.mkdir(exist_ok=True)
        self.speaker: Generator = read_generator(model, folder, torch.device("cpu"))
        self.model = cast(WholeModel, self.speaker.model)
        self.vocabulary = self.speaker.vocabulary

    def aim(self, name: str) -> None:
        """What follows is asked of the teacher that has gone on with this aim."""
        place = self.store / "aims" / name
        if not (place / "model" / "record.json").exists():
            print(f"{name}: the teacher goes on", flush=True)
            self._go_on(name, place)
            files = {path.name: path.read_bytes() for path in (place / "out").iterdir()}
            files.pop("body.json")
            artifact(place / "model", "model", files)
        self.ask(open_input(str(place / "model")))
        self.sequence = 64 if self.tiny else AIMS[name].sequence

    def found(self, aim: str, name: str, part: Callable[["Study"], dict[str, Any]]) -> dict[str, Any]:
        """What the part finds; of an earlier call with this store, if it came so far."""
        place = self.store / "found" / f"{name}.json"
        if not place.exists():
            if aim:
                self.aim(aim)
            numbers = part(self)
            print(f"{name}: {json.dumps(numbers)}", flush=True)
            place.parent.mkdir(exist_ok=True)
            place.write_text(json.dumps(numbers))
        return json.loads(place.read_text())

    def _go_on(self, name: str, place: Path) -> None:
        aim = AIMS[name]
        steps, sequence = (8, 64) if self.tiny else (aim.steps, aim.sequence)
        objective = {
            kind: {"kind": kind, "weight": share, "rows": share} | aim.settings.get(kind, {})
            for kind, share in aim.shares.items()
        }
        kinds = {"natural": "imitations", "control": "attributes", "knowledge": "triples"}
        streams = [
            {"input": kinds.get(kind, "tokens"), "kind": kind, "weight": share, "rows": objective[kind]}
            for kind, share in aim.shares.items()
        ]
        optim = {"kind": "adamw", "lr": aim.lr, "schedule": {"kind": "wsd", "warmup": 50, "decay": 0.4}}
        _, model = read_weights(self.teacher, self.scratch)
        role = {"model": model.model_dump(mode="json"), "objective": objective, "optim": optim}
        fingerprint = hashlib.sha256(str(place).encode()).hexdigest()
        segment = {"fingerprint": fingerprint, "url": str(place / "trajectory"), "start": 0, "end": steps}
        member = {"role": role, "segments": [segment], "init": "teacher", "output": "out"}
        train = {
            "steps": steps, "global_batch": 8 if self.tiny else aim.rows, "sequence": sequence,
            "checkpoint_every": 200, "eval_every": 200, "eval_sequences": 32,
        }  # fmt: skip
        needed = ("tokens", "tokenizer", *kinds.values())
        inputs = {kind: self.only(kind).url for kind in needed} | {"imitations": self.imitations(name).url}
        run = {
            "schema": 1, "task": "train", "version": 1,
            "config": {"trainings": [{"members": {"model": member}, "streams": streams, "train": train}]},
            "inputs": inputs | {"teacher": self.teacher.url}, "outputs": {"out": str(place / "out")},
            "scratch": str(place / "scratch"), "seed": 1,
            "layout": {"shard": 1, "threads": self.threads, "device": "cpu"},
        }  # fmt: skip
        place.mkdir(parents=True, exist_ok=True)
        path = place / "run.json"
        path.write_text(json.dumps(run))
        command = [sys.executable, "-W", "ignore", "-m", "atelier.engine.train", str(path)]
        subprocess.run(command, cwd=PROJECT, stdout=subprocess.DEVNULL, check=True)

    def _train(self) -> None:
        words = [
            "titan", f"experiment={'tiny' if self.tiny else 'laptop'}", "tracker=none",
            "~roles.student_a", "~roles.student_b", "score.controls=false", "finetune.draws=1",
            "finetune.epochs=1",
        ]  # fmt: skip
        if not self.tiny:
            words += [
                f"train.steps={self.steps}",
                "imitate.paragraphs=3000", "imitate.tokens=128",
            ]  # fmt: skip
        env = os.environ | {"ATELIER_ROOT": str(self.store)}
        subprocess.run([sys.executable, "-m", "atelier", *words], env=env, cwd=PROJECT, check=True)

    def artifact(self, kind: str, name: str) -> ArtifactInput:
        """The newest one of this name."""
        found = [open_input(str(place.parent)) for place in self.store.glob(f"{kind}/*/record.json")]
        named = [each for each in found if each.record.name == name]
        return max(named, key=lambda each: each.record.provenance.get("started", 0.0))

    def imitations(self, name: str) -> ArtifactInput:
        """Those that the teacher with this aim learns from, as long as the aim says."""
        whole, most = self.only("imitations"), AIMS[name].continued
        if not most:
            return whole
        place = self.store / f"imitations-{most}"
        if not (place / "record.json").exists():
            lines = imitated(whole, self.scratch)
            for line in lines:
                line["original"] = line["original"][: line["prefix"] + most]
                line["generated"] = line["generated"][: line["prefix"] + most]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            artifact(place, "imitations", {IMITATIONS: text.encode()})
        return open_input(str(place))

    def only(self, kind: str) -> ArtifactInput:
        [place] = self.store.glob(f"{kind}/*/record.json")
        return open_input(str(place.parent))

    def rows(self, kind: str, spec: Any, source: ArtifactInput, split: str = "held_out") -> Any:
        return rows_of(kind).open_rows(
            spec, source, self.vocabulary, self.scratch, split=split, sequence=self.sequence, seed=1
        )

    def nats(self, batch: Batch) -> np.ndarray:
        """Mean nats a label of each row [B], NaN where a row has none."""
        nats_N = next(label_nats(self.model, [tensors(batch)])).numpy()
        is_label_BT = batch["labels_BT"] != NOT_SCORED
        sums_B = np.bincount(np.nonzero(is_label_BT)[0], nats_N, minlength=len(is_label_BT))
        return sums_B / np.where(is_label_BT.any(1), is_label_BT.sum(1), np.nan)


def imitated(source: ArtifactInput, scratch: Path) -> list[Imitation]:
    """Paragraphs and their continuations."""
    return cast(list[Imitation], source.lines(IMITATIONS, scratch))


def batches(rows: Any, most: int) -> Iterator[Batch]:
    """`most` rows of all, always the same."""
    order = np.random.default_rng(0).permutation(len(rows))[:most]
    for first in range(0, len(order), 16):
        places = order[first : first + 16]
        yield rows.batch(places, np.zeros_like(places))


def tensors(batch: Batch) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in batch.items()}
