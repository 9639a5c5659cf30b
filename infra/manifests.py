"""Runs leave a small manifest each: `{root}/runs/<id>.json`. Plans are compared with them; `atelier runs`
lists them.
"""

import json
from typing import Any

from engine.spec.base import canonical, flatten
from engine.spec.record import Record
from engine.storage import join, names, read_bytes, write_bytes
from infra.dag import Node, Product
from infra.store import Store

FOLDER = "runs"


def write_manifest(store: Store, manifest: dict[str, Any]) -> None:
    write_bytes(
        join(store.root, FOLDER, f"{manifest['id']}.json"), json.dumps(manifest, sort_keys=True).encode()
    )


def manifests(store: Store) -> list[dict[str, Any]]:
    """All runs' manifests, oldest first; one that is unreadable or goes meanwhile is left out."""
    found = []
    for name in names(join(store.root, FOLDER)):
        try:
            found.append(json.loads(read_bytes(join(store.root, FOLDER, name))))
        except (ValueError, FileNotFoundError):
            continue
    return sorted(found, key=lambda manifest: manifest.get("started", 0))


def described(node: Node) -> list[dict[str, Any]]:
    """The node's products as a manifest keeps them."""
    return [
        {
            "name": row_name(node, key),
            "key": key,
            "task": node.task,
            "kind": product.kind,
            "fingerprint": product.fingerprint,
            "identity": comparable(product),
            "parents": parents_of(product),
            "model": product.name,
        }
        for key, product in node.products.items()
    ]


def measured(store: Store, rows: list[dict[str, Any]], metric: str) -> tuple[float, Record] | None:
    """What `metric` is of the products in `rows`, and whose. `<name>.<word>` is a word of the summary of what
    is called so (a model, a role, a task or a kind), such as `student_a.eval_loss`; without a name of the
    first that has the word.
    """
    name, _, word = metric.rpartition(".")
    for row in rows:
        if name not in ("", row.get("key", ""), row["model"], row["name"], row["kind"]):
            continue
        record = store.find(row["kind"], row["fingerprint"])
        found = record.summary.get(word) if record is not None else None
        if record is not None and isinstance(found, int | float):
            return float(found), record
    return None


def row_name(node: Node, key: str) -> str:
    return node.name if len(node.products) == 1 else f"{node.name}.{key}"


def comparable(product: Product) -> dict[str, Any]:
    """The product's identity in configuration keys: what a person would change."""
    flat = flatten({**product.identity, **product.detail})
    result = {}
    for key, value in flat.items():
        first, _, rest = key.partition(".")
        place = product.origin.get(first, first)
        result[f"{place}.{rest}" if rest else place] = value
    return result


def parents_of(product: Product) -> dict[str, str]:
    return {
        key: fp
        for key, fp in {**product.parents, **product.detail_parents}.items()
        if key not in ("trajectory", "trunk")
    }


def nearest_run(store: Store, flow: str, config: dict[str, Any]) -> dict[str, Any] | None:
    """The finished run of the same flow with the fewest differing keys; of equals the newest."""
    wanted = flatten(config)
    best, fewest = None, None
    for manifest in manifests(store):
        if manifest.get("flow") != flow or manifest.get("status") != "finished":
            continue
        theirs = flatten(manifest["config"])
        differing = sum(
            1
            for key in wanted.keys() | theirs.keys()
            if canonical(wanted.get(key)) != canonical(theirs.get(key))
        )
        if fewest is None or differing <= fewest:
            best, fewest = manifest, differing
    return best
