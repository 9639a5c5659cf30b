"""Prepare data: python -m atelier.engine.prepare run.json

The run file's task is the verb: see VERBS.
Progress, summary and errors are JSON lines on stdout. Torch is never imported, so this starts in well under a
second.
"""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TextIO, cast

from atelier.engine.config.base import Json, Spec, parse
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.kind_files import kind_module
from atelier.engine.config.project_roots import files_in_roots
from atelier.engine.config.run_file import RunFile
from atelier.engine.config.task.prepare import (
    CurateConfig,
    DescribeConfig,
    EncodeConfig,
    ExtractConfig,
    LabelConfig,
    PoseConfig,
    RenderConfig,
    TokenizerConfig,
)
from atelier.engine.data.attributes import describe
from atelier.engine.data.corpus import TRIPLES
from atelier.engine.data.curate import curate
from atelier.engine.data.curation.spool import Ranks
from atelier.engine.data.encode import encode
from atelier.engine.data.label import label, tuned_on
from atelier.engine.data.learn_tokenizer import learn_tokenizer
from atelier.engine.data.triples import extract
from atelier.engine.data.units import UnitFinder, names_in
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactOutput
from atelier.engine.io.process import Progress, input_of, output_of, run_verb

Prepared = tuple[ArtifactOutput, dict[str, Json]]  # the output, and its summary
Verb = Callable[[RunFile, Path, Progress], Prepared | None]


def _curate(run: RunFile, scratch: Path, progress: Progress) -> Prepared:
    config = parse(CurateConfig, run.config, "config")
    output = output_of(run, "corpus")
    return output, curate(config.source, config.held_out, list(config.files), output, scratch, progress)


def _learn_tokenizer(run: RunFile, scratch: Path, progress: Progress) -> Prepared:
    config = parse(TokenizerConfig, run.config, "config")
    names = sorted((n for n in run.inputs if n.startswith("corpus")), key=lambda n: (len(n), n))
    output = output_of(run, "tokenizer")
    return output, learn_tokenizer(
        config.tokenizer,
        [input_of(run, name) for name in names],
        list(config.files),
        output,
        scratch,
        progress,
        config.texts,
        extends=input_of(run, "extends") if "extends" in run.inputs else None,
        before=[input_of(run, name) for name in sorted(run.inputs) if name.startswith("before")],
    )


def _encode(run: RunFile, scratch: Path, progress: Progress) -> Prepared:
    config = parse(EncodeConfig, run.config, "config")
    output, corpus = output_of(run, "tokens"), input_of(run, "corpus")
    vocabulary = Vocabulary.of(input_of(run, "tokenizer"), scratch)
    units = None
    if not config.units.is_plain:
        triples = input_of(run, "triples").lines(TRIPLES, scratch) if "triples" in run.inputs else []
        units = UnitFinder(config.units, names_in(config, triples, progress), scratch)
    return output, encode(corpus, vocabulary, output, scratch, progress, units, config.sources)


def _label(run: RunFile, scratch: Path, progress: Progress) -> Prepared:
    config = parse(LabelConfig, run.config, "config")
    output = output_of(run, "labels")
    tuned = tuned_on(input_of(run, "tuned"), scratch) if "tuned" in run.inputs else None
    files = list(config.files)
    return output, label(config.labels, files, output, progress, place=config.place, tuned=tuned)


def _render(run: RunFile, scratch: Path, progress: Progress) -> Prepared:
    from atelier.engine.data.render import render  # importing jinja2 takes 0.1 s

    config = parse(RenderConfig, run.config, "config")
    output, model = output_of(run, "chats"), input_of(run, "model")
    return output, render(
        config.chats,
        config.sequence,
        list(config.files),
        model,
        output,
        scratch,
        progress,
        place=config.place,
        length=config.length,
        pairs=config.pairs,
    )


def _pose(run: RunFile, scratch: Path, progress: Progress) -> Prepared:
    config = parse(PoseConfig, run.config, "config")
    output = output_of(run, "evaluation")
    if "corpus" in run.inputs:
        held_out = import_module("atelier.engine.data.evaluation.held_out")
        return output, held_out.pose_held_out(config, input_of(run, "corpus"), output, scratch, progress)
    if "chats" in run.inputs:
        answered = import_module("atelier.engine.data.evaluation.answered")
        return output, answered.pose_answered(config, input_of(run, "chats"), output, scratch, progress)
    made = import_module("atelier.engine.data.evaluation.pose")  # other verbs need none of it
    return output, made.pose(config, output, progress)


def _extract(run: RunFile, scratch: Path, progress: Progress) -> Prepared:
    config = parse(ExtractConfig, run.config, "config")
    output = output_of(run, "triples")
    return output, extract(config, input_of(run, "corpus"), output, scratch, progress)


def _describe(run: RunFile, scratch: Path, progress: Progress) -> Prepared:
    config = parse(DescribeConfig, run.config, "config")
    output = output_of(run, "attributes")
    return output, describe(config, input_of(run, "corpus"), output, scratch, progress)


def _index_words(run: RunFile, scratch: Path, progress: Progress) -> Prepared:
    from atelier.engine.data.audit.index_words import index_words  # few runs audit a corpus

    parse(Spec, run.config, "config")
    output = output_of(run, "word_index")
    return output, index_words(input_of(run, "corpus"), output, scratch, progress)


def _audit(run: RunFile, scratch: Path, progress: Progress) -> Prepared:
    audit = import_module("atelier.engine.data.audit.audit")  # other verbs need none of it
    return audit.audit(run, scratch, progress)


def _of_shards(run: RunFile, scratch: Path, progress: Progress) -> Prepared | None:
    """A task of engine/data/curation/tasks: its ranks share the shards; the first one writes the output."""
    task = import_module(f"atelier.engine.data.curation.tasks.{run.task}")
    return getattr(task, run.task)(run, progress, Ranks.here())


def _of_root(run: RunFile, scratch: Path, progress: Progress) -> Prepared:
    """A task of another project root: the function of its name in engine/data/tasks."""
    verb: Verb = getattr(kind_module("data/tasks", run.task, run.task), run.task)
    return cast(Prepared, verb(run, scratch, progress))


SHARDED = [path.stem for path in sorted((Path(__file__).parent / "data/curation/tasks").glob("[!_]*.py"))]
VERBS: dict[str, Verb] = {
    "curate": _curate, "learn_tokenizer": _learn_tokenizer, "encode": _encode, "label": _label,
    "render": _render, "pose": _pose, "extract": _extract, "describe": _describe,
    "index_words": _index_words, "audit": _audit, **dict.fromkeys(SHARDED, _of_shards),
}  # fmt: skip


def prepare(run: RunFile, stream: TextIO) -> dict[str, Json]:
    """Run the task of the run file; its output's body.json is written last. Returns the summary.

    Raises ConfigError for an unknown task.
    """
    verbs = VERBS | dict.fromkeys(files_in_roots("engine/data/tasks", ".py"), _of_root)
    if run.task not in verbs:
        near = nearest(run.task, verbs)
        raise ConfigError(
            "run.task",
            f"{run.task} is not a preparation task",
            f"known: {', '.join(verbs)}" + (f"; did you mean {near}?" if near else ""),
        )
    made = verbs[run.task](run, Path(run.scratch), Progress(stream))
    if made is None:  # another rank than the first
        return {}
    output, summary = made
    output.close(summary)
    return summary


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code: 0, or the error's. One JSON line reports the end."""

    def act(run: RunFile) -> dict[str, Json]:
        if isinstance(run.layout.threads, int):  # read by the tokenizer's thread pool when it starts
            os.environ["RAYON_NUM_THREADS"] = str(run.layout.threads)
        return prepare(run, sys.stdout)

    return run_verb("prepare", arguments, act)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
