"""Controls: students trained without their teacher, for comparison."""

from math import prod

from atelier.engine.config.objective.lm import LM
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.config.role import Role
from atelier.engine.config.schedule import WeightSchedule
from atelier.engine.config.sections import keys_with
from atelier.engine.plan.expert_checks import is_competing
from atelier.engine.plan.layout_checks import has_own_head


def controls_of(roles: dict[str, Role]) -> dict[str, Role]:
    """The same-seed control of each student, by the control's name."""
    return {control_of(name): alone(name, role) for name, role in roles.items() if role.teacher}


def fewer(parallel: Parallel, roles: dict[str, Role]) -> Parallel:
    """The layout for roles without a teacher: no more stages than the smallest role has blocks, and no
    settings of single roles, stages or later steps.
    """
    layout = parallel.with_stages(min((role.model.num_blocks for role in roles.values()), default=1))
    return layout.model_copy(update={"roles": {}, "stages": (), "later": {}})


def layout_of_one(parallel: Parallel, name: str, role: Role) -> Parallel:
    """The layout of a training for fine-tuning one of its roles: the role's own axes, if it has any. Without
    experts the ranks of the expert axis share weights, and a shared embedding is gathered. If tokens compete
    for experts, rows must not be padded: the ranks that split them share weights.
    """
    own = parallel.axes_of(name).model_dump() | ({"pipeline": 1} if name in parallel.roles else {})
    layout = fewer(parallel.model_copy(update=own), {name: role})
    has_experts = any(limit.axis == "expert" for limit in role.model.limits())
    freed = ([] if has_experts else ["expert"]) + (["tensor", "context"] if is_competing(role.model) else [])
    shard = layout.axes.shard * prod(getattr(layout, axis) for axis in freed)
    layout = layout.model_copy(update={"shard": shard, **dict.fromkeys(freed, 1)})
    changes: dict[str, object] = {} if has_own_head(role.model) else {"embedding": "gathered"}
    if layout.axes.data != parallel.axes.data:
        changes |= dict.fromkeys(keys_with(layout, "names_ranks"))
    return layout.model_copy(update=changes)


def constant(spec: ObjectiveSpec) -> ObjectiveSpec:
    """The objective with a constant weight."""
    return spec.model_copy(update={"schedule": WeightSchedule()})


def control_of(name: str) -> str:
    return f"{name}-alone"


def alone(name: str, student: Role) -> Role:
    """The same-seed control of a student: same network, seed and tokens, no teacher."""
    own = {name: spec for name, spec in student.objective.items() if not type(spec).needs_teacher}
    if len(own) == 1:  # the only part of the loss: weight 1, as for any model of that objective
        own = {name: constant(spec).model_copy(update={"weight": 1.0}) for name, spec in own.items()}
    elif not any(spec.schedule.is_constant for spec in own.values()):  # keep a weight at each step
        own = {name: constant(spec) for name, spec in own.items()}
    return student.model_copy(
        update={
            "objective": own or {"lm": LM()},
            "teacher": "",
            "gate": "open",
            "attach": "refuse",
            "seed_name": student.seed_name or name,
        }
    )
