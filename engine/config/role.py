"""A role: one model in a training, its objectives and its teacher. Roles are data, never classes."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from atelier.engine.config.base import ANSWERS, Spec, Step
from atelier.engine.config.extensions import extension_of
from atelier.engine.config.registry import Model, Objectives, Optim
from atelier.engine.config.soft_prompt import Mask, Place, SoftPrompt

OF_KIND = {  # the fields of Trainable for each kind
    "lora": ("rank", "alpha", "targets"),
    "parts": ("parts",),
    "prompt": ("length", "place", "mask", "first", "text"),
}


class Trainable(Spec):
    """Which weights are trained: all; low-rank additions to chosen matrices (LoRA, 2106.09685); parts of the
    model, such as Titan's task nets (2112.12731, section 3.1); a soft prompt (2104.08691); or none, for a
    finished teacher.
    """

    kind: Literal["full", "lora", "parts", "prompt", "none"] = Field(
        default="full", description="full, lora, parts, prompt; none = `init` is a finished teacher"
    )
    parts: tuple[str, ...] = Field(
        default=("nlg",),
        min_length=1,
        description="parts: names of the trained parts of the model; ernie has nlu, nlg",
    )
    rank: int = Field(default=8, ge=1, description="lora: rank r")
    alpha: float = Field(default=16.0, gt=0, description="lora: scale alpha / rank of the additions")
    targets: tuple[str, ...] = Field(
        default=("query", "key", "value", "out", "gate", "up", "down"),
        min_length=1,
        description="lora: names of the adapted matrices",
    )
    length: int = Field(default=20, ge=1, le=10_000, description="prompt: number of vectors")
    place: Place = Field(
        default="front",
        description="prompt: position in the prompt: front, middle, back, or three numbers: the parts in"
        " front, in the middle and at the back",
    )
    mask: Mask = Field(
        default="none",
        description="prompt: what the encoder hides: the text from the vectors (prompt_to_text), the vectors"
        " from the text (text_to_prompt), both, none",
    )
    first: Literal["random", "mean", "vocabulary", "frequent", "mask", "text", "labels"] = Field(
        default="vocabulary",
        description="prompt: initial vectors: random; the mean of all rows; or rows of tokens: random ones"
        " of the vocabulary, the most frequent ones of the training prompts, <|mask|>, those of `text`, or of"
        " the labels",
    )
    text: str = Field(default="", description="prompt: text for first=text")

    @property
    def soft_prompt(self) -> SoftPrompt:
        """The soft prompt that is added to a model."""
        if self.kind != "prompt":
            return SoftPrompt()
        return SoftPrompt(length=self.length, place=self.place, mask=self.mask)

    @model_validator(mode="after")
    def _of_its_kind(self) -> "Trainable":
        if (self.kind, self.first) == ("prompt", "text") and not self.text:
            raise ValueError("first=text needs a text: give trainable.text")
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
    objective: Objectives = Field(min_length=1, description="loss terms by name; weights are relative")
    optim: Optim = Field(description="optimiser and learning-rate schedule")
    init: str = Field(
        default="", description="model to start from: name, alias or fingerprint; empty = random"
    )
    trainable: Trainable = Field(default=Trainable(), description="which weights are trained")
    teacher: str = Field(default="", description="the role it learns from; empty = none")
    start: Step = Field(
        default=0,
        ge=0,
        description=(
            "first step of training: a step, or a fraction of all steps below 1 (resolved at compose)"
        ),
    )
    end: Step = Field(
        default=0,
        ge=0,
        description="last step of training: a step, or a fraction of all steps below 1 (resolved at"
        " compose); 0 = the training's last",
    )
    period: int = Field(
        default=1,
        ge=1,
        description="learn from the teacher every n-th step; on other steps from text alone",
    )
    gate: float | Literal["open"] = Field(
        default="open",
        description=(
            "nats: distillation starts, for good, once EMA(student loss - teacher loss) reaches it; open ="
            " at the start"
        ),
    )
    attach: Literal["refuse", "replay", "frozen"] = Field(
        default="refuse",
        description=(
            "if the teacher is already past `start`: refuse; replay the teacher's training; frozen = learn"
            " from the finished teacher"
        ),
    )
    seed_name: str = Field(
        default="",
        description="name that seeds the initial weights; empty = the role's; for same-seed controls",
    )

    @property
    def moves(self) -> bool:
        """Whether any weight is trained; otherwise it is a finished model without a trajectory here."""
        return self.trainable.kind != "none"

    @property
    def other_teachers(self) -> dict[str, str]:
        """Finished models that objectives compare with instead of `teacher`: objective -> role."""
        named = {key: getattr(spec, "teacher", "") for key, spec in self.objective.items()}
        return {key: name for key, name in named.items() if name not in ("", self.teacher)}

    @property
    def teachers(self) -> tuple[str, ...]:
        """All roles that it learns from, `teacher` first."""
        return tuple(dict.fromkeys([*filter(None, [self.teacher]), *self.other_teachers.values()]))

    @property
    def lesson(self) -> str:
        """The lesson that it learns from: `answers` (its teacher's outputs for the same rows), or a lesson
        that changes the rows (engine/extensions/sites/lessons.py); '' if no objective needs a teacher.
        """
        found = {type(spec).lesson for spec in self.objective.values() if type(spec).needs_teacher}
        return next(iter(sorted(found - {ANSWERS})), ANSWERS if found else "")

    @property
    def reads_changed(self) -> bool:
        """Whether its teacher changes its rows. Then it takes each step after its teacher."""
        return self.lesson not in ("", ANSWERS)

    @property
    def predicts(self) -> bool:
        """Whether it trains token prediction."""
        return any(type(spec).predicts for spec in self.objective.values())

    @property
    def delay(self) -> int:
        """The number of steps that it is behind its teacher, if that changes its rows."""
        return max((spec.steps_behind for spec in self.objective.values()), default=0)

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions that define its kinds."""
        kinds = (type(spec) for spec in (self.model, self.optim, *self.objective.values()))
        return tuple(sorted({*map(extension_of, kinds)} - {""}))

    def last(self, num_steps: int) -> int:
        """The step at which the role ends in a training of `num_steps`."""
        return int(self.end) or num_steps

    def taught(self, num_steps: int) -> range:
        """The teacher's steps that it learns from, of `num_steps`: each `delay` before its own."""
        return range(int(self.start) - self.delay, self.last(num_steps) - self.delay)

    def asked(self, num_steps: int) -> range:
        """The teacher's steps whose outputs are kept or sent for it: the taught ones and the `delay` after
        them, where a longer training would continue.
        """
        return range(int(self.start) - self.delay, self.last(num_steps))

    def teacher_of(self, key: str) -> str:
        """The role that an objective compares with; '' if it needs no teacher."""
        needs = type(self.objective[key]).needs_teacher
        return self.other_teachers.get(key, self.teacher) if needs else ""

    @model_validator(mode="after")
    def _finished(self) -> "Role":
        if self.moves:
            return self
        if not self.init:
            raise ValueError("trainable.kind=none needs a finished model: give init=<model>")
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
                    f"objectives {other} and {name} read the same kind of rows, {type(spec).reads}, with"
                    " different fields; give both the same, or leave one out"
                )
        return self

    @model_validator(mode="after")
    def _one_lesson(self) -> "Role":
        found = sorted({type(spec).lesson for spec in self.objective.values()} - {ANSWERS})
        if len(found) > 1:
            raise ValueError(f"its objectives need both {' and '.join(found)} of one teacher; leave one out")
        return self

    @model_validator(mode="after")
    def _teacher_for_distillation(self) -> "Role":

        needing = [name for name, objective in self.objective.items() if type(objective).needs_teacher]
        for name, objective in self.objective.items():
            if objective.schedule.follows_lead and name not in needing:
                raise ValueError(
                    f"the weight of objective {name} follows a teacher's lead, but {objective.kind} needs"
                    " no teacher"
                )
        if needing and not self.teacher:
            raise ValueError(f"objective {needing[0]} needs a teacher; set teacher=<role>")
        if self.teacher and set(needing) <= set(self.other_teachers):
            raise ValueError(
                f"has teacher {self.teacher} but no objective that uses it; objective=distill has one"
            )
        if self.gate != "open" and not self.teacher:
            raise ValueError("a gate needs a teacher")
        if self.period > 1 and len(needing) == len(self.objective):
            raise ValueError(
                f"period {self.period} leaves no objective for the steps without teacher; add lm"
            )
        return self


def without_pipeline(roles: Mapping[str, Role]) -> set[str]:
    """Roles that compute on their teacher's last stage: students, and finished models that only single
    objectives compare with.
    """
    main = {role.teacher for role in roles.values()}
    beside = {other for role in roles.values() for other in role.other_teachers.values()}
    return {name for name, role in roles.items() if role.teacher} | (beside - main)
