"""Price the curation of a corpus before it runs: bytes read and written, disk at the peak, processor time,
memory of signatures. Sizes are those of source files, or exact ones of finished documents.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from atelier.engine.config.base import parse
from atelier.engine.config.document import number_of
from atelier.engine.config.error import AtelierError
from atelier.engine.config.task.curation import CollectConfig, DeduplicateConfig
from atelier.engine.io.machine import memory_gb
from atelier.engine.io.source_files import WEB, sizes_of
from atelier.engine.io.storage import free_bytes, is_local, local_path
from atelier.infra.dag import Node
from atelier.infra.store.store import Store

# seconds of one core per MB of text, measured with English and code (benchmarks/curation.py)
CPU_S = {
    "collect": 0.035,
    "filter_documents": 0.25,
    "deduplicate": 0.04,
    "decontaminate": 0.045,
    "assemble": 0.04,
}
PACKED = 0.4  # bytes on disk per byte of text
UNPACKED = 4  # bytes of text per byte of a packed source file
PAGE_TEXT = 0.3  # bytes of text per byte of HTML, of documentation; pages of the web have less
DOCUMENT = 3000  # bytes of a document, where their number is not known
SHINGLES = 1.4  # bytes of shingles per byte of text, while `deduplicate` runs
TABLE = 256  # bytes of a document in memory besides its bands, which are there twice
MB, GB = 1e6, 1e9


@dataclass(frozen=True)
class TextSize:
    """The text of one or several sources: UTF-8 bytes and documents, estimated unless it was read."""

    bytes: float = 0.0
    documents: float = 0.0

    def __add__(self, other: "TextSize") -> "TextSize":
        return TextSize(self.bytes + other.bytes, self.documents + other.documents)


def texts_of(nodes: Iterable[Node], store: Store) -> dict[str, TextSize]:
    """The text that each node of a curation reads, by the node's name."""
    by_documents: dict[str, TextSize] = {}
    result: dict[str, TextSize] = {}
    for node in nodes:
        if node.task == "collect":
            fingerprint = node.products["documents"].fingerprint
            by_documents[fingerprint] = result[node.name] = _collected(node, fingerprint, store)
        elif node.task in CPU_S:
            read = [fingerprint for kind, fingerprint in node.inputs.values() if kind == "documents"]
            result[node.name] = sum((by_documents.get(each, TextSize()) for each in read), TextSize())
    return result


def _collected(node: Node, fingerprint: str, store: Store) -> TextSize:
    record = store.find("documents", fingerprint)
    if record is not None:
        return TextSize(number_of(record.summary.get("bytes")), number_of(record.summary.get("documents")))
    files = parse(CollectConfig, node.config, node.name).files
    try:
        sizes = sizes_of(files)
    except AtelierError:  # said when it is read
        return TextSize()
    total = sum(size * _text_share(path) for size, (path, _) in zip(sizes, files, strict=True))
    return TextSize(total, max(len(files), total / DOCUMENT))


def _text_share(path: str) -> float:
    """Bytes of text per byte of a source file, roughly."""
    unpacked = UNPACKED if path.endswith((".gz", ".zst", ".parquet")) else 1
    return unpacked * (PAGE_TEXT if path.endswith(WEB) else 1)


def cpu_seconds(node: Node, texts: Mapping[str, TextSize]) -> float:
    """Processor seconds of a node of a curation."""
    return CPU_S[node.task] * texts[node.name].bytes / MB


def curation_notes(running: Sequence[Node], texts: Mapping[str, TextSize]) -> list[str]:
    """One line on the cost of curation by these nodes; none without one."""
    mine = [node for node in running if node.name in texts]
    if not mine:
        return []
    read = sum(texts[node.name].bytes for node in mine if node.task == mine[0].task)
    seconds = sum(cpu_seconds(node, texts) for node in mine)
    line = (
        f"curation: reads {_size(read)} of text, writes {_size(_written(mine, texts))}, needs"
        f" {_size(_peak(mine, texts))} of disk at the peak, about {_time(seconds)} of one core"
    )
    memory = _memory(mine, texts)
    return [f"{line}, {_size(memory)} of memory for signatures" if memory else line]


def curation_refusals(running: Sequence[Node], texts: Mapping[str, TextSize], store: Store) -> list[str]:
    """Why a curation does not fit the disk or the memory of this machine."""
    mine = [node for node in running if node.name in texts]
    found = []
    if mine and is_local(store.root):
        peak, free = _peak(mine, texts), free_bytes(local_path(store.root))
        if peak > free:
            found.append(
                f"{mine[0].name}: curation needs {_size(peak)} on the disk of {store.root}, which has"
                f" {_size(free)} free; `atelier gc` frees some, or set ATELIER_ROOT to another disk"
            )
    memory = _memory(mine, texts)
    if memory > memory_gb() * GB:
        found.append(
            f"deduplicate: needs {_size(memory)} of memory for signatures, but this machine has"
            f" {memory_gb():.1f} GB; fewer bands (data.curation.deduplicate.bands) or fewer sources at once"
        )
    return found


def _written(nodes: Iterable[Node], texts: Mapping[str, TextSize]) -> float:
    """Bytes that stay: documents and corpora; verdicts are small beside them."""
    return sum(PACKED * texts[node.name].bytes for node in nodes if node.task in ("collect", "assemble"))


def _peak(nodes: Sequence[Node], texts: Mapping[str, TextSize]) -> float:
    """Bytes on disk at the most: what was written, and shingles and bands while `deduplicate` runs."""
    signatures = sum(
        SHINGLES * texts[node.name].bytes + _signature(node) * texts[node.name].documents
        for node in nodes
        if node.task == "deduplicate"
    )
    return max(
        _written(nodes, texts), _written([n for n in nodes if n.task == "collect"], texts) + signatures
    )


def _memory(nodes: Iterable[Node], texts: Mapping[str, TextSize]) -> float:
    return sum(_signature(node) * texts[node.name].documents for node in nodes if node.task == "deduplicate")


def _signature(node: Node) -> int:
    """Bytes of a document's signature in memory."""
    return 2 * 8 * parse(DeduplicateConfig, node.config, node.name).deduplicate.bands + TABLE


def _size(amount: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if amount >= unit:
            return f"{amount / unit:.3g} {name}"
    return f"{amount / 1e3:.3g} kB"


def _time(seconds: float) -> str:
    for unit, name in ((3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.2g} s"
