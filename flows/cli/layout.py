"""The layout of a run where nobody said one: the first of the planner's search."""

from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from atelier.engine.plan.search import Option, search
from atelier.engine.spec.divisors import divisors
from atelier.engine.spec.error import ConfigError
from atelier.engine.spec.layout import check_layout
from atelier.engine.spec.parallel import Parallel
from atelier.engine.spec.pool import Pool
from atelier.engine.spec.role import Role
from atelier.engine.spec.train import Train
from atelier.flows.cli.fitting import limit_gb

AXES = ("replicate", "expert", "context", "tensor", "pipeline")


def trained(arguments: Any) -> dict[str, Role]:
    """The roles that a flow's arguments describe; one without a name where there is one model, none where it
    cannot be learned (who draws the plan says why).
    """
    roles: dict[str, Role] = dict(getattr(arguments, "roles", None) or {})
    if not roles and hasattr(arguments, "optim") and hasattr(arguments, "model"):
        with suppress(ValidationError):
            roles = {"": Role(**{name: getattr(arguments, name) for name in ("model", "objective", "optim")})}
    return roles


def vocab_of(arguments: Any) -> int:
    return int(getattr(getattr(arguments, "tokenizer", None), "vocab", 0) or 0)


def fastest_layout(arguments: Any, pool: Pool, slots: int, cores: int) -> Option | None:
    """The layout with which the largest role is planned to train fastest on at most `slots` ranks, all roles
    fitting; on GPUs on all of them. None where axes were given, or nothing is known that it follows from:
    then `shard` takes all slots.
    """
    parallel: Parallel = arguments.parallel
    train: Train | None = getattr(arguments, "train", None)
    roles, vocab = trained(arguments), vocab_of(arguments)
    is_free = parallel.shard == "auto" and all(getattr(parallel, axis) == 1 for axis in AXES)
    if not is_free or parallel.roles or pool.members or train is None or not roles or not vocab:
        return None
    models = {name: role.model.resolved(vocab) for name, role in roles.items()}
    largest = max(models, key=lambda name: models[name].flops_per_token(train.sequence))
    role = roles[largest].model_copy(update={"model": models[largest]})
    wanted = (parallel.recompute,) if parallel.recompute != "none" or pool.is_cpu else None
    found: list[Option] = []
    for ranks in divisors(slots, slots) if pool.is_cpu else [slots]:
        like = parallel.resolved(ranks, cores)
        limited = pool.model_copy(update={"memory_gb": limit_gb(pool, ranks)})
        more = {"recompute": wanted} if wanted else {}
        try:
            options, _ = search(role, train, limited, ranks, vocab=vocab, like=like, **more)
        except ConfigError:  # a device of which nothing is known
            return None
        found += [option for option in options if _suits(option, roles, train)]
    if not found:
        return None
    return min(found, key=lambda option: option.estimate.step_s)


def _suits(option: Option, roles: dict[str, Role], train: Train) -> bool:
    try:
        check_layout(option.parallel, roles, train, prefix="")
    except ConfigError:
        return False
    return True
