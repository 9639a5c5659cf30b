"""audit: search all text that reached a model for the questions of evaluation sets, and count when it was
read.
"""

from collections.abc import Mapping

from atelier.engine.config.audit import KIND
from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.report.audit_routes import audit_config
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest

VERSION = 1


def audit(
    model: Reference,
    sets: Mapping[str, Reference],
    indices: Mapping[str, Reference],
    unseen: tuple[str, ...] = (),
) -> Reference:
    """The audit of a model. `indices`: of the words of corpora, by their fingerprint; `unseen`: ancestors
    whose records are missing now, so that the audit is made again once they are back.
    """
    product = Product(
        kind=KIND,
        name=f"{model.name} audit",
        version=VERSION,
        identity={"unseen": list(unseen)} if unseen else {},
        parents={"model": model.fingerprint} | {f"set.{key}": each.fingerprint for key, each in sets.items()},
    )
    inputs = {"model": model} | {f"set.{key}": each for key, each in sets.items()}
    inputs |= {f"index.{corpus}": each for corpus, each in indices.items()}
    node = Node(
        name=f"audit.{model.name}",
        task="audit",
        products={KIND: product},
        inputs={role: input_of(each) for role, each in inputs.items()},
        layout={},
    )
    return declare(node, list(inputs.values()))[KIND]


def run(node: Node, context: RunContext) -> None:
    """Find the routes of text to the model, and search their texts."""
    given = {role: fingerprint for role, (_, fingerprint) in node.inputs.items()}
    record = context.record("model", given["model"])
    sets = {
        role.removeprefix("set."): context.record("evaluation", fingerprint)
        for role, fingerprint in given.items()
        if role.startswith("set.")
    }
    indices = {
        role.removeprefix("index."): fingerprint
        for role, fingerprint in given.items()
        if role.startswith("index.")
    }
    config, inputs = audit_config(context.store, record, sets, indices)
    urls = {name: context.store.address(*where) for name, where in inputs.items()}
    context.gang(
        GangRequest(
            node=node,
            module="atelier.engine.prepare",
            config=lambda fences: config.model_dump(mode="json"),
            outputs=context.missing(node),
            inputs=lambda: urls | {"model": context.store.address("model", given["model"])},
        )
    )
