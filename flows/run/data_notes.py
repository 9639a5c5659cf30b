"""Notes of a plan about data: the held-out share of finished corpora; tokens after the last window, which no
training reads; FLOPs, memory and time of text that a model writes. And about the stream of samples: rounded
shares, capped sources, rows of padding in a batch ramp.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import fsum
from typing import TypedDict

from atelier.engine.config.base import parse
from atelier.engine.config.batch import num_windows, unread_note
from atelier.engine.config.data import share_note
from atelier.engine.config.document import number_of, whole_of
from atelier.engine.config.mixture import WINDOWS, Stream, cap_in_rows, row_specs, streams
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.task.write import WriteConfig
from atelier.engine.plan.checks import at_step
from atelier.engine.plan.expert_checks import rows_together
from atelier.engine.plan.inference import cost_of_writing
from atelier.engine.plan.layout_checks import padded_rows
from atelier.infra.dag import Node, NodeTraining
from atelier.infra.store.store import Store

TOKEN_BYTES = 6  # bytes of text and JSON a token; an upper bound of the average
VISIBLE = 1e-9  # relative error of a share that is not worth a note
LINE_BYTES = 200  # bytes of a document's line besides its text


class WrittenRow(TypedDict):
    """The known fields of a plan's row for written text."""

    params: int
    flops: float
    memory_gb: float
    tokens_per_s: float
    device_hours: float


def written_row(node: Node, pool: Pool, store: Store) -> WrittenRow:
    """Cost of writing the requested documents, or those of the corpus; of one document if their number is not
    known yet.
    """
    asked, documents = parse(WriteConfig, node.config, node.name), num_documents(node, store) or 1
    layout = Parallel.model_validate(node.layout)
    written = asked.written
    cost = cost_of_writing(asked.model, written.prefix, written.tokens, documents, layout, pool)
    return {
        "params": cost.params,
        "flops": cost.flops,
        "memory_gb": round(cost.memory_gb, 6),
        "tokens_per_s": cost.tokens / cost.seconds,
        "device_hours": cost.seconds / 3600,
    }


def num_documents(node: Node, store: Store) -> int:
    """Upper bound of the number of documents; 0 = not known."""
    asked = parse(WriteConfig, node.config, node.name).written.documents
    corpus = store.find("corpus", node.products["corpus"].parents["corpus"])
    there = corpus.summary["documents"] if corpus else 0
    return min(asked or there, there or asked)


def written_bytes(node: Node, store: Store) -> int:
    """Approximate bytes on disk while the task runs: texts in scratch and in the output, and the held-out
    documents (at most the whole corpus).
    """
    asked = parse(WriteConfig, node.config, node.name).written
    texts = num_documents(node, store) * (LINE_BYTES + TOKEN_BYTES * (asked.prefix + asked.tokens))
    corpus = store.find("corpus", node.products["corpus"].parents["corpus"])
    return 3 * texts + 2 * sum(entry.bytes for entry in corpus.files) if corpus else 3 * texts


def data_notes(nodes: Sequence[Node], store: Store) -> list[str]:
    """Lines about finished corpora, and about finished tokens that these nodes train on."""
    notes = []
    for node in nodes:
        if node.task in ("curate", "assemble"):
            notes.append(_of_corpus(node, store))
        elif node.task == "train":
            notes.append(_of_tokens(node, store))
    return [note for note in notes if note]


def _of_corpus(node: Node, store: Store) -> str:
    [product] = node.products.values()
    record = store.find(product.kind, product.fingerprint)
    if record is None:
        return ""
    own, all_of_it = (whole_of(record.summary.get(name)) for name in ("held_out_bytes", "bytes"))
    note = share_note(own, all_of_it, number_of(node.config.get("held_out")), "data.held_out")
    return f"{node.name}: {note}" if note else ""


def _of_tokens(node: Node, store: Store) -> str:
    found: dict[str, int] = {}
    for name, (kind, fingerprint) in node.inputs.items():
        record = store.find(kind, fingerprint) if kind == "tokens" else None
        if record is not None:
            for split in ("train", "held_out"):
                found[f"{name.removeprefix('tokens.')}/{split}"] = whole_of(
                    record.summary.get(f"{split}_tokens")
                )
    note = unread_note({name: size for name, size in found.items() if size}, node.training.train.sequence)
    return f"{node.name}: {note}" if note else ""


def stream_notes(nodes: Sequence[Node], store: Store) -> list[str]:
    """Lines about the streams that these nodes read. Raises ConfigError if all sources are capped before the
    end of a training whose texts are encoded.
    """
    notes: list[str] = []
    for node in nodes:
        if node.task == "train":
            training = node.training
            every = [_rounded(training), _capped(node, training, store), _padded(node, training)]
            notes += [f"{node.name}: {note}" for note in every if note]
        if node.task == "finetune" and (note := _padded_batch(node, node.training)):
            notes.append(f"{node.name}: {note}")
    return notes


def _streams(training: NodeTraining) -> tuple[Stream, ...]:
    return streams(row_specs(training.roles), training.weights, training.later, training.sharing.epochs)


def _rounded(training: NodeTraining) -> str:
    """A note if the weights of an exact assignment have no period short enough."""
    if training.sharing.assignment != "exact":
        return ""
    from atelier.engine.config.exact_shares import whole_weights  # numpy: other plans do without

    errors: dict[str, float] = {}
    for number in range(len(training.later) + 1):
        weights = [(one.weight, *one.later)[number] for one in _streams(training)]
        whole = whole_weights(weights)
        for one, weight, part in zip(_streams(training), weights, whole, strict=True):
            if weight:
                error = part / sum(whole) * fsum(weights) / weight - 1
                errors[one.source] = max(errors.get(one.source, 0.0), error, -error)
    source = max(errors, key=lambda name: errors[name])
    if errors[source] < VISIBLE:
        return ""
    return (
        f"data.assignment=exact: the weights are rounded to 100,000 parts, most for {source}:"
        f" {100 * errors[source]:.2g} % of its share; weights of five decimals and sum 1 are not rounded"
    )


def _capped(node: Node, training: NodeTraining, store: Store) -> str:
    """The samples at which capped sources stop, as far as their texts are encoded."""
    if not training.sharing.epochs:
        return ""
    from atelier.engine.config.exact_shares import stretches_of  # numpy: other plans do without

    read, train, rows = _streams(training), training.train, list[int]()
    for stream in read:
        kind, fingerprint = node.inputs[stream.input]
        record = store.find(kind, fingerprint) if stream.kind == WINDOWS else None
        if record is None:
            return "data.epochs: the samples at which sources stop are known once their texts are encoded"
        rows.append(num_windows(whole_of(record.summary.get("train_tokens")), train.sequence))
    before = train.progressive.samples_before
    firsts = [0, *(before(shares.begin, train.global_batch) for shares in training.later)]
    phases = [(first, [(one.weight, *one.later)[n] for one in read]) for n, first in enumerate(firsts)]
    limits = [
        cap_in_rows(one.epochs, size) if one.epochs else 0 for one, size in zip(read, rows, strict=True)
    ]
    last = before(train.num_steps, train.global_batch)
    found = stretches_of(phases, limits, train.seed, last)
    stops: list[str] = []
    for number, one in enumerate(read):
        at = next((s.first for s in found if limits[number] and s.drawn[number] >= limits[number]), last)
        if limits[number]:
            where = f"stops at sample {at} of {last}" if at < last else f"does not reach it in {last} samples"
            stops.append(f"{one.source} (cap of {limits[number]} samples) {where}")
    return f"data.epochs: {'; '.join(stops)}"


def _padded(node: Node, training: NodeTraining) -> str:
    """The sizes of a batch ramp that the ranks fill with rows of padding."""
    train, layout = training.train.here(), Parallel.model_validate(node.layout)
    if not train.progressive.rampup.is_on:
        return ""
    sizes = train.progressive.rampup.sizes(train.global_batch)
    found: list[tuple[int, int, int]] = []  # sequences, rows, steps
    for (first, _, size), (after, _, _) in pairwise(sizes):
        rows = at_step(train, layout, first).global_batch
        if rows > size and first < train.num_steps:
            found.append((size, rows, min(after, train.num_steps) - first))
    if not found:
        return ""
    padding = sum((rows - size) * steps for size, rows, steps in found)
    computed = sum(rows * steps for _, rows, steps in found)
    some = ", ".join(f"{size} as {rows}" for size, rows, _ in found[:4]) + (" ..." if len(found) > 4 else "")
    return (
        f"train.progressive.rampup: {len(found)} of {len(sizes)} batches do not fit {_parts_of(layout)}. Rows"
        f" of padding fill them ({some}): they change no sample and no gradient, and are"
        f" {100 * padding / computed:.0f} % of the rows of these {sum(each[2] for each in found)} steps"
    )


def _padded_batch(node: Node, training: NodeTraining) -> str:
    """The rows of padding in every step of a fine-tuning."""
    layout = Parallel.model_validate(node.layout)
    together = rows_together(layout, {name: role.model for name, role in training.roles.items()})
    batch = training.train.global_batch
    rows = padded_rows(layout, training.train, together=together)
    if rows == batch:
        return ""
    share = 100 * (rows - batch) / rows
    return (
        f"finetune.batch: {batch} rows do not fit {_parts_of(layout)}. Rows of padding fill them to {rows}:"
        f" they change no sample and no gradient, and are {share:.0f} % of the rows"
    )


def _parts_of(layout: Parallel) -> str:
    """The ranks that share a batch, in words."""
    ranks = f"{layout.axes.data} data-parallel ranks of whole micro-batches"
    return f"{ranks}, at least {layout.pipeline} each for the pipeline" if layout.pipeline > 1 else ranks
