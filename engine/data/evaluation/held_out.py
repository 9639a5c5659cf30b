"""An evaluation set of a corpus: its held-out documents, whose whole text is scored in bits per byte. Models
read it with their own tokenizers, so those of different vocabularies can be compared.
"""

from pathlib import Path
from typing import cast

from atelier.engine.config.base import Json, canonical
from atelier.engine.config.error import DataError
from atelier.engine.config.evaluation_set import QUESTIONS, SET, EvaluationSet, Metric, QuestionLine
from atelier.engine.config.task.prepare import PoseConfig
from atelier.engine.data.corpus import HELD_OUT, corpus_lines
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.process import Progress


def pose_held_out(
    config: PoseConfig, corpus: ArtifactInput, output: ArtifactOutput, scratch: Path, progress: Progress
) -> dict[str, Json]:
    """Write set.json and questions.jsonl: a text for each held-out document, empty ones left out and counted.
    Returns the summary. Raises DataError if there is none.
    """
    progress.start(int(corpus.record.summary.get("documents", 0)), "documents")
    lines: list[QuestionLine] = []
    empty = left_out = 0
    for line in corpus_lines(corpus, scratch):
        progress.advance(1)
        if line["split"] != HELD_OUT:
            continue
        if not line["text"].strip():
            empty += 1
            continue
        if config.max_questions and len(lines) == config.max_questions:
            left_out += 1
            continue
        lines.append(
            {
                "id": line["id"],
                "context": "",
                "options": [],
                "answer": 0,
                "targets": [line["text"]],
                "shots": [],
                "group": line["group"],
                "parts": [line["text"]],
                "answer_text": "",
            }
        )
    if not lines:
        raise DataError(f"{corpus.url}: has no held-out document with text; give another corpus")
    if left_out:
        progress.warn(f"{config.name}: {left_out} documents after the first {len(lines)} are left out")
    made = EvaluationSet(
        name=config.name,
        kind="text",
        metrics=(Metric(name="bits_per_byte", direction="minimize"),),
        template={"corpus": corpus.record.fingerprint},
    )
    output.add_json(SET, made.model_dump(mode="json"))
    output.add_bytes(QUESTIONS, b"".join(canonical(cast(Json, line)) + b"\n" for line in lines))
    groups = len({line["group"] for line in lines})
    return {"questions": len(lines), "kind": "text", "groups": groups, "empty": empty, "left_out": left_out}
