"""report: a run's table, loss curves, samples, lineage and the command that made it, as one artifact."""

from collections.abc import Mapping

from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.report.collect import card_of
from atelier.infra.run.context import RunContext

VERSION = 1


def report(
    models: Mapping[str, Reference],
    scores: Mapping[str, Reference],
    *,
    title: str,
    teachers: Mapping[str, str] | None = None,
    controls: Mapping[str, str] | None = None,
) -> Reference:
    """The report of `models` and their `scores`; `teachers` and `controls` name what a model is compared
    with.
    """
    shape = {
        "title": title,
        "teachers": {k: v for k, v in (teachers or {}).items() if v},
        "controls": dict(controls or {}),
    }
    parents = {f"model.{key}": model.fingerprint for key, model in models.items()} | {
        f"scores.{key}": s.fingerprint for key, s in scores.items()
    }
    product = Product(kind="report", name=title, version=VERSION, identity=shape, parents=parents)
    inputs = {f"model.{key}": input_of(model) for key, model in models.items()} | {
        f"scores.{key}": input_of(s) for key, s in scores.items()
    }
    products = {"report": product}
    node = Node(name="report", task="report", products=products, inputs=inputs, config=shape, ranks=0)
    return declare(node, [*models.values(), *scores.values()])["report"]


def run(node: Node, context: RunContext) -> None:
    context.here(node, "report", lambda payload: card_of(node, context, payload))
