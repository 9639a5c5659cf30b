"""Checks of roles that learn which tokens a generator has replaced. Torch-free."""

from collections.abc import Mapping

from atelier.engine.config.error import ConfigError
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Role
from atelier.engine.config.sections import sections_of, value_of
from atelier.engine.config.train import Train
from atelier.engine.extensions.detection.config.objective.replaced import Replaced

LESSON = Replaced.lesson


def check(layout: Parallel, roles: Mapping[str, Role], train: Train, *, prefix: str, section: str) -> None:
    """Raise ConfigError for a detector whose generator hides no tokens or has not begun so many steps before,
    that compares more with it, or that is not built in this layout or training. `prefix`: where the
    configuration has the roles, `section`: the training's link and health.
    """
    for name, role in roles.items():
        place = f"{prefix}{name}." if prefix else ""
        if role.teacher in roles and roles[role.teacher].reads_changed:
            _check_taught(place, role, roles[role.teacher])
        if role.lesson != LESSON:
            continue
        _check_objectives(place, role, roles)
        _check_steps(place, role, roles)
        averaged = [f"{key}.{value.averages}" for key, value in sections_of(train).items() if value.averages]
        if averaged or train.health.rolls_back:
            what = f"{section}.{averaged[0] if averaged else 'health'}"
            how = "sites that average a model" if averaged else "rollback"
            raise ConfigError(what, f"{how}, and {name} detects replaced tokens: not built", "leave one out")
        if name in layout.roles:
            raise ConfigError(
                f"parallel.roles.{name}",
                "a layout of its own is not built for roles that detect",
                "leave it out",
            )
        if role.delay and (assigned := value_of(layout, "assignment")):
            raise ConfigError(
                "parallel.assignment",
                f"{assigned}, and {name} reads the rows of {role.delay} steps before",
                "assignment=rows, or delay=0",
            )


def _check_taught(place: str, role: Role, teacher: Role) -> None:
    """Check a role whose teacher detects."""
    if role.lesson == LESSON:
        raise ConfigError(
            f"{place}teacher",
            f"{role.teacher} detects itself, and draws before it has read what its own generator drew",
            "a generator that learns mlm alone",
        )
    for key, other in role.other_teachers.items():
        raise ConfigError(
            f"{place}objective.{key}.teacher",
            f"{other}, beside {role.teacher}, which detects: not built",
            "leave it out",
        )
    for key, spec in role.objective.items():
        if not teacher.predicts and (type(spec).reads_logits_only or spec.schedule.follows_lead):
            raise ConfigError(
                f"{place}objective.{key}",
                f"compares with how {role.teacher} predicts tokens, which it does not learn",
                f"an objective of its hidden states, or roles.{role.teacher} with lm or mlm beside",
            )
    if not teacher.predicts and role.gate != "open":
        raise ConfigError(
            f"{place}gate",
            f"{role.gate} nats before {role.teacher}, which predicts no tokens",
            "gate=open",
        )


def _check_objectives(place: str, role: Role, roles: Mapping[str, Role]) -> None:
    teacher = roles.get(role.teacher)
    if teacher is not None and not any(isinstance(spec, MLM) for spec in teacher.objective.values()):
        found = ", ".join(spec.kind for spec in teacher.objective.values())
        raise ConfigError(
            f"{place}teacher",
            f"{role.teacher} is to draw tokens in the place of hidden ones, and learns {found}",
            "a role with an objective of kind mlm",
        )
    for key, other in role.other_teachers.items():
        raise ConfigError(
            f"{place}objective.{key}.teacher",
            f"{other}, and a role that detects has its generator alone: not built",
            "leave it out",
        )
    number = sum(isinstance(spec, Replaced) for spec in role.objective.values())
    for key, spec in role.objective.items():
        if role.teacher_of(key) == role.teacher and not isinstance(spec, Replaced):
            raise ConfigError(
                f"{place}objective.{key}",
                f"compares with {role.teacher}, which reads other tokens than a role that detects",
                "leave it out",
            )
        if isinstance(spec, Replaced) and (spec.schedule.follows_lead or number > 1):
            what = "is there twice" if number > 1 else "follows a lead, and there is none over a generator"
            raise ConfigError(f"{place}objective.{key}", what, "one objective of kind replaced, without it")


def _check_steps(place: str, role: Role, roles: Mapping[str, Role]) -> None:
    if role.gate != "open" or role.period > 1:
        field, given = ("gate", role.gate) if role.gate != "open" else ("period", role.period)
        raise ConfigError(
            f"{place}{field}", f"{given}, and a role that detects does it in every step", "leave it out"
        )
    teacher = roles.get(role.teacher)
    begins = int(teacher.start) if teacher is not None and teacher.moves else 0
    if role.delay and (role.attach == "frozen" or (teacher is not None and not teacher.moves)):
        key = next(key for key, spec in role.objective.items() if isinstance(spec, Replaced))
        raise ConfigError(
            f"{place}objective.{key}.delay",
            f"{role.delay}, and {role.teacher} is finished: what it draws is the same in every step",
            "delay=0",
        )
    first = begins + role.delay
    if int(role.start) < first and not 0 < role.start < 1:
        raise ConfigError(
            f"{place}start",
            f"step {role.start}; what {role.teacher} draws in its step {begins} is learned in step {first}",
            f"{place}start={first}",
        )
