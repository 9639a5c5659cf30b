"""Let a model continue the beginnings of natural paragraphs: python -m atelier.engine.imitate run.json

run.json: config is an Imitate (engine/config/generation.py), inputs {"model", "tokens", "tokenizer"}, output
"imitations": imitations.jsonl, lines {"split", "prefix", "temperature", "original", "generated"}; `original`
and `generated` are token ids that share the first `prefix` tokens and end with a sentence.

B rows
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from atelier.engine.config.base import canonical, parse
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.generation import Imitate
from atelier.engine.config.run_file import RunFile
from atelier.engine.data.corpus import HELD_OUT, TRAIN
from atelier.engine.data.counter_rng import Chance, below, uniform
from atelier.engine.data.datasets.natural import IMITATIONS
from atelier.engine.data.tokens import TokenText
from atelier.engine.data.vocabulary import TOKENIZER, Vocabulary
from atelier.engine.data.words import Sentences
from atelier.engine.inference.generator import Generator
from atelier.engine.inference.models import TextModel
from atelier.engine.inference.opened import opened_generator
from atelier.engine.inference.sampling import continuations
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.io.process import Progress, input_of, leave, output_of, run_verb
from atelier.engine.parallel.gang import start_gang

ROWS = 64  # continued at once
TRIES = 20  # positions tried for each paragraph
_DOCUMENT, _PLACE, _SENTENCES, _HEAT = 1, 2, 3, 4  # lanes


@dataclass(frozen=True)
class Paragraph:
    """A natural paragraph to continue at `temperature`; `number` seeds its random draws."""

    split: str
    number: int
    ids: tuple[int, ...]
    prefix: int
    temperature: float


def paragraphs(text: TokenText, sentences: Sentences, asked: Imitate, count: int) -> list[Paragraph]:
    """Draw `count` natural paragraphs: whole sentences of one document; the prefix is at most half.

    Raises DataError if no document is long enough.
    """
    chance = Chance(asked.seed, "imitate", text.split)
    long_E = np.flatnonzero(text.lengths_D > asked.tokens // 2)
    if not len(long_E):
        raise DataError(
            f"{text.source()}: {text.split} has no document of {asked.tokens // 2} tokens; "
            "reduce imitate.tokens"
        )
    found: list[Paragraph] = []
    for number in range(count * TRIES):
        if len(found) == count:
            break
        [key] = chance.keys(np.array([number]), np.array([0]))
        document = int(long_E[below(key, 0, _DOCUMENT, len(long_E))])
        begin, end = int(text.begins_D[document]), int(text.ends_D[document]) - 1
        first = begin + int(below(key, 0, _PLACE, max(1, end - begin - asked.tokens)))
        ids = text.tokens_N[first : min(end, first + 2 * asked.tokens)].astype(np.int64)
        cuts = [0, *sentences.ends(ids).tolist()] if first == begin else sentences.ends(ids).tolist()
        cuts = [cut for cut in cuts if cut - cuts[0] <= asked.tokens] if cuts else []
        wanted = 1 + int(below(key, 0, _SENTENCES, asked.sentences))
        inside = [cut - cuts[0] for cut in cuts[1:]]
        half = inside[-1] // 2 if inside else 0
        prefixes = [cut for cut in inside[:wanted] if cut <= half]
        if inside and inside[-1] >= asked.tokens // 2 and prefixes:
            whole = tuple(ids[cuts[0] : cuts[-1]].tolist())
            heat = asked.temperatures[int(below(key, 0, _HEAT, len(asked.temperatures)))]
            found.append(Paragraph(text.split, number, whole, prefixes[-1], heat))
    return found


def batches(found: Sequence[Paragraph]) -> Iterator[list[Paragraph]]:
    """The paragraphs in batches of prefixes of similar length."""
    alike = sorted(found, key=lambda each: each.prefix)
    for first in range(0, len(alike), ROWS):
        yield alike[first : first + ROWS]


def imitate(run: RunFile, asked: Imitate) -> dict[str, int]:
    """Write imitations.jsonl; returns the summary."""
    gang = start_gang(run.layout, run.gpu)
    with opened_generator(input_of(run, "model"), Path(run.scratch), asked, gang) as generator:
        return {} if generator is None else _imitate(run, asked, generator)


def _imitate(run: RunFile, asked: Imitate, generator: Generator) -> dict[str, int]:
    scratch, source, tokens = Path(run.scratch), input_of(run, "model"), input_of(run, "tokens")
    if (kind := generator.model.spec).reads_encoder:
        raise ConfigError("imitate.model", f"is of kind {kind.kind}, which has an encoder", "use a decoder")
    check_tokenizer(source, input_of(run, "tokenizer"))
    sentences = Sentences(generator.vocabulary)
    found = _chosen(tokens, sentences, asked, scratch)
    progress = Progress(sys.stdout)
    progress.start(len(found), "paragraphs")
    lines: dict[tuple[str, int], bytes] = {}
    for batch in batches(found):
        for each, ids in zip(
            batch, _continued(generator.model, generator.vocabulary, batch, asked), strict=True
        ):
            is_ended = ids[-1] in generator.vocabulary.ends
            generated = ids[:-1] if is_ended else sentences.whole(ids, each.prefix)
            line = {
                "split": each.split, "prefix": each.prefix, "temperature": each.temperature,
                "original": each.ids, "generated": generated,
            }  # fmt: skip
            lines[each.split, each.number] = canonical(line)
        progress.advance(len(batch))
    output = output_of(run, "imitations")
    output.add_bytes(IMITATIONS, b"\n".join(lines[key] for key in sorted(lines)) + b"\n")
    held_out = sum(each.split == HELD_OUT for each in found)
    summary = {"paragraphs": len(found), "held_out": held_out}
    output.close(summary)
    return summary


def _chosen(tokens: ArtifactInput, sentences: Sentences, asked: Imitate, scratch: Path) -> list[Paragraph]:
    """The paragraphs of both splits, a tenth of them held out."""
    held_out = max(2, asked.paragraphs // 10)
    wanted = {TRAIN: asked.paragraphs - held_out, HELD_OUT: held_out}
    found = []
    for split, count in wanted.items():
        mine = paragraphs(TokenText(tokens, scratch, split), sentences, asked, count)
        if not mine:
            raise DataError(
                f"{tokens.url}: no paragraph of {asked.tokens} tokens in {split}; {_less(asked.tokens)}"
            )
        found += mine
    return found


def _less(tokens: int) -> str:
    return f"try imitate.tokens={max(16, tokens // 2)}" if tokens > 16 else "its texts are too short"


def _continued(
    model: TextModel, vocabulary: Vocabulary, batch: Sequence[Paragraph], asked: Imitate
) -> list[list[int]]:
    """Prefix and continuation of each paragraph, drawn with its own random numbers."""
    prompts = [each.ids[: each.prefix] for each in batch]
    keys = np.concatenate(
        [
            Chance(asked.seed, "draws", each.split).keys(np.array([each.number]), np.array([0]))
            for each in batch
        ]
    )
    found = continuations(
        model,
        prompts,
        length=asked.tokens,
        temperatures_B=torch.tensor([each.temperature for each in batch], dtype=torch.float64),
        top_p=asked.top_p,
        draws=lambda place: torch.from_numpy(uniform(keys, place, 0)),
        ends=vocabulary.ends,
    )
    return [[*prompt, *ids] for prompt, ids in zip(prompts, found, strict=True)]


def check_tokenizer(model: ArtifactInput, tokenizer: ArtifactInput) -> None:
    """Raise ConfigError if the model has another tokenizer: its ids mean other text."""
    own, given = model.entry(TOKENIZER).sha256, tokenizer.entry(TOKENIZER).sha256
    if own != given:
        raise ConfigError(
            "imitate.model",
            f"its tokenizer is {own[:8]}, that of the text {given[:8]}",
            "use one trained on this text",
        )


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code; one JSON line reports the end."""
    return run_verb("imitate", arguments, lambda run: imitate(run, parse(Imitate, run.config, "config")))


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
