"""Check that the store's disk has room for the files that a flow imports or writes."""

from collections.abc import Iterable, Mapping

from atelier.engine.io.storage import free_bytes, is_local, local_path
from atelier.flows.run.data_notes import written_bytes
from atelier.infra.dag import Node
from atelier.infra.store.store import Store

SPARE = 1.05  # factor for records, indices and other files
BYTES = "bytes"  # key in a node's config: bytes it copies


def bytes_of(node: Node) -> int:
    """Bytes that the node adds to the store; 0 = not known."""
    found = node.config.get(BYTES, 0)
    return found if isinstance(found, int) else 0


def too_little_disk(nodes: Iterable[Node], store: Store) -> list[str]:
    """Errors if the disk has too little room for these nodes; empty if it fits or is unknown."""
    sizes = {n.name: written_bytes(n, store) if n.task == "write" else bytes_of(n) for n in nodes}
    needed = {name: size for name, size in sizes.items() if size}
    if not needed or not is_local(store.root):
        return []
    free = free_bytes(local_path(store.root))
    if SPARE * sum(needed.values()) <= free:
        return []
    return [_told(needed, free, store.root)]


def _told(needed: Mapping[str, int], free: int, root: str) -> str:
    size = SPARE * sum(needed.values()) / 1e9
    return (
        f"{', '.join(needed)}: needs {size:.3g} GB on the disk of {root}, which has {free / 1e9:.3g} free; "
        "`atelier gc` frees some, or set ATELIER_ROOT to another disk"
    )
