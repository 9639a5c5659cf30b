"""A small training setup: a tokens artifact of random text, a tokenizer, and run files over them."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from atelier.engine.config.error import StoppedError
from atelier.engine.config.metric import FOLDER, merge
from atelier.engine.config.mixture import Stream, row_specs, streams
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.record import FileEntry, Record, identify
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import FILE_BYTES, Member, RunFile, SegmentAddress, Training
from atelier.engine.config.schedule import Schedule
from atelier.engine.config.train import Train
from atelier.engine.loop.stop import StopRequest
from atelier.engine.model.load import write_model
from atelier.engine.model.weights import in_memory
from atelier.engine.parallel.gang import start_gang
from atelier.engine.train import train as train_run
from tests.checkout import TOP
from tests.forks import Rank, start

VOCAB = 64
ONE = Parallel(shard=1, threads=1, compile="none", device="cpu")


def laid_out(**more: Any) -> Parallel:
    """`ONE` with more settings, keys of extensions too."""
    return Parallel.model_validate(ONE.model_dump() | more)


class AfterSteps(StopRequest):
    """Asks to stop when the loop has looked so many times: once a step."""

    def __init__(self, folder: Path, num_steps: int) -> None:
        super().__init__(folder)
        self._left = num_steps

    @property
    def is_asked(self) -> bool:
        self._left -= 1
        return self._left < 0


def artifact(folder: Path, kind: str, files: dict[str, bytes], **summary: Any) -> str:
    """A published artifact of these files; its URL."""
    entries = []
    for name, data in files.items():
        place = folder / "payload" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        entries.append(
            FileEntry(path=f"payload/{name}", bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        )
    identity = {"files": [entry.sha256 for entry in entries]}
    record = Record(
        kind=kind, name=kind, fingerprint=identify(kind, 1, identity, {}), version=1, identity=identity,
        parents={}, files=tuple(entries), summary=summary,
    ).sealed()  # fmt: skip
    (folder / "record.json").write_text(record.text())
    return str(folder)


def model_files(state: Mapping[str, Tensor], spec: ModelSpec, most: int = FILE_BYTES) -> dict[str, bytes]:
    """The files of a model of these weights, in memory."""
    files: dict[str, bytes] = {}
    write_model(in_memory(state), spec, lambda name, parts: files.update({name: b"".join(parts)}), most=most)
    return files


def tokens(folder: Path, *, num_tokens: int = 20_000, seed: int = 0, vocab: int = VOCAB) -> str:
    """Documents of a noisy cycle over the vocabulary: something to learn in a few steps."""
    generator = np.random.default_rng(seed)
    files = {}
    for split, size in (("train", num_tokens), ("held_out", num_tokens // 10)):
        steps = generator.integers(1, 4, size=size)
        ids = (np.cumsum(steps) % vocab).astype("<u2")
        ends = np.unique(np.append(np.sort(generator.integers(1, size, size=size // 100)), size)).astype(
            "<i8"
        )
        files[f"{split}.bin"] = ids.tobytes()
        files[f"{split}.ends.npy"] = _npy(ends)
    sizes = {"train_tokens": num_tokens, "held_out_tokens": num_tokens // 10}
    return artifact(folder, "tokens", files, vocab=vocab, **sizes)


def _npy(array: np.ndarray) -> bytes:
    buffer = BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def model(hidden: int = 32, num_layers: int = 1, **more: Any) -> GPT:
    return GPT(num_layers=num_layers, hidden=hidden, num_heads=2, vocab=VOCAB, **more)


def role(hidden: int = 32, *, lr: float = 3e-3, schedule: Schedule | None = None, **more: Any) -> Role:
    shape = more.pop("shape", None) or model(hidden)
    optim = AdamW(lr=lr, schedule=schedule or Schedule(kind="constant", warmup=2))
    return Role(model=shape, objective=more.pop("objective", {"lm": LM()}), optim=optim, **more)


def student(hidden: int = 16, *, weight: float = 0.5, **more: Any) -> Role:
    """A role that learns from `teacher`, by default with equal weight on text and teacher."""
    more.setdefault("teacher", "teacher")
    return role(hidden, objective={"lm": LM(weight=0.5), "kd": Logits(weight=weight)}, **more)


def train(steps: int = 8, **more: Any) -> Train:
    defaults: dict[str, Any] = {
        "global_batch": 4, "micro_batch": 2, "sequence": 16, "precision": "fp32", "checkpoint_every": 4,
        "eval_sequences": 6,
    }  # fmt: skip
    return Train(steps=steps, **(defaults | more))


class TrainingSetup:
    """A folder with tokens, for trajectories and outputs; `run` trains in one or several processes of its
    own.
    """

    def __init__(self, folder: Path, inputs: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.inputs = inputs or {"tokens": tokens(folder / "tokens")}
        self._num_runs = 0

    def segment(self, name: str, start: int, end: int, *, attempt: int = 1) -> SegmentAddress:
        fingerprint = hashlib.sha256(name.encode()).hexdigest()
        return SegmentAddress(
            fingerprint=fingerprint,
            url=str(self.folder / "trajectory" / name),
            start=start,
            end=end,
            attempt=attempt,
        )

    def member(
        self, name: str, spec: Role, end: int, *, mode: str = "train", output: bool = True, **more: Any
    ) -> Member:
        segments = more.pop("segments", (self.segment(name, int(spec.start), end),))
        return Member(role=spec, mode=mode, segments=segments, output=name if output else "", **more)  # type: ignore[arg-type]

    def training(self, roles: Mapping[str, Role | Member], how: Train) -> Training:
        members = {
            name: spec if isinstance(spec, Member) else self.member(name, spec, how.num_steps)
            for name, spec in roles.items()
        }
        samples = (Stream(input="tokens"),)
        if "tokens.main" in self.inputs:  # what the objectives of the roles read
            samples = streams(
                row_specs({name: member.role for name, member in members.items()}), {"main": 1.0}
            )
        return Training(members=members, streams=samples, train=how)

    def run_file(
        self, *trainings: Training, layout: Parallel = ONE, file_bytes: int = FILE_BYTES, **more: Any
    ) -> RunFile:
        self._num_runs += 1
        outputs = {
            member.output: str(self.output(member.output))
            for training in trainings
            for member in training.members.values()
            if member.output
        }
        config = {
            "trainings": [each.model_dump(mode="json") for each in trainings],
            "file_bytes": file_bytes,
        }
        scratch = str(self.folder / f"scratch-{self._num_runs}")
        return RunFile(
            schema=1, task="train", version=1, config=config, inputs=self.inputs, outputs=outputs,
            scratch=scratch, layout=layout, **more,
        )  # fmt: skip

    def train(
        self, *trainings: Training, stop: StopRequest | None = None, layout: Parallel = ONE, **more: Any
    ) -> None:
        """Train in this process."""
        run = self.run_file(*trainings, layout=layout, **more)
        train_run(run, start_gang(layout), stop or StopRequest(Path(run.scratch)))

    def train_in_pieces(self, training: Training, every: int) -> int:
        """Stop the training after every so many steps and run it again, up to its end; returns how often it
        was stopped.
        """
        for number in range(30):
            try:
                self.train(training, stop=AfterSteps(self.folder, every))
                return number
            except StoppedError:
                pass
        raise AssertionError("it does not get on")

    def output(self, name: str) -> Path:
        return self.folder / "outputs" / name

    def as_input(self, name: str) -> str:
        """A published artifact of an output; its URL."""
        files = {
            path.name: path.read_bytes() for path in self.output(name).iterdir() if path.name != "body.json"
        }
        return artifact(self.folder / "artifacts" / name, "model", files)

    def weights(self, name: str) -> bytes:
        return (self.output(name) / "model.safetensors").read_bytes()

    def summary(self, name: str) -> dict[str, Any]:
        return json.loads((self.output(name) / "body.json").read_text())["summary"]

    def curve(self, name: str) -> list[dict[str, Any]]:
        """The merged metric lines of a trajectory, without what is not deterministic."""
        found = sorted((self.folder / "trajectory" / name / FOLDER).glob("*.jsonl"))
        lines = merge((path.name, path.read_text()) for path in found)
        return [{key: line[key] for key in ("step", "tokens", "values")} for line in lines]

    def steps(self, name: str) -> list[int]:
        """The checkpoints that lie under a trajectory."""
        folder = self.folder / "trajectory" / name / "checkpoints"
        return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))

    def processes(
        self,
        run: RunFile,
        *,
        world: int = 1,
        environment: dict[str, str] | None = None,
        pass_fds: tuple[int, ...] = (),
    ) -> list[Rank]:
        """Start the gang of a run file: executed where it gets more than its run file, else forked."""
        path = self.folder / f"run-{self._num_runs}.json"
        path.write_text(run.model_dump_json(by_alias=True))
        meeting = f"file://{self.folder}/meeting-{self._num_runs}"
        gang = {"WORLD_SIZE": str(world), "ATELIER_RENDEZVOUS": meeting, "OMP_NUM_THREADS": "1"}
        envs = [
            os.environ
            | gang
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONWARNINGS": "ignore"}
            | (environment or {})
            for rank in range(world)
        ]
        if environment is None:
            return [start("atelier.engine.train", [str(path)], env) for env in envs]
        return [
            subprocess.Popen(
                [sys.executable, "-m", "atelier.engine.train", str(path)],
                cwd=TOP, text=True, pass_fds=pass_fds, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=env,
            )
            for env in envs
        ]  # fmt: skip
