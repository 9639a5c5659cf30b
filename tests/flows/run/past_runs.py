"""Manifests of past runs, as a run of these words would write them, without running anything."""

from typing import Any

from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.infra.dag import Node
from atelier.infra.store.run_manifest import RunManifest, described, write_manifest
from atelier.infra.store.store import Store

PAST = "20261129-064500-1a2b3c"


def past(
    store: Store, flow: str, *words: str, run_id: str = PAST, **about: Any
) -> tuple[RunManifest, list[Node]]:
    """Write the manifest of a finished run; returns it and the nodes of its flow."""
    frozen = compose(flow, list(words))
    nodes = collect_nodes(frozen, store)
    manifest = RunManifest(
        **{
            "id": run_id, "flow": flow, "command": f"atelier {flow}", "overrides": tuple(words),
            "config": frozen.document, "started": 1.0, "ended": 2.0, "status": "finished",
            "tasks": tuple(row for node in nodes for row in described(node)),
            "states": {node.name: "done" for node in nodes},
        }
        | about
    )  # fmt: skip
    write_manifest(store, manifest)
    return manifest, nodes
