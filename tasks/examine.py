"""examine: ask a model the questions of evaluation sets."""

from collections.abc import Mapping

from atelier.engine.config.base import Json
from atelier.engine.config.document import section_of
from atelier.engine.config.exam import KIND, Examine, ExamineConfig
from atelier.engine.io.machine import num_cores
from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest

VERSION = 1


def examine(
    model: Reference, sets: Mapping[str, Reference], settings: Examine, *, trained: int | None = None
) -> dict[str, Reference]:
    """The model's exam on each set, by the set's key. `trained`: tokens of the rows it was trained on."""
    more = {"trained": trained} if trained else {}
    products = exams(model.name, {"model": model.fingerprint}, sets, settings, model.kinds, **more)
    threads = max(1, num_cores() // settings.ranks)
    config = ExamineConfig(examine=settings, trained=trained, threads=threads)
    node = Node(
        name=f"examine.{model.name}",
        task="examine",
        products=products,
        inputs={"model": input_of(model)} | {f"set.{key}": input_of(each) for key, each in sets.items()},
        config=config.model_dump(mode="json"),
        layout=settings.parallel(threads).model_dump(mode="json"),
        ranks=settings.ranks,
    )
    return declare(node, [model, *sets.values()])


def exams(
    name: str,
    parents: Mapping[str, str],
    sets: Mapping[str, Reference],
    settings: Examine,
    kinds: tuple[str, ...],
    **more: Json,
) -> dict[str, Product]:
    """The exams of what is called `name` and has these parents, by the set's key. `more`: of the identity."""
    identity = {**more, **settings.as_identity()}
    return {
        key: Product(
            kind=KIND,
            name=f"{name} on {each.name}",
            version=VERSION,
            identity=identity,
            parents={**parents, "set": each.fingerprint},
            origin={field: f"examine.{field}" for field in settings.as_identity()},
            kinds=kinds,
        )
        for key, each in sets.items()
    }


def run(node: Node, context: RunContext) -> None:
    """Ask the questions of the sets without an exam."""
    missing, config = context.missing(node), section_of(node.config)
    left_out = {f"set.{key}" for key in node.products if key not in missing}
    context.gang(
        GangRequest(
            node=node,
            module="atelier.engine.examine",
            config=lambda fences: config,
            outputs=missing,
            inputs=lambda: {role: url for role, url in context.urls(node).items() if role not in left_out},
        )
    )
