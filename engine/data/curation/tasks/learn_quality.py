"""The task `learn_quality`: train a quality classifier on the documents of good and of bad sources."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from atelier.engine.config.base import Json, parse
from atelier.engine.config.run_file import RunFile
from atelier.engine.config.task.curation import LearnQualityConfig
from atelier.engine.data.copies import text_group
from atelier.engine.data.corpus import fraction
from atelier.engine.data.curation.spool import Ranks
from atelier.engine.data.curation.verdicts import numbered
from atelier.engine.data.quality import ABOUT, WEIGHTS, QualityExample, train_quality
from atelier.engine.io.artifact import ArtifactOutput
from atelier.engine.io.process import Progress, input_of, output_of
from atelier.engine.io.shards import shard_names


def learn_quality(
    run: RunFile, progress: Progress, ranks: Ranks
) -> tuple[ArtifactOutput, dict[str, Json]] | None:
    """Write the weights, and the classifier's settings with its held-out accuracy by source. Returns None on
    other ranks than the first.

    Raises DataError if a class has no document to train on.
    """
    if not ranks.is_first:
        return None
    config = parse(LearnQualityConfig, run.config, "config").quality
    scratch = Path(run.scratch)
    found = train_quality(
        _examples(run, config.positives, config.most, scratch, progress),
        _examples(run, config.negatives, config.most, scratch, progress),
        config.classifier,
    )
    found.save(scratch / "classifier")
    output = output_of(run, "classifier")
    for name in (WEIGHTS, ABOUT):
        output.add(name, scratch / "classifier" / name)
    return output, {"report": found.report}


def _examples(
    run: RunFile, sources: Sequence[str], most: int, scratch: Path, progress: Progress
) -> Iterator[QualityExample]:
    """Documents of some sources: about `most` of each, those of least hash, in order."""
    for source in sources:
        documents = input_of(run, f"documents.{source}")
        share = most / max(1, documents.record.summary["documents"])
        for name in shard_names(documents):
            for _, line in numbered(documents, name, scratch):
                if fraction(text_group(line["key"])) < share:
                    yield QualityExample(line["text"], source)
                    progress.advance(1)
