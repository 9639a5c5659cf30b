"""A small store made by hand: a corpus, its tokens, a teacher with two students and a control, a decay
branch, scores.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atelier.engine.config.base import Json
from atelier.engine.config.document import with_digest
from atelier.engine.config.metric import segment_name
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.record import Record, identify
from atelier.engine.config.run_file import SegmentAddress
from atelier.engine.config.trajectory import Segment
from atelier.engine.io.artifact import ArtifactOutput
from atelier.engine.io.storage import join, write_bytes
from atelier.infra.store.lease import Holder
from atelier.infra.store.store import Store, read_body
from atelier.infra.store.trajectory import register_trajectory

ENDED = 1_790_000_000.0
NET = GPT(num_layers=1, hidden=32, num_heads=4, vocab=64)  # what every model of these records is


@dataclass
class Shelf:
    """Publishes hand-made records into a store, a second apart."""

    store: Store
    clock: float = ENDED

    def publish(
        self,
        kind: str,
        name: str,
        parents: dict[str, str] | None = None,
        *,
        files: dict[str, bytes] | None = None,
        summary: dict[str, Any] | None = None,
        run: str = "run-1",
        identity_as: dict[str, Any] | None = None,
        **identity: Any,
    ) -> Record:
        identity |= identity_as or {}
        self.clock += 1
        parents = parents or {}
        fp = identify(kind, 1, identity, parents)
        payload = self.store.new_payload(kind, fp)
        output = ArtifactOutput(payload)
        for file, data in (files or {"data.txt": name.encode()}).items():
            output.add_bytes(file, data)
        output.close(summary or {})
        entries, found = read_body(payload)
        provenance = {
            "started": self.clock - 30,
            "ended": self.clock,
            "run": run,
            "command": f"atelier demo {name}",
            "commit": "c0ffee" * 6,
        }
        draft = Record(
            kind=kind,
            name=name,
            fingerprint=fp,
            version=1,
            identity=identity,
            parents=parents,
            files=entries,
            summary=found,
            provenance=provenance,
        )
        return self.store.publish(draft, Holder.me())

    def trajectory(
        self, name: str, parents: dict[str, str], *, start: int = 0, end: int = 400, **identity: Any
    ) -> SegmentAddress:
        part = Segment(
            start=start,
            end=end,
            identity={"model": {"kind": "gpt", "hidden": 32}, "seed_name": name} | identity,
            parents=parents,
        )
        register_trajectory(self.store, name, part, {"started": self.clock})
        return SegmentAddress(
            fingerprint=part.fingerprint,
            url=self.store.address("trajectory", part.fingerprint),
            start=start,
            end=end,
        )

    def metrics(
        self,
        segment: SegmentAddress,
        steps: range,
        *,
        attempt: int = 1,
        number: int = 1,
        offset: float = 0.0,
        every: int = 50,
        stamped: bool = True,
    ) -> None:
        lines = []
        for step in steps:
            values = {"loss": 4.0 - step / 200 + offset, "grad_norm": 1.0}
            if step % every == 0:
                values["eval/loss"] = 4.1 - step / 200 + offset
            timing = {
                "tokens_per_s": 1000.0 + attempt,
                "memory_gb": 0.5,
                "data_wait_s": 0.1,
            }
            if stamped:
                timing["time"] = ENDED + 1000 * attempt + step
            lines.append(
                json.dumps(
                    {"step": step, "role": "r", "tokens": step * 64, "values": values, "timing": timing}
                )
            )
        write_bytes(join(segment.url, "metrics", segment_name(attempt, number)), "\n".join(lines).encode())

    def checkpoint(self, segment: SegmentAddress, step: int) -> str:
        url = join(segment.url, "checkpoints", f"step-{step:08d}")
        write_bytes(join(url, "manifest.json"), with_digest(b'{"files":[]}'))
        return url

    def model(
        self,
        name: str,
        segment: SegmentAddress,
        parents: dict[str, str],
        *,
        step: int,
        run: str = "run-1",
        config: dict[str, Json] | None = None,
        **summary: Any,
    ) -> Record:
        """`config`: of the model; None = a small gpt."""
        summary = {
            "step": step,
            "tokens": step * 64,
            "loss": 2.0,
            "eval_loss": 2.1,
            "role": name,
            "params": 12345,
        } | summary
        files = {
            "model.safetensors": b"weights of " + name.encode(),
            "config.json": json.dumps(config or NET.arguments()).encode(),
            "tokenizer.json": b"{}",
        }
        return self.publish(
            "model",
            name,
            {"trajectory": segment.fingerprint} | parents,
            files=files,
            summary=summary,
            run=run,
            step=step,
        )


@dataclass
class Family:
    """Teacher, students, control and what they came from."""

    shelf: Shelf
    records: dict[str, Record]
    segments: dict[str, SegmentAddress]

    def __getitem__(self, name: str) -> Record:
        return self.records[name]


def family(root: Path, run: str = "run-1") -> Family:
    """corpus -> tokens -> teacher (steps 1-400), students a and b (from its steps 100 and 200 on), a control
    without a teacher.
    """
    shelf = Shelf(Store(str(root)))
    corpus = shelf.publish(
        "corpus", "stdlib", summary={"documents": 714, "bytes": 10_100_000}, run=run, source="x"
    )
    tokenizer = shelf.publish(
        "tokenizer", "bpe", {"corpus": corpus.fingerprint}, summary={"vocab": 4096}, run=run
    )
    tokens = shelf.publish(
        "tokens",
        "stdlib",
        {"corpus": corpus.fingerprint, "tokenizer": tokenizer.fingerprint},
        summary={"tokens": 2_800_000},
        run=run,
    )
    data = {"tokens.main": tokens.fingerprint, "tokenizer": tokenizer.fingerprint}
    segments = {"teacher": shelf.trajectory("teacher", data)}
    teaching = data | {"teacher": segments["teacher"].fingerprint}
    segments["student_a"] = shelf.trajectory("student_a", teaching, start=100)
    segments["student_b"] = shelf.trajectory("student_b", teaching, start=200)
    segments["control_a"] = shelf.trajectory("control_a", data, start=100)
    records = {"corpus": corpus, "tokenizer": tokenizer, "tokens": tokens}
    for name, segment in segments.items():
        shelf.metrics(segment, range(segment.start + 1, 401), offset=0.1 * segment.start / 100)
        shelf.checkpoint(segment, 200)
        shelf.checkpoint(segment, 400)
        taught = name.startswith("student")
        extra: dict[str, Any] = (
            {"teacher": "teacher", "teacher_steps": [segment.start + 1, 400]} if taught else {}
        )
        records[name] = shelf.model(name, segment, teaching if taught else data, step=400, run=run, **extra)
    records["scores"] = shelf.publish(
        "scores",
        "student_a",
        {"model": records["student_a"].fingerprint, "tokens.main": tokens.fingerprint},
        summary={"bits_per_byte": 1.75, "accuracy": 0.5},
        run=run,
    )
    return Family(shelf, records, segments)
