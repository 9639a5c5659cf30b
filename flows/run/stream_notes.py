"""Notes of a plan about the stream of samples: shares that are rounded, samples at which capped sources stop,
and rows of padding in a batch ramp.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import fsum

from atelier.engine.config.batch import num_windows
from atelier.engine.config.document import whole_of
from atelier.engine.config.mixture import WINDOWS, Stream, row_specs, streams
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.sampling import cap_in_rows
from atelier.engine.plan.checks import at_step
from atelier.infra.dag import Node, NodeTraining
from atelier.infra.store.store import Store

VISIBLE = 1e-9  # relative error of a share that is not worth a note


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
    return notes


def _streams(training: NodeTraining) -> tuple[Stream, ...]:
    return streams(row_specs(training.roles), training.weights, training.later, training.sampling.epochs)


def _rounded(training: NodeTraining) -> str:
    """A note if the weights of an exact assignment have no period short enough."""
    if training.sampling.assignment != "exact":
        return ""
    from atelier.engine.plan.exact_shares import whole_weights  # numpy: other plans do without

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
    if not training.sampling.epochs:
        return ""
    from atelier.engine.plan.exact_shares import stretches_of  # numpy: other plans do without

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
    why = f"{layout.axes.data} data-parallel ranks of whole micro-batches"
    if layout.pipeline > 1:
        why += f", at least {layout.pipeline} each for the pipeline"
    return (
        f"train.progressive.rampup: {len(found)} of {len(sizes)} batches do not fit {why}. Rows of padding"
        f" fill them ({some}): they change no sample and no gradient, and are"
        f" {100 * padding / computed:.0f} % of the rows of these {sum(each[2] for each in found)} steps"
    )
