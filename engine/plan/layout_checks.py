"""Checks of layouts that assign samples by cost, or split the embedding by columns. Torch-free."""

from collections.abc import Mapping

from atelier.engine.config.divisors import largest_divisor
from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.parallel import Axes, Parallel
from atelier.engine.config.role import Role

PLACE = "parallel.assignment"


def check_assignment(layout: Parallel, roles: Mapping[str, Role]) -> None:
    """Raise ConfigError where micro-batches have to be alike, or rows to lie together, and for a log of
    speeds that does not fit the data ranks.
    """
    kind = layout.assignment
    if kind == "rows":
        if layout.speed_log:
            raise ConfigError("parallel.speed_log", f"is given, but {PLACE} is rows", f"{PLACE}=static")
        return
    if layout.pipeline > 1:
        raise ConfigError(
            PLACE,
            f"{kind}, but the stages of pipeline={layout.pipeline} pass on micro-batches of one shape",
            "pipeline=1, or assignment=rows",
        )
    if layout.roles:
        raise ConfigError(
            PLACE,
            f"{kind}, but {', '.join(layout.roles)} split micro-batches in a layout of their own",
            "give all roles one layout, or assignment=rows",
        )
    if layout.compile == "block":
        raise ConfigError(
            PLACE,
            f"{kind}, but compile=block compiles blocks for one shape of micro-batches",
            "compile=none, or assignment=rows",
        )
    for name, role in roles.items():
        model = role.model
        if isinstance(model, MixedBlocks) and model.num_experts and model.experts.router.competes:
            raise ConfigError(
                PLACE,
                f"{kind}, but the tokens of {name} compete for experts in groups of rows, which it tears "
                "apart",
                "another router, or assignment=rows",
            )
    _check_log(layout)


def check_embedding(layout: Parallel, role: Role, model: str, *, axes: Axes) -> None:
    """Raise ConfigError where columns of the embedding are asked for that the head needs whole, or that do
    not divide. `model` is its place in messages.
    """
    if layout.embedding == "gathered":
        return
    place, ranks = "parallel.embedding", axes.shard * axes.expert * axes.context
    if getattr(role.model, "tied", True):
        raise ConfigError(
            place,
            f"columns, but the head of {model} is the embedding, whole rows of which make the logits",
            f"{model}.tied=false" if hasattr(role.model, "tied") else "embedding=gathered",
        )
    if axes.tensor > 1:
        raise ConfigError(
            place,
            f"columns, but tensor={axes.tensor} splits the embedding by rows",
            "tensor=1, or embedding=gathered",
        )
    if role.model.hidden % ranks:
        raise ConfigError(
            place,
            f"columns, but {ranks} ranks (shard, expert and context) do not divide {model}.hidden "
            f"{role.model.hidden}",
            f"{largest_divisor(role.model.hidden, ranks)} ranks would fit",
        )


def _check_log(layout: Parallel) -> None:
    data, steps = layout.axes.data, [entry[0] for entry in layout.speed_log if entry]
    for entry in layout.speed_log:
        if len(entry) != data + 1 or any(speed <= 0 for speed in entry[1:]):
            raise ConfigError(
                "parallel.speed_log",
                f"{list(entry)} is no step with a speed above 0 for each of {data} data ranks",
                f"[[0, {', '.join(['1'] * data)}]] is",
            )
    if steps != sorted(set(steps)):
        raise ConfigError(
            "parallel.speed_log",
            f"its steps {[int(step) for step in steps]} do not rise",
            "put them in order",
        )
