"""Checks of a single role: trained parts, and weights of its objectives over the steps; of its data: caps of
epochs. Torch-free.
"""

from collections.abc import Iterable, Mapping

from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.mixture import Sharing
from atelier.engine.config.role import Role
from atelier.engine.config.soft_prompt import SoftPrompt
from atelier.engine.config.train import Train


def check_trainable(place: str, role: Role) -> None:
    """Raise ConfigError if a role would train parts or matrices that its model lacks. `place` ends with a
    dot, or is ''.
    """
    model, trainable = role.model, role.trainable
    if trainable.kind == "full":
        return
    shapes = (model.resolved(1) if model.vocab == "auto" else model).shapes()
    if trainable.kind == "prompt" and not getattr(model, "soft_prompt", SoftPrompt()).length:
        raise ConfigError(
            f"{place}trainable.kind",
            "prompt, which needs labelled examples",
            "atelier finetune finetune.trainable.kind=prompt",
        )
    if trainable.mask != "none" and not model.reads_encoder:
        raise ConfigError(
            f"{place}trainable.mask",
            f"{trainable.mask} hides tokens inside an encoder, but models of kind {model.kind} have none",
            "trainable.mask=none, or a model of kind encdec",
        )
    if trainable.kind == "parts":
        _check_names(
            f"{place}trainable.parts", "part", trainable.parts, {name.split(".")[0] for name in shapes}
        )
    if trainable.kind == "lora":
        matrices = {
            name.split(".")[-2]
            for name, shape in shapes.items()
            if "blocks." in name and len(shape) == 2 and name.endswith(".weight")
        }
        usual = type(trainable)().targets  # not every model has all of them
        given = [
            name for name in trainable.targets if name not in usual or not matrices & set(trainable.targets)
        ]
        _check_names(f"{place}trainable.targets", "matrix", given, matrices)


def _check_names(place: str, what: str, given: Iterable[str], known: set[str]) -> None:
    for name in given:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near}? " if near else ""
            raise ConfigError(
                place, f"the model has no {what} {name!r}", f"{hint}there are: {', '.join(sorted(known))}"
            )


def check_schedules(roles: Mapping[str, Role], train: Train, *, prefix: str = "roles.") -> None:
    """Raise ConfigError if an objective's weight does not change within its role's steps, or if a role has a
    step without any weighted objective. `start` must be a step; `prefix` as in `check_layout`.
    """
    for name, role in roles.items():
        if not role.moves:
            continue
        place = f"{prefix}{name}." if prefix else ""
        start, end = int(role.start), role.last(train.num_steps)
        points = {start, end - 1}
        for key, spec in role.objective.items():
            spec.schedule.check(start, end, f"{place}objective.{key}.schedule")
            if spec.schedule.follows_lead:
                continue
            begin, after = spec.schedule.span(start, end)
            for point in (begin, after - 1):  # between these, changing weights are above 0
                points |= {point - 1, point, point + 1}
        own = [spec for spec in role.objective.values() if not type(spec).needs_teacher]
        is_gated = role.gate != "open"
        for step in sorted(point for point in points if start <= point < end):
            is_alone = is_gated or (step - start) % role.period  # the step may be without teacher
            # (a weight that follows a lead counts as 0: there may be none)
            for specs in (role.objective.values(), own if is_alone else ()):
                if specs and not any(spec.schedule.factor(step, start, end) for spec in specs):
                    which = " of its own" if specs is own else ""
                    raise ConfigError(
                        f"{place}objective",
                        f"at step {step} no objective{which} has a weight above 0",
                        "leave one constant, as lm: weights that follow a lead are 0 without one"
                        if any(spec.schedule.follows_lead for spec in specs)
                        else "leave one constant, or give schedule.last",
                    )


def check_caps(sharing: Sharing, train: Train) -> None:
    """Raise ConfigError for caps of epochs in a training whose rows grow, since a cap counts rows of one
    length; and for shares of each step where steps grow.
    """
    if sharing.assignment == "batches" and train.progressive.grows:
        raise ConfigError(
            "data.assignment",
            "batches, and train.progressive changes the rows of a step",
            "train.progressive.steps=0, or assignment=exact",
        )
    if sharing.epochs and train.progressive.steps and train.progressive.sequence < 1:
        raise ConfigError(
            "data.epochs",
            f"{', '.join(sharing.epochs)} has a cap of rows, which train.progressive makes longer",
            "train.progressive.sequence=1, or no caps",
        )
