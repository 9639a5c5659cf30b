"""Base of the settings of extensions, which are keys in a section such as `train` (sections.py).
Torch-free.
"""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Self

from pydantic import model_serializer
from pydantic.config import JsonDict

from atelier.engine.config.base import Given, Json, Spec

SECTION: JsonDict = {"section": True}  # marks a field as an extension's key (sections.py)


class Section(Spec):
    """The settings of an extension, at a key that it adds to a section such as `train` (sections.py).

    `ABSENT`: field values that count as absent in identity, as in identity_defaults.py.
    """

    ABSENT: ClassVar[Mapping[str, Json]] = {}
    ORIGINS: ClassVar[Mapping[str, str]] = {}  # key of `identity_for` -> field here to change
    NEEDS: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # field -> fields without effect unless it is set
    OFF: ClassVar[str] = ""  # setting below its key that turns it off: kind=none
    takes_gradients: ClassVar[bool] = False  # its hook takes each rank's gradients of whole weights
    chooses_batches: ClassVar[bool] = False  # its hook chooses each rank's batches, whose shapes may differ
    names_ranks: ClassVar[bool] = False  # it has a setting for each data rank of a layout

    @property
    def is_on(self) -> bool:
        """Whether it changes anything; if not, it counts as absent."""
        return True

    @property
    def frozen_limit(self) -> tuple[str, float]:
        """The field that limits a frozen teacher's memory, and its value in GB per rank; 0 = no limit."""
        return "", 0.0

    @classmethod
    def of(cls, spec: Spec) -> Self | None:
        """The section of this class in a spec, if it is present and on."""
        values = (getattr(spec, name) for name in type(spec).model_fields)
        return next((value for value in values if isinstance(value, cls) and value.is_on), None)

    @classmethod
    def read(cls, value: Given) -> Self:
        """Validate the key's value in a configuration."""
        return cls.model_validate(value)

    @classmethod
    def fill(cls, own: Given, given: dict[str, Given]) -> dict[str, Given]:
        """Add to `given`, a section's keys, the settings that this key's value `own` needs."""
        return given

    def acts_on(self, role: str, teacher: str, lesson: str) -> bool:
        """Whether it is part of the identity of a role's training; the extension's code is then part of the
        role's code map. `lesson`: the lesson that the role learns.
        """
        found = self.identity_for(role, teacher, lesson)
        return self.is_on if found is None else bool(found)

    def identity_for(self, role: str, teacher: str, lesson: str) -> dict[str, Json] | None:
        """Its identity in a role's training; None = not part of it."""
        return None

    def branch_step(self, start: int, end: int) -> int:
        """The first step from `start` on that depends on the length of training; `end` if none does."""
        return end

    def is_here(self, role: str) -> bool:
        """Whether this run trains the role or has it as a finished model."""
        return True

    @property
    def site_here(self) -> str:
        """The site of this run if several sites train together; otherwise ''."""
        return ""

    @property
    def places(self) -> list[str]:
        """The sites that train together, sorted; [] if the run trains alone."""
        return []

    @property
    def places_here(self) -> list[str]:
        """The sites that run this training: all, or the one whose roles it has."""
        return self.places

    @property
    def is_whole(self) -> bool:
        """Whether the run has the roles of all sites, each to be trained at its own site."""
        return False

    @property
    def for_all_sites(self) -> "Section":
        """The section with the roles of all sites, for drawing."""
        return self

    @property
    def averages(self) -> str:
        """The field by which several runs average a model; '' if they do not."""
        return ""

    def batch_here(self, batch: int) -> int:
        """The sequences per step that this run reads."""
        return batch

    def arithmetic(self, precision: str) -> str:
        """The precision in which this run computes, where the settings have `precision` for all."""
        return precision

    @property
    def for_roles_alone(self) -> "Section | None":
        """The section for training some of the roles without their teachers."""
        return self

    def among(self, roles: Collection[str]) -> "Section":
        """The section for a training that has these of its roles."""
        return self

    @property
    def at_one_site(self) -> "Section | None":
        """The section for a training that exchanges nothing with other sites."""
        return self

    @property
    def without_codec(self) -> "Section":
        """The section with messages between sites that lose nothing."""
        return self

    def check_section(self, section: Spec) -> None:
        """Raise ValueError if the section that has the key does not fit."""

    def check_scratch(self) -> None:
        """Raise ConfigError if it does not support finetune.scratch, which trains all weights."""


class PlainSection(Section):
    """A section whose value is a word or list instead of a mapping: field `value`, for which the class gives
    type, default and description.
    """

    value: Any

    @classmethod
    def read(cls, value: Given) -> Self:
        """Validate the key's value in a configuration."""
        return cls.model_validate({"value": value})

    @model_serializer
    def _plain(self) -> Any:
        return self.value

    @property
    def is_on(self) -> bool:
        """Whether the value differs from the default."""
        return bool(self.value != type(self).model_fields["value"].default)
