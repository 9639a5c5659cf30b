"""Random DAGs of small artifacts in a store, drawn from a seed, and audits of them in this process. No text
of a DAG shares a run of 8 words with a question, though they share phrases of 7 words, words of templates and
short answers. A question may be planted into one text.
"""

import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from atelier.engine.config.audit import KIND, AuditResult
from atelier.engine.config.data import END, PAD
from atelier.engine.config.data_plan import DataPlan
from atelier.engine.config.evaluation_set import EvaluationSet, Metric, QuestionLine
from atelier.engine.config.mixture import Stream, in_order
from atelier.engine.config.record import Record
from atelier.engine.config.run_file import RunFile, SegmentAddress
from atelier.engine.config.train import Train
from atelier.engine.config.trajectory import Segment
from atelier.engine.data.audit.audit import QuestionAudit
from atelier.engine.io.process import Progress
from atelier.infra.report.audit_routes import audit_config
from atelier.infra.store.data_plans import write_data_plan
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import register_trajectory
from tests.engine.data.audit.unique import jsonl, npy
from tests.engine.data.curation.texts import words
from tests.infra.records import Shelf

COMMON = [
    "which of the following is the best", "the answer to this question is a", "all of the above and none of",
    "question answer yes no true false the", "in the first half of the century",
]  # fmt: skip
ANSWERS = ("yes", "no", "B", "true", "the best", "none of the above")


def byte_tokenizer() -> Tokenizer:
    """One token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({one: n for n, one in enumerate([END, PAD, *alphabet])}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    made.add_special_tokens([END, PAD])
    return made


def phrased(rng: np.random.Generator, count: int) -> str:
    """About `count` words with phrases among them."""
    found = words(rng, count)
    for _ in range(count // 12):
        place = int(rng.integers(len(found)))
        found[place:place] = [*COMMON[int(rng.integers(len(COMMON)))].split(), *words(rng, 1)]
    return " ".join(found)


def runs(text: str) -> set[tuple[str, ...]]:
    own = "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()
    return {tuple(own[n : n + 8]) for n in range(len(own) - 7)}


@dataclass
class Made:
    """An artifact, the texts that an audit of it must search, and whether some of its ancestors are unseen.
    `is_gone`: its record was removed after it was made, so that only its trajectory can be seen.
    """

    record: Record
    texts: frozenset[int] = frozenset()
    is_unseen: bool = False
    trajectory: str = ""
    is_gone: bool = False

    def seen(self) -> "Made":
        """What can be seen through its record."""
        return Made(self.record, is_unseen=True) if self.is_gone else self


class RandomDag:
    """`planted`: the number of the text into which a question is put; none = -1."""

    def __init__(self, root: Path, seed: int, *, planted: int = -1) -> None:
        self.rng, self.root, self._planted = np.random.default_rng(seed), root, planted
        self.shelf, self.count = Shelf(Store(str(root / "store"))), 0
        self._encoder = byte_tokenizer()
        self.questions = [self._question(n) for n in range(8)]
        asked = [" ".join([*one["parts"], one["answer_text"]]) for one in self.questions]
        self._forbidden = set().union(*map(runs, [*asked, *(one["context"] for one in self.questions)]))
        self.models: list[Made] = []
        self._corpora: list[Made] = []
        for _ in range(int(self.rng.integers(2, 4))):
            self._corpora.append(self._corpus())
        self._tokenizers = [self._tokenizer(self._corpora[n]) for n in range(2)]
        for number in range(int(self.rng.integers(4, 8))):
            self.models.append(self._model(number))

    def _question(self, number: int) -> QuestionLine:
        part = phrased(self.rng, 16)
        answer = phrased(self.rng, 12) if number % 3 == 0 else ANSWERS[number % len(ANSWERS)]
        context = f"Question: {part}\nAnswer:"
        return QuestionLine(
            id=f"q{number}", context=context, options=[], answer=0, targets=[answer], shots=[],
            group=f"g{number}", parts=[part], answer_text=answer,
        )  # fmt: skip

    def _documents(self, count: int) -> list[str]:
        """New texts; with the number of this artifact, the planted question in the first."""
        found = []
        while len(found) < count:
            text = f"Question: {phrased(self.rng, 40)}\nAnswer: {ANSWERS[len(found) % len(ANSWERS)]}"
            if not runs(text) & self._forbidden:
                found.append(text)
        if self.count == self._planted:
            found[0] += f" {self.questions[0]['parts'][0]}"
        self.count += 1
        return found

    def _pick(self, count: int) -> int:
        return int(self.rng.integers(count))

    def _chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def _corpus(self, writer: Made | None = None) -> Made:
        number = self.count
        lines = [
            {"id": f"d{n}", "text": text, "split": "held_out" if n == 5 else "train", "group": f"g{n}"}
            for n, text in enumerate(self._documents(6))
        ]
        parents = {"corpus": self._corpora[0].record.fingerprint} if writer else {}
        parents |= {"model": writer.record.fingerprint} if writer else {}
        record = self.shelf.publish(
            "corpus", f"text-{number}", parents, files={"documents.jsonl": jsonl(lines)}, n=number
        )
        more = writer.seen() if writer else Made(record)
        return Made(record, more.texts | {number}, more.is_unseen)

    def _tokenizer(self, corpus: Made) -> Made:
        files = {"tokenizer.json": self._encoder.to_str().encode()}
        record = self.shelf.publish(
            "tokenizer", "bytes", {"corpus.main": corpus.record.fingerprint}, files=files, n=self.count
        )
        return Made(record, corpus.texts, corpus.is_unseen)

    def _tokens(self, corpus: Made, tokenizer: Made) -> Made:
        place = Path(
            self.shelf.store.address("corpus", corpus.record.fingerprint), corpus.record.files[0].path
        )
        files: dict[str, bytes] = {}
        lines = [json.loads(line) for line in place.read_text().splitlines()]
        for split in ("train", "held_out"):
            ids: list[int] = []
            ends: list[int] = []
            for line in lines:
                if line["split"] == split:
                    ids += [*self._encoder.encode(line["text"], add_special_tokens=False).ids, 0]
                    ends.append(len(ids))
            files |= {f"{split}.bin": np.array(ids, dtype="<u2").tobytes(), f"{split}.ends.npy": npy(ends)}
        parents = {"corpus": corpus.record.fingerprint, "tokenizer": tokenizer.record.fingerprint}
        summary = {"vocab": self._encoder.get_vocab_size()}
        record = self.shelf.publish("tokens", corpus.record.name, parents, files=files, summary=summary)
        return Made(record, corpus.texts, corpus.is_unseen)

    def _labels(self) -> Made:
        number = self.count
        texts = [(f"{one} is", f" {'yes' if n % 2 else 'no'}") for n, one in enumerate(self._documents(8))]
        lines = [{"prompt": one, "completion": other, "options": [" yes", " no"]} for one, other in texts]
        record = self.shelf.publish(
            "labels", "labels", files={"train.jsonl": jsonl(lines), "test.jsonl": b""}, n=number
        )
        return Made(record, frozenset({number}))

    def _model(self, number: int) -> Made:
        """A model of any kind that the ones before allow."""
        kind = self.rng.random()
        if kind < 0.1 or (not self.models and kind < 0.2):
            record = self.shelf.publish("model", f"guest-{number}", summary={"source": "hub"}, n=number)
            return Made(record, is_unseen=True)
        if self.models and kind < 0.25:
            parent = self.models[self._pick(len(self.models))]
            record = self.shelf.publish(
                "model", f"grown-{number}", {"model": parent.record.fingerprint}, rule={"n": number}
            )
            return Made(record, parent.seen().texts, parent.seen().is_unseen)
        return self._trained(number)

    def _trained(self, number: int) -> Made:
        tokenizer = self._tokenizers[self._pick(2)]
        used, parents = [tokenizer], {"tokenizer": tokenizer.record.fingerprint}
        corpora = [self._corpora[self._pick(len(self._corpora))]]
        if self.models and self._chance(0.4):
            corpora = [self._corpus(self.models[self._pick(len(self.models))])]
        corpora += [self._corpus()] if self._chance(0.4) else []
        tokens = {
            f"tokens.{name}": self._tokens(one, tokenizer) for name, one in zip("ab", corpora, strict=False)
        }
        if self.models and self._chance(0.2):
            tokens = {"labels": self._labels()}
        used += [*tokens.values()]
        parents |= {key: one.record.fingerprint for key, one in tokens.items()}
        # without objectives no plan can be checked: when something was read is unknown, not what
        how: dict[str, Any] = {} if self._chance(0.1) else {"objective": {"lm": {"kind": "lm"}}}
        if self.models and self._chance(0.4):
            init = self.models[self._pick(len(self.models))]
            parents["init"] = init.record.fingerprint
            used.append(init.seen())
        summary: dict[str, Any] = {}
        if self.models and self._chance(0.5):
            teacher = self.models[self._pick(len(self.models))]
            parents["teacher"] = teacher.trajectory or teacher.record.fingerprint
            summary = {"gate_step": 0, "teacher_steps": [0, 8] if teacher.trajectory else None}
            used.append(teacher if teacher.trajectory else teacher.seen())
        record, trajectory = self._training(f"model-{number}", parents, [*tokens], summary, how)
        texts = frozenset().union(*(one.texts for one in used))
        is_gone = self._chance(0.1)
        if is_gone:
            shutil.rmtree(self.shelf.store.address("model", record.fingerprint))
        return Made(record, texts, any(one.is_unseen for one in used), trajectory, is_gone)

    def _training(
        self,
        name: str,
        parents: dict[str, str],
        sources: list[str],
        summary: dict[str, Any],
        how: dict[str, Any],
    ) -> tuple[Record, str]:
        step = 9
        part = Segment(start=0, end=step, identity={"seed_name": name, **how}, parents=parents)
        register_trajectory(self.shelf.store, name, part, {})
        kind = "examples" if sources == ["labels"] else "windows"
        streams = [
            Stream(input=key, kind=kind, weight=1.0 + n, num_examples=4 if kind == "examples" else 0)
            for n, key in enumerate(sources)
        ]
        plan = DataPlan(streams=in_order(streams), seed=3, global_batch=4, sequence=64, last=10**6)
        train = Train.model_validate({"steps": step, "global_batch": 4, "sequence": 64})
        write_data_plan(self.shelf.store, part.fingerprint, plan, train)
        url = self.shelf.store.address("trajectory", part.fingerprint)
        segment = SegmentAddress(fingerprint=part.fingerprint, url=url, start=0, end=step)
        return self.shelf.model(name, segment, parents, step=step, **summary), part.fingerprint

    def audits(self) -> Iterator[tuple[Made, AuditResult]]:
        """Of each model that is not gone: what is known of it, and its audit."""
        settings = EvaluationSet(
            name="asked", kind="free", metrics=(Metric(name="exact_match", direction="maximize"),)
        )
        files = {
            "set.json": json.dumps(settings.model_dump(mode="json")).encode(),
            "questions.jsonl": jsonl(list(self.questions)),
        }
        asked = self.shelf.publish("evaluation", "asked.0", files=files)
        store = Store(self.shelf.store.root)
        for number, made in enumerate(self.models):
            if made.is_gone:
                continue
            config, inputs = audit_config(store, made.record, {"asked.0": asked}, {})
            run = RunFile(
                schema=1,
                task="audit",
                version=1,
                config=config.model_dump(mode="json"),
                inputs={name: store.address(*where) for name, where in inputs.items()},
                outputs={KIND: str(self.root / f"audit-{number}")},
                scratch=str(self.root / "scratch"),
            )
            audit = QuestionAudit(config, run, self.root / "scratch", Progress(io.StringIO()))
            yield made, audit.result(made.record.name, made.record.fingerprint)
