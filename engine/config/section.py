"""The base of the settings of extensions, at keys that they add to a section such as `train` (sections.py).
Torch-free.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import model_serializer
from pydantic.config import JsonDict

from atelier.engine.config.base import Given, Json, Spec

SECTION: JsonDict = {"section": True}  # of a field: a key of an extension (sections.py)


class Section(Spec):
    """The settings of an extension, at a key that it adds to a section such as `train` (sections.py).

    `ABSENT`: values that a field's absence from identity has always meant, as in identity_defaults.py.
    """

    ABSENT: ClassVar[Mapping[str, Json]] = {}
    ORIGINS: ClassVar[Mapping[str, str]] = {}  # keys of `identity_for`, and the field here to change
    NEEDS: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # a field, and those that do nothing without it
    OFF: ClassVar[str] = ""  # what a user writes to turn it off, below its key: kind=none
    takes_gradients: ClassVar[bool] = False  # its hook takes those of each rank, of weights that are whole
    chooses_batches: ClassVar[bool] = False  # its hook chooses those of each rank: their shapes may differ
    names_ranks: ClassVar[bool] = False  # it says something of each data rank of a layout

    @property
    def is_on(self) -> bool:
        """Whether it changes anything. One that is off counts as absent."""
        return True

    @property
    def frozen_limit(self) -> tuple[str, float]:
        """The field that bounds a frozen teacher's weights in memory, and the GB a rank; 0 = no bound."""
        return "", 0.0

    @classmethod
    def of(cls, spec: Spec) -> Self | None:
        """The section of this class in a spec, if it is there and on."""
        values = (getattr(spec, name) for name in type(spec).model_fields)
        return next((value for value in values if isinstance(value, cls) and value.is_on), None)

    @classmethod
    def read(cls, value: Given) -> Self:
        """Validate the value of the key in a configuration."""
        return cls.model_validate(value)

    @classmethod
    def fill(cls, own: Given, given: dict[str, Given]) -> dict[str, Given]:
        """Add to `given`, the keys of a section, what `own`, the value at this key, needs there."""
        return given

    def acts_on(self, role: str, teacher: str, lesson: str) -> bool:
        """Whether it is part of the identity of a role's training. Then the extension's code is part of the
        role's code map. `lesson`: what the role learns from its teacher.
        """
        found = self.identity_for(role, teacher, lesson)
        return self.is_on if found is None else bool(found)

    def identity_for(self, role: str, teacher: str, lesson: str) -> dict[str, Json] | None:
        """What stands in the identity of a role's training in its place; None: its own identity."""
        return None

    def branch_step(self, start: int, end: int) -> int:
        """The first step from `start` on that depends on how long the training is; `end` when none does."""
        return end

    def is_here(self, role: str) -> bool:
        """Whether this run trains the role, or has it as a finished model."""
        return True

    @property
    def site_here(self) -> str:
        """The site of this run, where several sites train together; '' where one trains alone."""
        return ""

    @property
    def places(self) -> list[str]:
        """The sites that train together, sorted; [] where one run trains alone."""
        return []

    @property
    def places_here(self) -> list[str]:
        """Those of them that run this training: all, or the one whose roles it has."""
        return self.places

    @property
    def is_whole(self) -> bool:
        """Whether the run has the roles of all sites, each to be trained at its own."""
        return False

    @property
    def for_all_sites(self) -> "Section":
        """The section as it is drawn for all sites: with the roles of all."""
        return self

    @property
    def averages(self) -> str:
        """The field by which several runs average a model; '' where they do not."""
        return ""

    def batch_here(self, batch: int) -> int:
        """The sequences of each step that this run reads."""
        return batch

    @property
    def for_roles_alone(self) -> "Section | None":
        """The section for a training of some of the roles, without their teachers."""
        return self

    @property
    def for_fine_tuning(self) -> "Section | None":
        """The section for a model that is fine-tuned on labels, in one process."""
        return self

    def check_section(self, section: Spec) -> None:
        """Raise ValueError where the section that has the key does not fit."""

    def check_scratch(self) -> None:
        """Raise ConfigError where it is not built for finetune.scratch, a network whose weights all train."""


class PlainSection(Section):
    """A section that a configuration has as a word or a list instead of a mapping: its field `value`, to
    which the class of a key gives type, default and description.
    """

    value: Any

    @classmethod
    def read(cls, value: Given) -> Self:
        """Validate the value of the key in a configuration."""
        return cls.model_validate({"value": value})

    @model_serializer
    def _plain(self) -> Any:
        return self.value

    @property
    def is_on(self) -> bool:
        """Whether it is another value than the default."""
        return bool(self.value != type(self).model_fields["value"].default)
