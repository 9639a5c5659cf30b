"""Manifests of past runs, as a run of these words would write them, without running anything."""

from typing import Any

from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.infra.dag import Node
from atelier.infra.store.run_manifest import RunManifest, described, write_manifest
from atelier.infra.store.store import Store

PAST = "20261129-064500-1a2b3c"
TINY = ("experiment=tiny", "tracker=none")
TUNED = ("teacher", "assistant", "student_a", "student_b")
# keys with the first tasks that each changes; what follows those changes too
KEYS = {
    "titan": {
        "data.held_out=0.2": {"curate"},
        "tokenizer.vocab=600": {"learn_tokenizer"},
        "ahead.steps=9": {"train.ahead"},
        "roles.teacher.optim.lr=0.003": {"train"},
        "roles.student_b.optim.lr=0.003": {"train", "train.controls"},
        "finetune.epochs=3": {f"finetune.{one}" for one in TUNED},
        "score.max_tokens=300": {"score"},
        "score.max_examples=10": {"score.labels"},
    },
    "mtnlg": {
        "tokenizer.vocab=600": {"learn_tokenizer"},
        "train.seed=2": {"train"},
        "score.max_tokens=300": {"score"},
    },
}  # fmt: skip


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
