"""Controls: students trained without their teacher, for comparison."""

from atelier.engine.config.objective.lm import LM
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.config.role import Role
from atelier.engine.config.schedule import WeightSchedule


def controls_of(roles: dict[str, Role]) -> dict[str, Role]:
    """The same-seed control of each student, by the control's name."""
    return {control_of(name): alone(name, role) for name, role in roles.items() if role.teacher}


def fewer(parallel: Parallel, roles: dict[str, Role]) -> Parallel:
    """The layout for roles without a teacher: no more stages than the smallest role has blocks, and no
    settings of single roles or stages.
    """
    layout = parallel.with_stages(min((role.model.num_blocks for role in roles.values()), default=1))
    return layout.model_copy(update={"roles": {}, "stages": ()})


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
