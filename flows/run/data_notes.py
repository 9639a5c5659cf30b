"""What a plan says of data, where it is known: the share that finished corpora hold out, and the tokens after
the last window, which no training reads.
"""

from collections.abc import Sequence

from atelier.engine.config.batch import unread_note
from atelier.engine.config.data import share_note
from atelier.engine.config.document import number_of, whole_of
from atelier.infra.dag import Node
from atelier.infra.store.store import Store


def data_notes(nodes: Sequence[Node], store: Store) -> list[str]:
    """Lines about finished corpora, and about finished tokens that these nodes train on."""
    notes = []
    for node in nodes:
        if node.task == "curate":
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
