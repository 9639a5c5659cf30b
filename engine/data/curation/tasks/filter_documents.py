"""The task `filter_documents`: judge each document of a source alone, by filters in their order."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from atelier.engine.config.base import Json, parse
from atelier.engine.config.run_file import RunFile
from atelier.engine.config.task.curation import FilterConfig
from atelier.engine.data.curation.spool import Ranks, Spool
from atelier.engine.data.curation.verdicts import Verdict, line_of, number_of_shard, numbered
from atelier.engine.data.filter_text import Check, DocumentText, check_of
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.process import Progress, input_of, output_of
from atelier.engine.io.shards import ShardWriter, shard_names, size_of


def filter_documents(
    run: RunFile, progress: Progress, ranks: Ranks
) -> tuple[ArtifactOutput, dict[str, Json]] | None:
    """Write a verdict for each document that a filter removes: `reason` is <name of the filter>.<rule>, with
    the measured number and its limit. Returns None on other ranks than the first.
    """
    config, documents = parse(FilterConfig, run.config, "config"), input_of(run, "documents")
    names = {number_of_shard(name): name for name in shard_names(documents)}
    read = sorted(input_of(run, name).record.digest for name in run.inputs)
    spool = Spool(run, "verdicts", [read, run.config], ranks, progress)
    needs = {name for _, spec in config.filters for name in spec.needs}
    folders = {name: _folder(input_of(run, name), spool.scratch / name) for name in needs}
    checks = {name: check_of(spec, folders) for name, spec in config.filters}
    spool.each([*names], lambda unit: _judged(documents, names[unit], checks, spool.scratch))
    if not ranks.is_first:
        return spool.leave()
    output = output_of(run, "verdicts")
    return output, spool.publish([*names], output)


def _judged(
    documents: ArtifactInput, name: str, checks: dict[str, Check], scratch: Path
) -> Iterable[ShardWriter]:
    writer = ShardWriter(scratch / "verdicts.zst")
    for row, document in numbered(documents, name, scratch):
        size, text = size_of(document["text"]), DocumentText(document["text"], document["key"])
        for filter_name, check in checks.items():
            if (refusal := check(text)) is not None:
                reason = f"{filter_name}.{refusal.reason.rpartition('.')[2]}"
                verdict: Verdict = {
                    "row": row, "id": document["id"], "bytes": size, "reason": reason,
                    "numbers": refusal.numbers,
                }  # fmt: skip
                writer.write(line_of(verdict))
                writer.count_document(size, "removed", reason)
                break
        else:
            writer.count_document(size, "kept")
    return [writer]


def _folder(artifact: ArtifactInput, folder: Path) -> Path:
    """The files of an artifact as a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in artifact.names():
        shutil.copyfile(artifact.file(name, folder.parent), folder / name)
    return folder
