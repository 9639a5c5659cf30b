"""Score models on held-out text and labelled examples: python -m atelier.engine.evaluate run.json

run.json: task "score"; config is a Scoring (engine/config/evaluation.py); inputs `model.<key>` of every
target, `tokens`, `tokenizer` and, where a target asks for them, `labels` and `imitations`; outputs `<key>`,
and `baselines` if wanted.

Each output is a scores.json. For a model:
  loss           nats a token over the first score.max_tokens held-out tokens, whole documents, in windows of
                 `sequence` with documents isolated as in training. End tokens count. A document's first
                 token has no context: it is charged ln V for every model, so that every byte is paid for
  held_out       the name of that text and its windows: losses of others are not compared
  bits_per_byte  loss x tokens / ln 2 / bytes: comparable with compressors and between tokenizers
  tokens, bytes, documents   what was scored; bytes are UTF-8
  accuracy       share of test examples whose completion is the option of highest likelihood, with end
                 tokens where one option begins another; accuracy_normalised: highest likelihood a token;
                 `correct`: 0 or 1 an example. Without options: of completions written as they are; `f1`
  heads          of each head of classes the share of score.rows held-out rows that it gets `right`
  majority       the accuracy of always giving the most common answer
  cut_prompts    examples whose prompt, or a solved one before it, lost its beginning
  sample         score.sample and its continuation: 120 tokens, temperature 0.8, seed 0
The baselines: gzip -9, xz -9e and an interpolated token trigram on the same documents, in bits per byte,
first tokens charged alike; and what is got right of heads' rows without a network. Arithmetic is float32
unless score.precision says otherwise, and nothing depends on time: two runs write the same.
"""

import gc
import math
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO, cast

import numpy as np
import torch
from torch import nn

from atelier.engine.config.base import Json, parse
from atelier.engine.config.data import UNCUT, Score
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.evaluation import Scoring, Target, scored_name
from atelier.engine.config.generation import Sampling
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.row_classes import RowClasses
from atelier.engine.config.run_file import RunFile
from atelier.engine.config.soft_prompt import SoftPrompt
from atelier.engine.data.examples import Examples
from atelier.engine.data.ngram import (
    Trigram,
    gzip_bits,
    shuffled,
    trigram_bits,
    with_own_begin,
    xz_bits,
)
from atelier.engine.data.tokens import token_dtype
from atelier.engine.data.vocabulary import TOKENIZER, Vocabulary
from atelier.engine.inference.generator import Generator, check_vocabulary
from atelier.engine.inference.heads import HeadExam, judged, without_network
from atelier.engine.inference.models import GangModel, TextModel
from atelier.engine.inference.opened import opened
from atelier.engine.inference.questions import written
from atelier.engine.inference.sampling import num_positions
from atelier.engine.inference.scoring import (
    HeldOutText,
    chosen,
    num_places,
    read_held_out,
    row_lengths,
    text_nats,
)
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.io.process import Progress, input_of, leave, output_of, run_verb
from atelier.engine.parallel.gang import Gang, start_gang
from atelier.engine.tier.ring import ring_of

SCORES, BASELINES = "scores.json", "baselines"
NUM_WORDS = 4  # of a prompt from the text
SAMPLE = Sampling(max_tokens=120, temperature=0.8, top_p=1.0, seed=0)
EXAMPLES_SEED = 0  # every model of every run gets the same test examples
TRIGRAM_FROM = 16  # smallest training text: 2^16 tokens
TRIGRAM_TOKENS = 20_000_000  # of training text at most, because its tables are in memory


@dataclass(frozen=True, kw_only=True)
class Exam:
    """The held-out text and labelled examples on which all models of the run are scored."""

    sequence: int | None  # tokens of context; None: no text is scored
    prompt: str
    vocabulary: Vocabulary
    text: HeldOutText | None
    tokens: str  # fingerprint of the text's tokens artifact
    examples: dict[int | None, Examples]  # by number of shots
    heads: HeadExam | None

    def asked(self, target: Target, spec: ModelSpec | None = None) -> Examples | None:
        """The examples of a target, as its model reads them."""
        if not target.labels:
            return None
        examples, soft = self.examples[target.shots], getattr(spec, "soft_prompt", SoftPrompt())
        if spec is None:
            return examples
        return examples.prompted(soft, spec.tokens, is_paired=spec.reads_encoder)

    def num_tokens(self, target: Target) -> int:
        """Tokens computed to score one model, for the progress report."""
        num_text = len(self.text.tokens_N) if target.text and self.text else 0
        examples = self.asked(target)
        return num_text + (sum(row_lengths(examples)) if examples else 0)


def evaluate(run: RunFile, stream: TextIO) -> dict[str, Json]:
    """Score the targets of the run file that have an output; each body.json is written when its model is
    scored. Returns the summaries.
    """
    config = parse(Scoring, run.config, "config")
    targets = targets_of(run, config)
    scratch, progress = Path(run.scratch), Progress(stream)
    gang = start_gang(run.layout, run.gpu)
    if not gang.is_first:
        for key in targets:
            with opened_target(run, config, key, gang):
                pass
            gc.collect()  # as below
        return {}
    exam, tokenizer = set_exam(run, config, targets, scratch)
    models = {key: input_of(run, f"model.{key}") for key in targets}
    for key, model in models.items():
        check_tokenizer(model, tokenizer, exam.vocabulary, scratch, f"model.{key}")
    summaries: dict[str, Json] = {}
    if BASELINES in run.outputs and exam.text is not None:
        scores = baselines(exam, exam.text, input_of(run, "tokens"), scratch)
        summaries[BASELINES] = publish(run, BASELINES, scores)
    progress.start(sum(exam.num_tokens(target) for target in targets.values()), "tokens")
    for key in targets:
        scores, streamed = scored_target(run, config, key, gang, exam, progress)
        summaries[key] = publish(run, key, scores, streamed)
        if streamed or gang.world > 1:  # before the next is read: two may not fit
            gc.collect()  # a streamed model and its ring reference each other, as do parts of a sharded one
    return summaries


def opened_target(
    run: RunFile, config: Scoring, key: str, gang: Gang
) -> AbstractContextManager[TextModel | None]:
    """The model of a target, over the ranks of the gang."""
    asked = config.score
    return opened(
        input_of(run, f"model.{key}"),
        Path(run.scratch),
        asked,
        gang,
        dtype=torch.bfloat16 if asked.precision == "bf16" else torch.float32,
        memory=int(asked.memory_gb * 1e9),
        place="score.memory_gb",
    )


def scored_target(
    run: RunFile, config: Scoring, key: str, gang: Gang, exam: Exam, progress: Progress
) -> tuple[dict[str, Json], dict[str, Json]]:
    """The content of a target's scores.json, and what reading its weights from files took, if they were."""
    target, place = config.targets[key], f"model.{key}"
    with opened_target(run, config, key, gang) as model:
        assert model is not None  # this is the first rank
        check_model(model.spec, exam, target, place)
        scores = score(model, exam, target, progress, place)
        ring = None if isinstance(model, GangModel) else ring_of(cast(nn.Module, model))
        return scores, {} if ring is None else {"streamed": ring.counts()}


def targets_of(run: RunFile, config: Scoring) -> dict[str, Target]:
    """The targets with an output. Raises ConfigError for an output that is not a target."""
    for key in run.outputs:
        if key not in config.targets and key != BASELINES:
            known = ", ".join(config.targets) or "none"
            raise ConfigError("run.outputs", f"{key} is not a target", f"there are: {known}, and {BASELINES}")
    return {key: target for key, target in config.targets.items() if key in run.outputs}


def set_exam(
    run: RunFile, config: Scoring, targets: dict[str, Target], scratch: Path
) -> tuple[Exam, ArtifactInput]:
    """Load the held-out text, the examples of the targets, and the tokenizer.

    Raises ConfigError if score.sequence is `auto` or the tokens are another tokenizer's.
    """
    asked, tokenizer = config.score, input_of(run, "tokenizer")
    vocabulary = Vocabulary.of(tokenizer, scratch)
    sequence = None if asked.sequence == "auto" else asked.sequence
    text, source = None, ""
    if any(target.text for target in targets.values()) or BASELINES in run.outputs:
        if sequence is None:
            raise ConfigError(
                "config.score.sequence", "is auto", "give a number: the training's train.sequence"
            )
        tokens = input_of(run, "tokens")
        check_tokens(tokens, tokenizer, vocabulary)
        text = read_held_out(tokens, vocabulary, scratch, asked.max_tokens)
        source = tokens.record.fingerprint
    examples = {
        shots: read_examples(input_of(run, "labels"), tokenizer, asked, scratch, shots)
        for shots in {target.shots for target in targets.values() if target.labels}
    }
    exam = Exam(
        sequence=sequence,
        prompt=asked.sample or (first_words(vocabulary, text) if text is not None else ""),
        vocabulary=vocabulary,
        text=text,
        tokens=source,
        examples=examples,
        heads=None,
    )
    if config.heads and sequence and text is not None:
        exam = replace(exam, heads=head_exam(run, config, vocabulary, sequence, scratch))
    return exam, tokenizer


def first_words(vocabulary: Vocabulary, text: HeldOutText) -> str:
    """The beginning of the held-out text, as a prompt."""
    words = vocabulary.decode(text.tokens_N[:64].tolist()).split()
    return " ".join(words[:NUM_WORDS])


def head_exam(
    run: RunFile, config: Scoring, vocabulary: Vocabulary, sequence: int, scratch: Path
) -> HeadExam:
    """Rows of the kinds in `config.heads`."""
    specs = {kind: spec for kind, spec in config.heads.items() if isinstance(spec, RowClasses)}
    return HeadExam(
        specs=specs,
        sources={kind: input_of(run, kind) for kind in {spec.source for spec in specs.values()}},
        vocabulary=vocabulary,
        scratch=scratch,
        sequence=sequence,
        number=config.score.rows,
    )


def read_examples(
    labels: ArtifactInput, tokenizer: ArtifactInput, asked: Score, scratch: Path, shots: int | None
) -> Examples:
    """The first `score.max_examples` test examples in a fixed order; score.sequence=auto cuts no prompt."""
    return Examples(
        labels,
        tokenizer,
        scratch,
        sequence=UNCUT if asked.sequence == "auto" else asked.sequence,
        num_examples=min(asked.max_examples, int(labels.record.summary["test"])),
        seed=EXAMPLES_SEED,
        split="test",
        shots=shots,
    )


def check_tokens(tokens: ArtifactInput, tokenizer: ArtifactInput, vocabulary: Vocabulary) -> None:
    """Raise ConfigError if another tokenizer made the tokens."""
    made_by = tokens.record.parents.get("tokenizer", tokenizer.record.fingerprint)
    size = int(tokens.record.summary["vocab"])
    if size != vocabulary.size or made_by != tokenizer.record.fingerprint:
        raise ConfigError(
            "run.inputs.tokens",
            f"made by tokenizer {made_by[:8]} of {size} tokens, but the tokenizer given is"
            f" {tokenizer.record.fingerprint[:8]} of {vocabulary.size}",
            "give the tokenizer that encoded them",
        )


def check_tokenizer(
    model: ArtifactInput, tokenizer: ArtifactInput, vocabulary: Vocabulary, scratch: Path, place: str
) -> None:
    """Raise ConfigError if the model has another tokenizer, even of equal size: ids mean other text."""
    if TOKENIZER not in model.names():
        return
    if Vocabulary.of(model, scratch).before != vocabulary.before:
        raise ConfigError(
            place, "its texts begin differently than the given tokenizer's", "use the model's tokenizer"
        )
    if (own := model.entry(TOKENIZER).sha256) != (given := tokenizer.entry(TOKENIZER).sha256):
        size = Vocabulary.of(model, scratch).size
        raise ConfigError(
            place,
            f"its tokenizer {own[:8]} has {size} tokens, the given {given[:8]} has {vocabulary.size}",
            "give the tokenizer that the model was trained with, or train a new model with this one",
        )


def check_model(spec: ModelSpec, exam: Exam, target: Target, place: str) -> None:
    """Raise ConfigError if a model has another vocabulary, or fewer positions than needed here."""
    check_vocabulary(exam.vocabulary, spec, place)
    needed = exam.sequence if target.text and exam.sequence else 0
    if examples := exam.asked(target, spec):
        needed = max(needed, num_places(examples))
    room = num_positions(spec)
    if room is not None and room < needed:
        raise ConfigError(
            place,
            f"has {room} learned positions, but its rows have {needed} tokens",
            f"score.sequence={room} would fit",
        )


def score(model: TextModel, exam: Exam, target: Target, progress: Progress, place: str) -> dict[str, Json]:
    """The content of one model's scores.json. Raises DataError if the loss is not finite."""
    result: dict[str, Json] = {}
    if target.text and exam.text is not None and exam.sequence:
        vocab, text = exam.vocabulary.size, exam.text
        nats = text_nats(model, text, sequence=exam.sequence, vocab=vocab, advance=progress.advance)
        if not math.isfinite(nats):
            raise DataError(f"{place}: its loss is {nats}; its weights are damaged or its training diverged")
        result |= {
            "sequence": exam.sequence,
            "held_out": scored_name(exam.tokens, len(text.tokens_N), exam.sequence),
            "loss": nats / len(text.tokens_N),
            "bits_per_byte": nats / math.log(2) / text.num_bytes,
            "sample": exam.prompt + Generator(model, exam.vocabulary).text(exam.prompt, SAMPLE),
        } | counts(text)
    if target.heads and exam.heads is not None:
        result["heads"] = cast(Json, judged(model, exam.heads))
    if examples := exam.asked(target, model.spec):
        if cut := examples.what_is_cut():
            progress.warn(f"{place}: {cut}")
        if examples.is_free:
            result |= written(model, examples, exam.vocabulary, advance=progress.advance)
        else:
            result |= chosen(model, examples, advance=progress.advance)
        result |= {"examples": len(examples), "cut_prompts": examples.num_cut()}
    return result


def counts(text: HeldOutText) -> dict[str, int]:
    return {"tokens": len(text.tokens_N), "bytes": text.num_bytes, "documents": len(text.ends_D)}


def baselines(exam: Exam, text: HeldOutText, tokens: ArtifactInput, scratch: Path) -> dict[str, Json]:
    """Scores without a model, in bits per byte; the trigram is charged for first tokens like models
    (`text_nats`). It is also trained on 2^16, 2^17 ... tokens of shuffled documents, to compare with models
    after as many.
    """
    vocabulary = exam.vocabulary
    raw = text.raw(vocabulary)
    dtype = token_dtype(vocabulary.size)
    read_N = np.fromfile(tokens.file("train.bin", scratch), dtype=dtype, count=TRIGRAM_TOKENS)
    vocab, end, train_N, held_out_N = vocabulary.size, vocabulary.end_id, read_N, text.tokens_N
    if vocabulary.before == (end,):
        ends_D = np.load(tokens.file("train.ends.npy", scratch), allow_pickle=False)
        train_N = with_own_begin(read_N, ends_D, vocab)
        held_out_N, vocab = with_own_begin(text.tokens_N, text.ends_D, vocab), vocab + 1
    first = 0.0 if text.is_begun else len(text.ends_D) * math.log2(vocab) / text.num_bytes
    how = {"vocab": vocab, "end": end, "num_bytes": text.num_bytes}
    sizes = [2**power for power in range(TRIGRAM_FROM, 40) if 2**power < len(train_N)]
    some_N = shuffled(train_N, end)
    found = {size: trigram_bits(some_N[:size], held_out_N, **how) + first for size in sizes}
    whole = Trigram(train_N, vocab, end)
    return {
        "gzip": gzip_bits(raw),
        "xz": xz_bits(raw),
        "trigram": whole.bits(held_out_N, text.num_bytes) + first,
        "trigram_tokens": len(train_N),
        "trigram_by_tokens": {str(size): bits for size, bits in found.items()},
        **({"heads": cast(Json, without_network(exam.heads, whole, read_N))} if exam.heads else {}),
    } | counts(text)


def publish(
    run: RunFile, key: str, scores: dict[str, Json], how: Mapping[str, Json] | None = None
) -> dict[str, Json]:
    """Write scores.json and body.json of output `key`; the summary has the scores without `correct`, and
    `how` they were computed.
    """
    output = output_of(run, key)
    output.add_json(SCORES, scores)
    summary = {name: value for name, value in scores.items() if name != "correct"} | dict(how or {})
    output.close(summary)
    return summary


def act(run: RunFile) -> dict[str, Json]:
    os.environ["RAYON_NUM_THREADS"] = (
        "1"  # read by the tokenizer's thread pool when it starts; there is little to encode
    )
    return evaluate(run, sys.stdout)


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code; one JSON line reports the end."""
    return run_verb("evaluate", arguments, act)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
