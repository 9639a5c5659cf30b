"""Keys that extensions add to `train` and `parallel`. `train.<key>` is defined in
engine/extensions/<name>/config/train/<key>.py, which is imported only if a configuration has the key.
Torch-free.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

from pydantic import BeforeValidator, Field, SerializeAsAny, create_model
from pydantic.fields import FieldInfo

from atelier.engine.config.base import Given, Json, Spec, SpecChooser
from atelier.engine.config.error import ConfigError
from atelier.engine.config.extensions import extension_of, kinds_of
from atelier.engine.config.kind_files import kind_file, section_class
from atelier.engine.config.section import SECTION, PlainSection, Section

SpecType = TypeVar("SpecType", bound=Spec)
Trait: TypeAlias = Literal["takes_gradients", "chooses_batches", "names_ranks"]  # class variables of Section


@dataclass(frozen=True)
class SectionReader(SpecChooser):
    """Validates the value at an extension's key."""

    section: str
    key: str

    def spec_of(self, document: Mapping[str, Given]) -> type[Spec]:
        """The class of the key, for any value."""
        return section_class(self.section, self.key)

    def plain(self) -> FieldInfo | None:
        """The field `value` of a PlainSection."""
        kind = section_class(self.section, self.key)
        return kind.model_fields["value"] if issubclass(kind, PlainSection) else None

    @property
    def about(self) -> str:
        """The first sentence of the class docstring, used as the field's description."""
        text = " ".join((self.spec_of({}).__doc__ or "").partition(".")[0].split())
        return f"{text[:1].lower()}{text[1:]}"

    def __call__(self, value: Given) -> Given:
        if value is None:
            return None
        found = value if isinstance(value, Section) else section_class(self.section, self.key).read(value)
        return found if found.is_on else None


def with_sections(section: str) -> Callable[[type[SpecType]], type[SpecType]]:
    """A class decorator that adds a field for each extension key to a section's spec. The field is None if
    the key is missing or off; documents then lack the key.
    """

    def extend(base: type[SpecType]) -> type[SpecType]:
        fields: dict[str, Any] = {}  # type and field, as pydantic takes them
        for key in kinds_of(f"config/{section}"):
            if key in base.model_fields:
                raise ConfigError(
                    kind_file(f"config/{section}", key), f"{section}.{key} is a key of the core", "rename it"
                )
            reader = BeforeValidator(SectionReader(section, key))
            field = Field(default=None, exclude_if=_is_absent, json_schema_extra=SECTION)
            fields[key] = (Annotated[SerializeAsAny[Section] | None, reader], field)
        made = create_model(base.__name__, __base__=base, __module__=base.__module__, **fields)
        made.__doc__ = base.__doc__
        return cast(type[SpecType], made)

    return extend


def _is_absent(value: Section | None) -> bool:
    return value is None


def sections_of(spec: Spec) -> dict[str, Section]:
    """The sections of extensions that are on, by key."""
    found = ((name, getattr(spec, name)) for name in type(spec).model_fields)
    return {name: value for name, value in found if isinstance(value, Section) and value.is_on}


def extensions_of(*specs: Spec) -> set[str]:
    """The extensions with a section that is on."""
    return {extension_of(type(value)) for spec in specs for value in sections_of(spec).values()}


def keys_with(spec: Spec, *traits: Trait) -> list[str]:
    """The keys of sections that are on and have one of these traits."""
    return [key for key, one in sections_of(spec).items() if any(getattr(type(one), t) for t in traits)]


def value_of(spec: Spec, key: str) -> Json:
    """The value of a PlainSection, or of another section's field `<key>.<field>`; None if it is off or its
    extension is missing.
    """
    first, _, field = key.partition(".")
    return getattr(sections_of(spec).get(first), field or "value", None)


class FrozenLimit(NamedTuple):
    """The limit of a frozen teacher's weights in a rank's memory, GB. `place`: its configuration key."""

    place: str
    gb: float


def frozen_limit(layout: Spec) -> FrozenLimit | None:
    """The limit in a layout; None if the whole teacher is in memory."""
    found = ((key, *section.frozen_limit) for key, section in sections_of(layout).items())
    return next((FrozenLimit(f"parallel.{key}.{field}", gb) for key, field, gb in found if gb), None)


def is_here(spec: Spec, role: str) -> bool:
    """Whether this run trains the role or has it as a finished model."""
    return all(value.is_here(role) for value in sections_of(spec).values())


def site_here(spec: Spec) -> str:
    """The site of this run if several sites train together; otherwise ''."""
    return "".join(value.site_here for value in sections_of(spec).values())


def places_here(spec: Spec) -> list[str]:
    """The sites that run a training; [] if it is not spread over sites."""
    return [name for value in sections_of(spec).values() for name in value.places_here]


def for_roles_alone(spec: SpecType) -> SpecType:
    """The same settings for training some of the roles without their teachers."""
    return spec.model_copy(update={key: each.for_roles_alone for key, each in sections_of(spec).items()})


def among(spec: SpecType, roles: Collection[str]) -> SpecType:
    """The same settings for a training that has these of its roles."""
    return spec.model_copy(update={key: each.among(roles) for key, each in sections_of(spec).items()})


def at_one_site(spec: SpecType) -> SpecType:
    """The same settings for a training that exchanges nothing with other sites, such as fine-tuning."""
    return spec.model_copy(update={key: each.at_one_site for key, each in sections_of(spec).items()})


def without_codec(spec: SpecType) -> SpecType:
    """The same settings with contributions between sites that lose nothing."""
    return spec.model_copy(update={key: each.without_codec for key, each in sections_of(spec).items()})


def filled(section: str, given: dict[str, Given]) -> dict[str, Given]:
    """Add to a section the settings that its extension keys need."""
    for key in kinds_of(f"config/{section}"):
        if given.get(key) is not None:
            given = cast(type[Section], section_class(section, key)).fill(given[key], given)
    return given
