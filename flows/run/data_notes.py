"""Notes of a plan about data: the held-out share of finished corpora; tokens after the last window, which no
training reads; FLOPs, memory and time of text that a model writes.
"""

from collections.abc import Sequence
from typing import TypedDict

from atelier.engine.config.base import parse
from atelier.engine.config.batch import unread_note
from atelier.engine.config.data import share_note
from atelier.engine.config.document import number_of, whole_of
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.task.write import WriteConfig
from atelier.engine.plan.writing import cost_of_writing
from atelier.infra.dag import Node
from atelier.infra.store.store import Store

TOKEN_BYTES = 6  # bytes of text and JSON a token; an upper bound of the average
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
    cost = cost_of_writing(asked.model, asked.written, documents, layout, pool)
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
