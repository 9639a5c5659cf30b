"""A role: one model in a training, its objectives and its teacher. Roles are data, never classes."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from atelier.engine.config.base import ANSWERS, Spec, Step
from atelier.engine.config.extensions import extension_of
from atelier.engine.config.registry import Model, Objectives, Optim
from atelier.engine.config.soft_prompt import Place, SoftPrompt

OF_KIND = {  # fields of Trainable that a kind has
    "lora": ("rank", "alpha", "targets"),
    "parts": ("parts",),
    "prompt": ("length", "place", "first", "text"),
}


class Trainable(Spec):
    """Which weights are trained: all, low-rank additions to chosen matrices (LoRA, 2106.09685), some of the
    model's parts, as Titan's task nets (2112.12731, section 3.1), a soft prompt (2104.08691), or none of a
    finished model that teaches.
    """

    kind: Literal["full", "lora", "parts", "prompt", "none"] = Field(
        default="full", description="full, lora, parts, prompt; none = the model of `init` teaches as it is"
    )
    parts: tuple[str, ...] = Field(
        default=("nlg",),
        min_length=1,
        description="parts: names of the model's parts that are trained, of ernie nlu, nlg",
    )
    rank: int = Field(default=8, ge=1, description="lora: inner width r")
    alpha: float = Field(default=16.0, gt=0, description="lora: the addition is scaled by alpha / rank")
    targets: tuple[str, ...] = Field(
        default=("query", "key", "value", "out", "gate", "up", "down"),
        min_length=1,
        description="lora: names of the matrices",
    )
    length: int = Field(default=20, ge=1, le=10_000, description="prompt: vectors in the place of tokens")
    place: Place = Field(default="front", description="prompt: where in the prompt: front, middle, back")
    first: Literal["random", "vocabulary", "text", "labels"] = Field(
        default="vocabulary",
        description="prompt: first values: random, rows of tokens drawn from the vocabulary, of `text`, or of"
        " the options of labelled examples",
    )
    text: str = Field(default="", description="prompt: the text of first=text")

    @property
    def soft_prompt(self) -> SoftPrompt:
        """The soft prompt that it adds to a model."""
        return SoftPrompt(length=self.length, place=self.place) if self.kind == "prompt" else SoftPrompt()

    @model_validator(mode="after")
    def _of_its_kind(self) -> "Trainable":
        if (self.kind, self.first) == ("prompt", "text") and not self.text:
            raise ValueError("first=text begins with the rows of a text: give text")
        own = ("kind", *OF_KIND.get(self.kind, ()))
        own = own if self.first == "text" else tuple(name for name in own if name != "text")
        for name, field in type(self).model_fields.items():
            if name not in own and getattr(self, name) != field.default:
                where = (
                    f"kind={self.kind}" if name not in OF_KIND.get(self.kind, ()) else f"first={self.first}"
                )
                raise ValueError(f"{name} does nothing where {where}; leave it out")
        return self


class Role(Spec):
    model: Model = Field(description="the network")
    objective: Objectives = Field(min_length=1, description="what is optimised, by name; weights are shares")
    optim: Optim = Field(description="optimiser and learning-rate schedule")
    init: str = Field(
        default="", description="a model (name, alias or fingerprint) to start from; empty = from the seed"
    )
    trainable: Trainable = Field(default=Trainable(), description="which weights move")
    teacher: str = Field(default="", description="the role it learns from; empty = none")
    start: Step = Field(
        default=0,
        ge=0,
        description=(
            "first step of training: a step, or a fraction of all steps below 1 (resolved to a step at"
            " compose)"
        ),
    )
    end: Step = Field(
        default=0,
        ge=0,
        description="last step of its training: a step, or a fraction of all steps below 1 (resolved at"
        " compose); 0 = the training's last",
    )
    period: int = Field(
        default=1,
        ge=1,
        description="it learns from its teacher every so many steps, on the others from text alone",
    )
    gate: float | Literal["open"] = Field(
        default="open",
        description=(
            "nats: distillation switches on for good when EMA(student loss - teacher loss) reaches it; open ="
            " from start"
        ),
    )
    attach: Literal["refuse", "replay", "frozen"] = Field(
        default="refuse",
        description=(
            "when the teacher is already past `start`: refuse, replay the teacher, or learn from the finished"
            " one (frozen)"
        ),
    )
    seed_name: str = Field(
        default="",
        description="names the initial weights; empty = the role's name; a same-seed control sets it",
    )

    @property
    def moves(self) -> bool:
        """Whether any of its weights does; otherwise it is a finished model, which has no trajectory here."""
        return self.trainable.kind != "none"

    @property
    def other_teachers(self) -> dict[str, str]:
        """The finished models that objectives compare with, instead of `teacher`: objective -> role."""
        named = {key: getattr(spec, "teacher", "") for key, spec in self.objective.items()}
        return {key: name for key, name in named.items() if name not in ("", self.teacher)}

    @property
    def teachers(self) -> tuple[str, ...]:
        """All roles that it learns from, its `teacher` first."""
        return tuple(dict.fromkeys([*filter(None, [self.teacher]), *self.other_teachers.values()]))

    @property
    def lesson(self) -> str:
        """It learns from `answers`, its teacher's outputs for the same rows, or from a lesson of another name
        (engine/extensions/sites/lessons.py), which changes the rows; '' where no objective needs a teacher.
        """
        found = {type(spec).lesson for spec in self.objective.values() if type(spec).needs_teacher}
        return next(iter(sorted(found - {ANSWERS})), ANSWERS if found else "")

    @property
    def reads_changed(self) -> bool:
        """Whether it reads rows that its teacher has changed. It takes its step after that of its teacher."""
        return self.lesson not in ("", ANSWERS)

    @property
    def predicts(self) -> bool:
        """Whether it learns to predict tokens."""
        return any(type(spec).predicts for spec in self.objective.values())

    @property
    def delay(self) -> int:
        """The steps that it is behind its teacher, where it reads rows that this has changed."""
        return max((spec.steps_behind for spec in self.objective.values()), default=0)

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions that its kinds are of."""
        kinds = (type(spec) for spec in (self.model, self.optim, *self.objective.values()))
        return tuple(sorted({*map(extension_of, kinds)} - {""}))

    def last(self, num_steps: int) -> int:
        """The step at which the role's training ends, in a training of `num_steps`."""
        return int(self.end) or num_steps

    def taught(self, num_steps: int) -> range:
        """The steps of its teacher that it learns from, in a training of `num_steps`: `delay` before its."""
        return range(int(self.start) - self.delay, self.last(num_steps) - self.delay)

    def asked(self, num_steps: int) -> range:
        """The steps of its teacher whose outputs are kept or sent for it: those that it is taught, and the
        `delay` after them, from which a longer training of it goes on.
        """
        return range(int(self.start) - self.delay, self.last(num_steps))

    def teacher_of(self, key: str) -> str:
        """The role that an objective compares with; '' where it has no teacher."""
        needs = type(self.objective[key]).needs_teacher
        return self.other_teachers.get(key, self.teacher) if needs else ""

    @model_validator(mode="after")
    def _finished(self) -> "Role":
        if self.moves:
            return self
        if not self.init:
            raise ValueError("trainable.kind=none is a finished model; name it with init=<model>")
        idle = ("teacher", "start", "end", "period", "gate", "attach", "seed_name")
        fields = type(self).model_fields
        given = [name for name in idle if getattr(self, name) != fields[name].default]
        if given:
            raise ValueError(f"{given[0]} does nothing where trainable.kind=none; leave it out")
        return self

    @model_validator(mode="after")
    def _one_kind_of_rows(self) -> "Role":
        own = {name: spec for name, spec in self.objective.items() if not type(spec).needs_teacher}
        first: dict[str, str] = {}
        for name, spec in own.items():
            other = first.setdefault(type(spec).reads, name)
            if spec.numbers() != own[other].numbers():
                raise ValueError(
                    f"objectives {other} and {name} read the same kind of rows, {type(spec).reads}, made by "
                    "other numbers; give both the same, or leave one out"
                )
        return self

    @model_validator(mode="after")
    def _one_lesson(self) -> "Role":
        found = sorted({type(spec).lesson for spec in self.objective.values()} - {ANSWERS})
        if len(found) > 1:
            raise ValueError(f"its objectives learn from {' and '.join(found)} of one teacher; leave one out")
        return self

    @model_validator(mode="after")
    def _teacher_for_distillation(self) -> "Role":

        needing = [name for name, objective in self.objective.items() if type(objective).needs_teacher]
        for name, objective in self.objective.items():
            if objective.schedule.follows_lead and name not in needing:
                raise ValueError(
                    f"the weight of objective {name} follows a teacher's lead, but {objective.kind} needs no "
                    "teacher"
                )
        if needing and not self.teacher:
            raise ValueError(f"objective {needing[0]} needs a teacher; set teacher=<role>")
        if self.teacher and set(needing) <= set(self.other_teachers):
            raise ValueError(
                f"has teacher {self.teacher} but no objective that uses one; objective=distill has one"
            )
        if self.gate != "open" and not self.teacher:
            raise ValueError("a gate needs a teacher")
        if self.period > 1 and len(needing) == len(self.objective):
            raise ValueError(
                f"period {self.period} leaves nothing to optimise on the steps without the teacher; add lm"
            )
        return self


def without_pipeline(roles: Mapping[str, Role]) -> set[str]:
    """The roles that compute on their teacher's last stage: students, and finished models that only single
    objectives of theirs compare with.
    """
    main = {role.teacher for role in roles.values()}
    beside = {other for role in roles.values() for other in role.other_teachers.values()}
    return {name for name, role in roles.items() if role.teacher} | (beside - main)
