"""corpus: read text from its sources and encode it as tokens for training.

atelier corpus data.source='texts/*.jsonl' data.field=text
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from atelier.engine.config.annotations import OF_TRIPLES, Described, MaskingUnits
from atelier.engine.config.data import Data, Tokenizer
from atelier.engine.config.error import ConfigError, printable
from atelier.engine.config.generation import GENRES
from atelier.engine.config.mixture import Phase, Sharing, sources
from atelier.engine.config.objective.control import Control
from atelier.engine.config.registry import ObjectiveSpec, kinds, spec_class
from atelier.engine.config.role import Role
from atelier.engine.config.taggers import Tagger
from atelier.flows.curation import curated
from atelier.infra.dag import Reference
from atelier.infra.store.existing_model import existing_model
from atelier.tasks.curate import curate
from atelier.tasks.describe import describe
from atelier.tasks.encode import encode
from atelier.tasks.extract import extract
from atelier.tasks.learn_tokenizer import learn_tokenizer
from atelier.tasks.write import write


@dataclass(frozen=True)
class Text:
    """Documents and tokens of every source, their shares in each phase, the assignment of samples, the
    tokenizer that made them, and the settings of what else is read from them.
    """

    corpora: dict[str, Reference]
    tokens: dict[str, Reference]
    weights: dict[str, float]
    phases: dict[str, Phase]
    sharing: Sharing
    tokenizer: Reference
    taggers: dict[str, Tagger]
    attributes: Described
    units: MaskingUnits
    triples: dict[str, Reference]  # if the text's units are their names


def corpus(data: Data, tokenizer: Tokenizer) -> Text:
    """Also for trainings to come: with the units that they may hide."""
    sources = data.sources()
    if data.curation is not None:
        corpora = curated(data, data.curation)
    else:
        corpora = {name: curate(name, source, data) for name, source in sources.items()}
    if data.written.by:
        writer = existing_model(data.written.by, "data.written.by")
        corpora = {
            name: write(name, corpus, data.written, writer.reference, writer.sized)
            for name, corpus in corpora.items()
        }
    vocabulary = learn_tokenizer(corpora, tokenizer)
    find = partial(extract, taggers=data.taggers, units=data.units)
    by_names = data.units.entities == OF_TRIPLES
    triples = {name: find(name, corpora[name]) for name in sources} if by_names else {}
    tokens = {
        name: encode(
            name,
            corpora[name],
            vocabulary,
            units=data.units,
            triples=triples.get(name),
            sources=len(sources),
        )
        for name in sources
    }
    weights = {name: source.weight for name, source in sources.items()}
    return Text(
        corpora=corpora,
        tokens=tokens,
        weights=weights,
        phases=data.phases,
        sharing=data.sharing,
        tokenizer=vocabulary,
        taggers=data.taggers,
        attributes=data.attributes,
        units=data.units,
        triples=triples,
    )


def text_of(data: Data, tokenizer: Tokenizer, roles: Iterable[Role]) -> Text:
    """The text for trainings of these roles. Raises ConfigError as `check_read`."""
    check_read(data, roles)
    return corpus(data, tokenizer)


def check_read(data: Data, roles: Iterable[Role]) -> None:
    """Raise ConfigError for settings of units, attributes or triples if no objective of the roles reads
    what they describe.
    """
    classes = {type(spec) for role in roles for spec in role.objective.values()}
    given = {
        "units": (data.units.model_dump(exclude_defaults=True), _hides),
        "attributes": (
            data.attributes.model_dump(exclude_defaults=True),
            lambda spec: spec.source == "attributes",
        ),
        "taggers": (
            {name: tagger.kind for name, tagger in data.taggers.items()},
            lambda spec: spec.source == "triples" or (data.units.entities == OF_TRIPLES and _hides(spec)),
        ),
    }
    for section, (fields, reads) in given.items():
        if fields and not any(map(reads, classes)):
            known = [kind for kind in kinds("objective") if reads(spec_class("objective", kind))]
            raise ConfigError(
                f"data.{section}",
                f"{printable(', '.join(f'{key}={value}' for key, value in fields.items()))} does nothing: no"
                " objective of this training reads it",
                f"leave it out (after +language: '~data.{section}'), or add one that does:"
                f" {', '.join(known)}",
            )


def _hides(spec: type[ObjectiveSpec]) -> bool:
    return spec.hides_units


def extras(text: Text, roles: Mapping[str, Role]) -> dict[str, dict[str, Reference]]:
    """Inputs of these roles' objectives besides tokens (triples, attributes), by kind and text source."""
    described = partial(
        describe, attributes=text.attributes, genres=genres_of(roles), sources=len(text.corpora)
    )
    makers = {
        "triples": partial(extract, taggers=text.taggers, units=text.units),
        "attributes": described,
    }
    return {
        source: (source == "triples" and text.triples)
        or {name: makers[source](name, reference) for name, reference in text.corpora.items()}
        for source in sorted(sources(roles) & makers.keys())
    }


def genres_of(roles: Mapping[str, Role]) -> tuple[str, ...]:
    """The genres of the roles' controlled text; those of the rules if there is none."""
    specs = [spec for role in roles.values() for spec in role.objective.values()]
    return next((spec.genres for spec in specs if isinstance(spec, Control)), GENRES)
