"""Check roles that detect which tokens a generator has replaced. Torch-free."""

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
    """Raise ConfigError for a detector whose generator hides no tokens or starts too late, that compares
    anything else with it, or that does not work with this layout or training. `prefix`: the roles' place in
    the configuration; `section`: has the training's extension keys and health.
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
            raise ConfigError(what, f"{how} cannot be combined with the detector {name}", "leave one out")
        if name in layout.roles:
            raise ConfigError(
                f"parallel.roles.{name}",
                "roles that detect cannot have their own layout",
                "leave it out",
            )
        if role.delay and (assigned := value_of(layout, "assignment")):
            raise ConfigError(
                "parallel.assignment",
                f"{assigned}, but {name} reads rows from {role.delay} steps before",
                "assignment=rows, or delay=0",
            )


def _check_taught(place: str, role: Role, teacher: Role) -> None:
    """Check a role whose teacher is a detector."""
    if role.lesson == LESSON:
        raise ConfigError(
            f"{place}teacher",
            f"{role.teacher} is itself a detector, which draws before it reads its own generator's tokens",
            "use a generator that learns only mlm",
        )
    for key, other in role.other_teachers.items():
        raise ConfigError(
            f"{place}objective.{key}.teacher",
            f"{other} is not supported beside the detector {role.teacher}",
            "leave it out",
        )
    for key, spec in role.objective.items():
        if not teacher.predicts and (type(spec).reads_logits_only or spec.schedule.follows_lead):
            raise ConfigError(
                f"{place}objective.{key}",
                f"compares token predictions with {role.teacher}, which does not learn them",
                f"use an objective on hidden states, or add lm or mlm to roles.{role.teacher}",
            )
    if not teacher.predicts and role.gate != "open":
        raise ConfigError(
            f"{place}gate",
            f"{role.gate} nats, but {role.teacher} predicts no tokens",
            "gate=open",
        )


def _check_objectives(place: str, role: Role, roles: Mapping[str, Role]) -> None:
    teacher = roles.get(role.teacher)
    if teacher is not None and not any(isinstance(spec, MLM) for spec in teacher.objective.values()):
        found = ", ".join(spec.kind for spec in teacher.objective.values())
        raise ConfigError(
            f"{place}teacher",
            f"{role.teacher} must draw tokens for hidden ones, but learns {found}",
            "use a role with an objective of kind mlm",
        )
    for key, other in role.other_teachers.items():
        raise ConfigError(
            f"{place}objective.{key}.teacher",
            f"{other} is not supported: a detector's only teacher is its generator",
            "leave it out",
        )
    number = sum(isinstance(spec, Replaced) for spec in role.objective.values())
    for key, spec in role.objective.items():
        if role.teacher_of(key) == role.teacher and not isinstance(spec, Replaced):
            raise ConfigError(
                f"{place}objective.{key}",
                f"compares with {role.teacher}, which reads other tokens than a detector",
                "leave it out",
            )
        if isinstance(spec, Replaced) and (spec.schedule.follows_lead or number > 1):
            what = "occurs twice" if number > 1 else "follows a lead, but there is none over a generator"
            raise ConfigError(f"{place}objective.{key}", what, "one objective of kind replaced, without it")


def _check_steps(place: str, role: Role, roles: Mapping[str, Role]) -> None:
    if role.gate != "open" or role.period > 1:
        field, given = ("gate", role.gate) if role.gate != "open" else ("period", role.period)
        raise ConfigError(f"{place}{field}", f"{given}, but a detector learns in every step", "leave it out")
    teacher = roles.get(role.teacher)
    begins = int(teacher.start) if teacher is not None and teacher.moves else 0
    if role.delay and (role.attach == "frozen" or (teacher is not None and not teacher.moves)):
        key = next(key for key, spec in role.objective.items() if isinstance(spec, Replaced))
        raise ConfigError(
            f"{place}objective.{key}.delay",
            f"{role.delay}, but {role.teacher} is finished and needs no delay",
            "delay=0",
        )
    first = begins + role.delay
    if int(role.start) < first and not 0 < role.start < 1:
        raise ConfigError(
            f"{place}start",
            f"step {role.start}; tokens of {role.teacher}'s first step {begins} are learned in step {first}",
            f"{place}start={first}",
        )
