"""Score held-out text and labelled options with a model, in nats, with logits of a few tokens at a time.

B rows, T tokens of a row, N tokens, D documents (hidden width if a model is used), V vocabulary
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from atelier.engine.config.base import Json
from atelier.engine.config.batch import NOT_SCORED, PADDING
from atelier.engine.config.error import DataError
from atelier.engine.config.row_classes import RowClasses
from atelier.engine.data.encode import ORIGINAL
from atelier.engine.data.examples import Examples
from atelier.engine.data.option_rows import OptionRow
from atelier.engine.data.pairs import Pair, paired
from atelier.engine.data.tokens import token_dtype
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.inference.models import Batch, GangModel, TextModel, WholeModel
from atelier.engine.inference.sampling import SharedPrefix, last_logits
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.model.contract import Model, Output
from atelier.engine.model.placement import local
from atelier.engine.objective.classes import class_logits
from atelier.engine.tier.ring import outputs_of

TOKENS_AT_ONCE = 2048  # per forward pass; more is slower on a CPU
LOGITS_AT_ONCE = 1 << 21  # fp32 logits that fit in a core's share of the cache

Advance = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class HeldOutText:
    """The beginning of the held-out split: whole documents, or a part of the first one if it alone is too
    long.

    ends_D: tokens up to and including each document's end token. num_bytes: UTF-8 bytes of the text.
    original: these bytes, None if the tokens encode them. is_begun: documents begin with a non-text token.
    start, end: first decoder token after an encoder, and the encoder's last. place: the tokens artifact.
    """

    tokens_N: np.ndarray
    ends_D: np.ndarray
    num_bytes: int
    original: bytes | None = None
    is_begun: bool = False
    start: int = 0
    end: int = 0
    place: str = ""

    def raw(self, vocabulary: Vocabulary) -> bytes:
        """The UTF-8 bytes of the text. Raises DataError if neither the tokens nor `original` have them."""
        if self.original is not None:
            return self.original
        documents = np.split(self.tokens_N, self.ends_D[:-1])
        _check_holds(self.place, sum(len(vocabulary.bytes_of(each)) for each in documents), self.num_bytes)
        return vocabulary.bytes_of(self.tokens_N)

    def pairs(self, sequence: int) -> Iterator[Batch]:
        """Rows for models with an encoder: the decoder predicts every token except documents' first ones, at
        most `sequence` per row; the encoder reads as many tokens before them in their document.
        """
        pairs: list[Pair] = []
        for first, last in zip([0, *self.ends_D[:-1].tolist()], self.ends_D.tolist(), strict=True):
            for begin in range(first + 1, last, sequence):
                read = self.tokens_N[max(first, begin - sequence) : begin]
                pairs.append(([*read, self.end], self.tokens_N[begin : min(last, begin + sequence)]))
        at_once = max(1, TOKENS_AT_ONCE // (2 * sequence))
        for at in range(0, len(pairs), at_once):
            some = pairs[at : at + at_once]
            lengths = max(len(read) for read, _ in some), max(len(said) for _, said in some)
            rows = paired(some, lengths=lengths, start=self.start, pad=self.end)
            yield {name: torch.from_numpy(values) for name, values in rows.items()}

    def batches(self, sequence: int) -> Iterator[Batch]:
        """All tokens as rows of `sequence`, with documents isolated as in training; the last row, which
        training leaves out, is padded. Every token is a label, except documents' first ones.
        """
        size = len(self.tokens_N)
        num_rows, at_once = -(-(size - 1) // sequence), max(1, TOKENS_AT_ONCE // sequence)
        for first in range(0, num_rows, at_once):
            rows_B = np.arange(first, min(first + at_once, num_rows))
            yield self._rows(rows_B * sequence, sequence)

    def _rows(self, starts_B: np.ndarray, sequence: int) -> Batch:
        places_BT = starts_B[:, None] + np.arange(sequence + 1)
        is_there_BT = places_BT < len(self.tokens_N)
        places_BT = np.minimum(places_BT, len(self.tokens_N) - 1)
        owners_BT = np.where(is_there_BT, np.searchsorted(self.ends_D, places_BT, side="right"), PADDING)
        taken_BT = self.tokens_N[places_BT]
        begins_BT = np.maximum(np.concatenate([[0], self.ends_D])[owners_BT[:, :-1]], starts_B[:, None])
        is_label_BT = is_there_BT[:, 1:] & (owners_BT[:, 1:] == owners_BT[:, :-1])
        rows = {
            "tokens_BT": taken_BT[:, :-1],
            "positions_BT": np.where(is_there_BT[:, :-1], places_BT[:, :-1] - begins_BT, 0),
            "documents_BT": owners_BT[:, :-1],
            "labels_BT": np.where(is_label_BT, taken_BT[:, 1:], NOT_SCORED),
        }
        return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in rows.items()}


def read_held_out(
    tokens: ArtifactInput, vocabulary: Vocabulary, scratch: Path, max_tokens: int
) -> HeldOutText:
    """The first held-out documents, at most `max_tokens` tokens, or the beginning of a longer first one.
    Raises DataError if the bytes of that beginning are unknown.
    """
    dtype = token_dtype(int(tokens.record.summary["vocab"]))
    ends = np.load(tokens.file("held_out.ends.npy", scratch), allow_pickle=False)
    sizes = np.load(tokens.file("held_out.bytes.npy", scratch), allow_pickle=False)
    file = tokens.file("held_out.bin", scratch)
    num_whole = int((ends <= max_tokens).sum())
    taken = np.fromfile(file, dtype=dtype, count=int(ends[num_whole - 1]) if num_whole else max_tokens)
    taken = taken.astype(np.int64)
    if num_whole:
        size, ends = int(sizes[:num_whole].sum()), ends[:num_whole]
    else:
        if ORIGINAL not in tokens.names():
            first = np.fromfile(file, dtype=dtype, count=int(ends[0]))
            _check_holds(tokens.url, len(vocabulary.bytes_of(first)), int(sizes[0]))
        size, ends = len(vocabulary.bytes_of(taken)), np.array([len(taken)])
    original = None
    if ORIGINAL in tokens.names():
        with open(tokens.file(ORIGINAL, scratch), "rb") as whole:
            original = whole.read(size if num_whole else int(sizes[0]))
        if not num_whole:
            begun = vocabulary.begun(original.decode(), len(taken) - len(vocabulary.before))
            original = begun[1].encode() if begun else original
            size = len(original)
    return HeldOutText(
        tokens_N=taken,
        ends_D=ends,
        num_bytes=size,
        original=original,
        is_begun=bool(vocabulary.before),
        start=vocabulary.start_id,
        end=vocabulary.end_id,
        place=tokens.url,
    )


def _check_holds(place: str, found: int, num_bytes: int) -> None:
    """Raise DataError if tokens do not encode the text's bytes and there is no copy of it."""
    if found != num_bytes:
        raise DataError(
            f"{place}: the tokens encode {found:,} of {num_bytes:,} bytes of held-out text, because their"
            f" tokenizer changes texts, and {ORIGINAL} is missing: an earlier version made them; move this"
            " folder away, and the next run makes it again"
        )


def text_nats(model: TextModel, text: HeldOutText, *, sequence: int, vocab: int, advance: Advance) -> float:
    """Nats of all tokens of `text`. A document's first token has no context and is not learned: it is charged
    ln V, equally for all models of a vocabulary, or nothing if it is not text. So every byte is accounted
    for, as with a compressor.
    """
    total = 0.0 if text.is_begun else len(text.ends_D) * math.log(vocab)
    has_encoder = model.spec.reads_encoder
    batches, read = tee(text.pairs(sequence) if has_encoder else text.batches(sequence))
    for batch, nats_N in zip(batches, label_nats(model, read), strict=True):
        total += float(nats_N.sum())
        advance(int((batch["labels_BT"] != NOT_SCORED).sum()))
    advance(len(text.ends_D))
    return total


def label_nats(model: TextModel, batches: Iterable[Batch]) -> Iterator[Tensor]:
    """-ln p(label) of every scored token of each batch, in order, float64 [N] on the CPU."""
    batches, read = tee(batches)
    scores = label_scores(model, read, model.spec.tokens, finds_best=False)
    for batch, (nats_BT, _) in zip(batches, scores, strict=True):
        yield nats_BT[batch["labels_BT"] != NOT_SCORED]


@torch.inference_mode()
def label_scores(
    model: TextModel,
    batches: Iterable[Batch],
    columns: int,
    before: Sequence[int] = (),
    *,
    finds_best: bool = True,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each batch, -ln p of each label [B, T] float64 and whether it is the most likely token [B, T], on
    the CPU; 0 and False where nothing is scored. `columns`: the number of vocabulary entries that share the
    probability. `before`: ids that all rows continue, for models in one process. `finds_best`: False leaves
    out the second result, which takes time: it is False everywhere.
    """
    if isinstance(model, GangModel):
        yield from model.label_scores(batches, columns, finds_best=finds_best)
        return
    own, read = tee(batches)
    placed = ({name: values.to(model.device) for name, values in batch.items()} for batch in read)
    for batch, output in zip(own, _outputs(model, placed, before), strict=True):
        nats_BT, best_BT = scores_of(output.hidden, batch, model.head_weight, columns, finds_best=finds_best)
        yield nats_BT, best_BT > 0.5


def _outputs(model: WholeModel, batches: Iterable[Batch], before: Sequence[int]) -> Iterator[Output]:
    """The model's output for each batch, of rows behind `before`."""
    if before:
        yield from map(SharedPrefix(model, before).output, batches)
    else:
        yield from outputs_of(cast(Model[Any], model), batches)


def scores_of(
    hidden_BTD: Tensor,
    batch: Batch,
    head_VD: Tensor,
    columns: int,
    group: dist.ProcessGroup | None = None,
    *,
    finds_best: bool,
) -> tuple[Tensor, Tensor]:
    """-ln p of each label, and 1 where it is the most likely token, else 0: float64 [B, T] on the CPU. Logits
    of a few tokens at a time. `group`: the ranks that split the head's rows; `finds_best` as above.
    """
    is_label_BT = batch["labels_BT"] != NOT_SCORED
    device = hidden_BTD.device
    hidden_ND, labels_N = hidden_BTD[is_label_BT.to(device)], batch["labels_BT"][is_label_BT].to(device)
    at_once = max(64, LOGITS_AT_ONCE // head_VD.shape[0])
    found_2BT = torch.zeros((2, *is_label_BT.shape), dtype=torch.float64)
    found = [torch.zeros((2, 0), dtype=torch.float64)]
    for at in range(0, len(labels_N), at_once):
        logits_NV = last_logits(hidden_ND[at : at + at_once], head_VD, columns, group)
        some_N = labels_N[at : at + at_once]
        nats_N = F.cross_entropy(logits_NV, some_N, reduction="none")
        best_N = logits_NV.argmax(1) == some_N if finds_best else torch.zeros_like(some_N)
        found.append(torch.stack([nats_N.double(), best_N.double()]).cpu())
    found_2BT[:, is_label_BT.cpu()] = torch.cat(found, 1)
    return found_2BT[0], found_2BT[1]


@torch.inference_mode()
def row_class_logits(model: TextModel, spec: RowClasses, batch: Batch) -> Tensor:
    """[B, C] logits of the model's head for the classes of these rows."""
    if isinstance(model, GangModel):
        return model.class_logits(batch, spec)
    given = {name: values.to(model.device) for name, values in batch.items()}
    return class_logits_of(model, spec, model(given).hidden, given)


def class_logits_of(model: WholeModel, spec: RowClasses, hidden_BTD: Tensor, batch: Batch) -> Tensor:
    """The same from the rows' hidden states."""
    weights = {name: local(weight) for name, weight in model.named_parameters()}
    has_pairs = f"pairs.{spec.kind}.end.weight" in weights
    return class_logits(spec, hidden_BTD, batch, weights.__getitem__, has_pairs=has_pairs)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A model's choices among each example's options: by likelihood, and by likelihood per token."""

    correct: list[int]
    correct_normalised: list[int]


def row_lengths(examples: Examples) -> list[int]:
    """Tokens of each example's row: its prompt and all options."""
    return [examples.row_tokens(number) for number in range(len(examples))]


def num_places(examples: Examples) -> int:
    """Positions needed by the longest prompt with the longest option."""
    return max(len(each.prompt) + max(map(len, each.options)) for each in examples.examples) - 1


def choose(model: TextModel, examples: Examples, *, advance: Advance) -> Choices:
    """For each example: the option with the highest sum of ln p over its tokens and end token (the first of
    equals), and the one with the highest mean. All options follow one prompt in one row.
    """
    lengths = row_lengths(examples)
    order = np.argsort(lengths, kind="stable")  # similar lengths per batch: little padding
    at_once = max(1, TOKENS_AT_ONCE // max(lengths))
    correct, normalised = [0] * len(examples), [0] * len(examples)
    each, read = tee(order[first : first + at_once] for first in range(0, len(examples), at_once))
    batches, asked = tee(_option_batch(examples, places) for places in read)
    nats = label_nats(model, (batch for batch, _ in asked))
    for places, (batch, rows), nats_N in zip(each, batches, nats, strict=True):
        nats_BT = torch.zeros(batch["labels_BT"].shape, dtype=torch.float64)
        nats_BT[batch["labels_BT"] != NOT_SCORED] = nats_N
        for place, nats_T, row in zip(places, nats_BT, rows, strict=True):
            options = [nats_T[begin:end] for begin, end in row.spans]
            correct[place] = int(_least([float(option.sum()) for option in options]) == row.answer)
            normalised[place] = int(_least([float(option.mean()) for option in options]) == row.answer)
        advance(sum(lengths[place] for place in places))
    return Choices(correct=correct, correct_normalised=normalised)


def _option_batch(examples: Examples, places: np.ndarray) -> tuple[Batch, list[OptionRow]]:
    batch, rows = examples.option_batch(places)
    return {name: torch.from_numpy(values) for name, values in batch.items()}, rows


def _least(values: list[float]) -> int:
    return min(range(len(values)), key=values.__getitem__)


def chosen(model: TextModel, examples: Examples, *, advance: Advance) -> dict[str, Json]:
    """Scores of `choose`, as scores.json has them."""
    found = choose(model, examples, advance=advance)
    return {
        "accuracy": sum(found.correct) / len(found.correct),
        "accuracy_normalised": sum(found.correct_normalised) / len(found.correct),
        "correct": found.correct,
        "majority": majority(examples),
    }


def majority(examples: Examples) -> float:
    """The accuracy of always giving the most common answer of these examples."""
    counts = np.bincount([example.answer for example in examples.examples])
    return float(counts.max() / len(examples))
