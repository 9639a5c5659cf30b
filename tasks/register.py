"""register: register finished models as MLflow versions with aliases and a lineage page."""

from collections.abc import Mapping

from atelier.engine.io.artifact import ArtifactOutput
from atelier.engine.io.storage import join, read_object
from atelier.infra.dag import Node, Reference, declare_one
from atelier.infra.run.context import RunContext
from atelier.infra.store.store import Store

VERSION = 1
VERSIONS = "versions.json"
ALIASES = ("latest",)


def register(models: Mapping[str, Reference], scores: Mapping[str, Reference]) -> Reference:
    """Register each model that is made here under its key. The record has their MLflow versions."""
    models = {key: model for key, model in models.items() if model.node}
    parents = {f"model.{key}": model for key, model in models.items()}
    return declare_one(
        "register",
        "registration",
        parents,
        name="registration",
        version=VERSION,
        identity={"aliases": list(ALIASES)},
        inputs=parents | {f"scores.{key}": each for key, each in scores.items()},
        ranks=0,
    )


def _names(node: Node) -> list[str]:
    return [role.removeprefix("model.") for role in node.inputs if role.startswith("model.")]


def is_owed(node: Node, store: Store) -> bool:
    """Whether a registration was made without a tracker: then its versions have no address."""
    product = node.products["registration"]
    record = store.find(product.kind, product.fingerprint)
    entry = next((file for file in record.files if file.path.endswith(VERSIONS)), None) if record else None
    if record is None or entry is None:
        return False
    versions = read_object(join(store.address(record.kind, record.fingerprint), entry.path))
    return not all(versions.values())


def reuse(node: Node, context: RunContext) -> None:
    """Register the models again: the earlier registration may have used no tracker, or another one."""
    for key in _names(node):
        record = context.record(*node.inputs[f"model.{key}"])
        context.tracker.register_later(key, record, list(ALIASES))


def run(node: Node, context: RunContext) -> None:
    def build(payload: str) -> None:
        output = ArtifactOutput(payload)
        versions = {
            key: context.register(key, *node.inputs[f"model.{key}"], aliases=list(ALIASES))
            for key in _names(node)
        }
        output.add_json(VERSIONS, versions)
        output.close({"models": len(versions)})

    context.here(node, "registration", build)
