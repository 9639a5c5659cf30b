"""Run the tasks that curate a corpus in a folder, by several ranks in threads, with any number of shards."""

import io
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atelier.engine.config.base import Spec
from atelier.engine.config.curation import Curation, LearnedQuality
from atelier.engine.config.data import Source
from atelier.engine.config.error import AtelierError
from atelier.engine.config.record import FileEntry, Record, identify
from atelier.engine.config.run_file import RunFile
from atelier.engine.config.task.curation import (
    AssembleConfig,
    CollectConfig,
    DecontaminateConfig,
    DeduplicateConfig,
    FilterConfig,
    LearnQualityConfig,
)
from atelier.engine.data.corpus import corpus_lines
from atelier.engine.data.curation.spool import Ranks
from atelier.engine.data.curation.tasks.assemble import assemble
from atelier.engine.data.curation.tasks.collect import collect
from atelier.engine.data.curation.tasks.decontaminate import decontaminate
from atelier.engine.data.curation.tasks.deduplicate import deduplicate
from atelier.engine.data.curation.tasks.filter_documents import filter_documents
from atelier.engine.data.curation.tasks.learn_quality import learn_quality
from atelier.engine.io.artifact import ArtifactInput, open_input
from atelier.engine.io.process import Progress
from atelier.engine.io.shards import shard_lines
from atelier.engine.io.source_files import content_id, files_of

TASKS: dict[str, Callable[..., Any]] = {
    "collect": collect,
    "filter_documents": filter_documents,
    "deduplicate": deduplicate,
    "decontaminate": decontaminate,
    "assemble": assemble,
    "learn_quality": learn_quality,
}


@dataclass
class Pipeline:
    """Curates sources (name -> folder of files) by `curation`; `made` has the artifacts by name."""

    folder: Path
    sources: dict[str, Path]
    curation: Curation
    held_out: float = 0.1
    ranks: int = 1
    shards: int = 0
    made: dict[str, ArtifactInput] = field(default_factory=dict)
    said: list[dict[str, Any]] = field(default_factory=list)

    def run(self, stop_after: int = -1) -> "Pipeline":
        """Make everything that is missing; `stop_after`: fail once so many units were written."""
        ranked = self.curation.ranked([*self.sources])
        for name in self.sources:
            self.make("collect", f"documents.{name}", "documents", self.collect_config(name), [])
        for name in (self.curation.filtered or self.sources) if self.curation.filters else ():
            config = FilterConfig(filters=tuple(self.curation.filters.items()))
            documents = {"documents": self.made[f"documents.{name}"]}
            if self.curation.quality is not None:
                documents["classifier"] = self.classifier(self.curation.quality)
            self.make("filter_documents", f"verdicts.{name}", "verdicts", config, documents)
        if self.curation.deduplicate is not None:
            config = DeduplicateConfig(deduplicate=self.curation.deduplicate, sources=tuple(ranked))
            self.make("deduplicate", "copies", "copies", config, self.judged())
        if self.curation.decontaminate is not None:
            settings = self.curation.decontaminate
            files = {
                name: tuple((file, content_id(file)) for file in files_of(Source(source=each.source)))
                for name, each in settings.questions.items()
                if each.source
            }
            config = DecontaminateConfig(decontaminate=settings, files=files, sources=tuple(ranked))
            sets = {key: made for key, made in self.made.items() if key.startswith("sets.")}
            self.make("decontaminate", "overlaps", "overlaps", config, self.judged() | sets)
        for name in self.sources:
            config = AssembleConfig(name=name, place=ranked.index(name), held_out=self.held_out, is_cut=True)
            own = [f"documents.{name}", f"verdicts.{name}", "copies", "overlaps"]
            inputs = {key: self.made[key] for key in own if key in self.made}
            self.make("assemble", f"corpus.{name}", "corpus", config, inputs)
        return self

    def collect_config(self, name: str) -> CollectConfig:
        source = Source(source=str(self.sources[name]))
        files = tuple((file, content_id(file)) for file in files_of(source))
        return CollectConfig(source=source, files=files, shards=self.shards)

    def classifier(self, quality: LearnedQuality) -> ArtifactInput:
        """The quality classifier, learned when it is needed first."""
        documents = {key: made for key, made in self.made.items() if key.startswith("documents")}
        self.make("learn_quality", "classifier", "classifier", LearnQualityConfig(quality=quality), documents)
        return self.made["classifier"]

    def judged(self) -> dict[str, ArtifactInput]:
        stages = ("documents", "verdicts", "copies")
        return {key: made for key, made in self.made.items() if key.startswith(stages)}

    def make(
        self, task: str, key: str, output: str, config: Spec, inputs: dict[str, ArtifactInput] | list
    ) -> None:
        """Run one task and publish its output."""
        if key in self.made:
            return
        place = self.folder / "store" / key
        target, given = place / "payload-1", dict(inputs)
        run = RunFile(
            schema=1,
            task=task,
            version=1,
            config=config.model_dump(mode="json"),
            inputs={name: each.url for name, each in given.items()},
            outputs={output: str(target)},
            scratch=str(self.folder / "scratch" / key),
        )
        self.execute(run)
        body = json.loads((target / "body.json").read_text())
        files = tuple(
            FileEntry.model_validate({**entry, "path": f"payload-1/{entry['path']}"})
            for entry in body["files"]
        )
        identity = {"config": config.as_identity()}
        record = Record(
            kind=output, name=key, fingerprint=identify(output, 1, identity, {}), version=1,
            identity=identity, parents={}, files=files, summary=body["summary"], provenance={},
        ).sealed()  # fmt: skip
        (place / "record.json").write_text(record.text())
        self.made[key] = open_input(str(place))

    def execute(self, run: RunFile) -> None:
        """Run one task by all ranks in threads. Raises the error of any."""
        problems: list[BaseException] = []
        spoken = io.StringIO()

        def work(rank: int) -> None:
            progress = Progress(spoken if rank == 0 else io.StringIO())
            try:
                made = TASKS[run.task](run, progress, Ranks(rank, self.ranks))
                if made is not None:
                    made[0].close(made[1])
            except BaseException as error:
                if not (rank and isinstance(error, SystemExit) and error.code == 0):  # rank 0 had published
                    problems.append(error)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(1, self.ranks)]
        for thread in threads:
            thread.start()
        work(0)
        for thread in threads:
            thread.join()
        self.said += [json.loads(line) for line in spoken.getvalue().splitlines()]
        if problems:
            raise next((each for each in problems if isinstance(each, AtelierError)), problems[0])

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The documents of a corpus."""
        return [dict(line) for line in corpus_lines(self.made[f"corpus.{name}"], self.folder)]

    def verdicts(self, key: str, folder: str = "shards") -> list[dict[str, Any]]:
        """All verdicts of a stage, in order."""
        artifact = self.made[key]
        names = sorted(name for name in artifact.names() if name.startswith(f"{folder}/"))
        return [line for name in names for line in shard_lines(artifact, name, self.folder)]

    def warnings(self) -> str:
        return "\n".join(line["warning"] for line in self.said if "warning" in line)
