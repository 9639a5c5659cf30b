"""Prepare data: python -m atelier.engine.prepare run.json

The run file's task is the verb: curate, learn_tokenizer, encode, label, render, extract or
describe. Progress, the
summary or a user's error are JSON lines on stdout. Torch is never loaded: this starts in well under a second.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from atelier.engine.config.base import Json, Spec, parse
from atelier.engine.config.chats import Chats
from atelier.engine.config.data import AdoptedEnds, Labels, Source, Tokenizer
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.run_file import RunFile
from atelier.engine.data.attributes import describe
from atelier.engine.data.curate import curate
from atelier.engine.data.encode import encode
from atelier.engine.data.label import label, tuned_on
from atelier.engine.data.learn_tokenizer import learn_tokenizer
from atelier.engine.data.triples import extract
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput, open_input
from atelier.engine.io.process import Progress, run_verb, say


class Curate(Spec):
    source: Source
    held_out: float
    files: tuple[tuple[str, str], ...]


class Learn(Spec):
    tokenizer: Tokenizer
    files: tuple[tuple[str, str], ...] = ()
    texts: AdoptedEnds | None = None


class Encode(Spec):
    pass


class Label(Spec):
    labels: Labels
    files: tuple[tuple[str, str], ...]
    place: str = "finetune.labels"  # of them in the configuration, for errors


class Render(Spec):
    chats: Chats
    sequence: int
    files: tuple[tuple[str, str], ...]
    place: str = "chats"  # the configuration's keys of both, for errors
    length: str = "train.sequence"


class Extract(Spec):
    pass


class Describe(Spec):
    pass


class PrepareJob:
    """A run file with access to its inputs and outputs."""

    def __init__(self, run: RunFile, progress: Progress) -> None:
        self.run, self.progress = run, progress
        self.scratch = Path(run.scratch)

    def input(self, name: str) -> ArtifactInput:
        """The artifact given as input `name`. Raises ConfigError when it is not given."""
        if name not in self.run.inputs:
            raise ConfigError(
                "run.inputs",
                f"{self.run.task} needs the input {name}",
                f"given: {', '.join(self.run.inputs) or 'none'}",
            )
        return open_input(self.run.inputs[name])

    def output(self, name: str) -> ArtifactOutput:
        """The output called `name`. Raises ConfigError when the run file has none."""
        if name not in self.run.outputs:
            raise ConfigError(
                "run.outputs",
                f"{self.run.task} writes {name}",
                f"given: {', '.join(self.run.outputs) or 'none'}",
            )
        return ArtifactOutput(self.run.outputs[name])


def _curate(job: PrepareJob) -> tuple[ArtifactOutput, dict[str, Json]]:
    config = parse(Curate, job.run.config, "config")
    output = job.output("corpus")
    return output, curate(
        config.source, config.held_out, list(config.files), output, job.scratch, job.progress
    )


def _learn_tokenizer(job: PrepareJob) -> tuple[ArtifactOutput, dict[str, Json]]:
    config = parse(Learn, job.run.config, "config")
    names = sorted((n for n in job.run.inputs if n.startswith("corpus")), key=lambda n: (len(n), n))
    output, files = job.output("tokenizer"), list(config.files)
    corpora = [job.input(name) for name in names]
    extends = job.input("extends") if "extends" in job.run.inputs else None
    before = [job.input(name) for name in sorted(job.run.inputs) if name.startswith("before")]
    return output, learn_tokenizer(
        config.tokenizer,
        corpora,
        files,
        output,
        job.scratch,
        job.progress,
        config.texts,
        extends=extends,
        before=before,
    )


def _encode(job: PrepareJob) -> tuple[ArtifactOutput, dict[str, Json]]:
    parse(Encode, job.run.config, "config")
    output, corpus = job.output("tokens"), job.input("corpus")
    vocabulary = Vocabulary.of(job.input("tokenizer"), job.scratch)
    return output, encode(corpus, vocabulary, output, job.scratch, job.progress)


def _label(job: PrepareJob) -> tuple[ArtifactOutput, dict[str, Json]]:
    config = parse(Label, job.run.config, "config")
    output = job.output("labels")
    tuned = tuned_on(job.input("tuned"), job.scratch) if "tuned" in job.run.inputs else None
    files = list(config.files)
    return output, label(config.labels, files, output, job.progress, place=config.place, tuned=tuned)


def _render(job: PrepareJob) -> tuple[ArtifactOutput, dict[str, Json]]:
    from atelier.engine.data.render import render  # jinja2 takes 0.1 s to load

    config = parse(Render, job.run.config, "config")
    output, model = job.output("chats"), job.input("model")
    files = list(config.files)
    return output, render(
        config.chats,
        config.sequence,
        files,
        model,
        output,
        job.scratch,
        job.progress,
        place=config.place,
        length=config.length,
    )


def _extract(job: PrepareJob) -> tuple[ArtifactOutput, dict[str, Json]]:
    parse(Extract, job.run.config, "config")
    output = job.output("triples")
    return output, extract(job.input("corpus"), output, job.scratch, job.progress)


def _describe(job: PrepareJob) -> tuple[ArtifactOutput, dict[str, Json]]:
    parse(Describe, job.run.config, "config")
    output = job.output("attributes")
    return output, describe(job.input("corpus"), output, job.scratch, job.progress)


VERBS: dict[str, Callable[[PrepareJob], tuple[ArtifactOutput, dict[str, Json]]]] = {
    "curate": _curate, "learn_tokenizer": _learn_tokenizer, "encode": _encode, "label": _label,
    "render": _render, "extract": _extract, "describe": _describe,
}  # fmt: skip


def prepare(run: RunFile, stream: TextIO) -> dict[str, Json]:
    """Run the task of the run file; its output's body.json is written last. Returns the summary.

    Raises ConfigError for an unknown task.
    """
    if run.task not in VERBS:
        near = nearest(run.task, VERBS)
        raise ConfigError(
            "run.task",
            f"{run.task} is no task of preparation",
            f"known: {', '.join(VERBS)}" + (f"; did you mean {near}?" if near else ""),
        )
    output, summary = VERBS[run.task](PrepareJob(run, Progress(stream)))
    output.close(summary)
    return summary


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code: 0, or the error's. One JSON line reports how it ended."""

    def act(run: RunFile) -> None:
        if isinstance(run.layout.threads, int):  # read by the tokenizer's thread pool when it starts
            os.environ["RAYON_NUM_THREADS"] = str(run.layout.threads)
        say(sys.stdout, {"done": prepare(run, sys.stdout)})

    return run_verb("prepare", arguments, act)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
