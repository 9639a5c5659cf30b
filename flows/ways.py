"""The trainings of `nebula`, in the run's own way and in the ways of its controls: all at one site, or with
contributions that no codec compresses.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from atelier.engine.config.base import Spec, parse
from atelier.engine.config.detect import DETECTOR, GENERATOR, Detect
from atelier.engine.config.error import ConfigError
from atelier.engine.config.extensions import kinds_of
from atelier.engine.config.mixture import Phase, Sharing
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Role
from atelier.engine.config.sections import among, at_one_site, without_codec
from atelier.engine.config.train import Train
from atelier.engine.config.tune import NO_CODEC, ONE_SITE, Tune
from atelier.flows.corpus import Text, extras
from atelier.infra.dag import Reference
from atelier.tasks.render import render
from atelier.tasks.train import train as train_roles

PRETRAINED, SOURCE = "pretrained", "main"


class PretrainingInputs(TypedDict):
    """The inputs of a pretraining."""

    tokens: dict[str, Reference]
    weights: dict[str, float]
    phases: dict[str, Phase]
    sharing: Sharing
    tokenizer: Reference
    extras: dict[str, dict[str, Reference]]


class Translations(TypedDict):
    """The inputs of a training on translations, and the place of its settings."""

    tokens: dict[str, Reference]
    weights: dict[str, float]
    tokenizer: Reference
    extras: dict[str, dict[str, Reference]]
    prefix: str
    section: str


@dataclass(frozen=True)
class Way:
    """The settings of all three trainings. `name`: of a control, '' = the run's own way."""

    name: str
    train: Train
    detect: Detect
    tune: Tune

    def of(self, model: str) -> str:
        """The model's name in this way, such as student-one-site."""
        return f"{model}-{self.name}" if self.name else model

    def task(self, name: str) -> str:
        """The task's name in this way, such as train.one-site."""
        return f"{name}.{self.name}" if self.name else name

    def labels(self, roles: Mapping[str, Role]) -> dict[str, str]:
        return {role: self.of(role) for role in roles}


def ways_of(train: Train, detect: Detect, tune: Tune) -> list[Way]:
    """The run's own way, then those of `tune.controls` that change other settings than the student's. Raises
    ConfigError for a control that changes nothing here.
    """
    made = {
        ONE_SITE: lambda: Way(ONE_SITE, at_one_site(train), at_one_site(detect), at_one_site(tune)),
        NO_CODEC: lambda: Way(NO_CODEC, without_codec(train), detect, tune),
    }
    found = [Way("", train, detect, tune)]
    for name in (name for name in made if name in tune.controls):
        way = made[name]()
        if (way.train, way.detect, way.tune) == (train, detect, tune):
            raise ConfigError(
                "tune.controls",
                f"{name} is this run itself: "
                + ("it has one site" if name == ONE_SITE else "no codec compresses its contributions"),
                f"leave {name} out" + ("; sites=[a,b] is for two sites" if name == ONE_SITE else ""),
            )
        found.append(way)
    return found


def pretrain(way: Way, role: Role, text: Text, parallel: Parallel) -> Reference:
    """The model of the first training."""
    return train_roles(
        {"model": role}, settings=way.train, parallel=parallel, labels={"model": way.of(PRETRAINED)},
        name=way.task("train"), prefix="", **read(text, {"model": role}),
    )["model"]  # fmt: skip


def pretrain_pair(
    way: Way, pair: dict[str, Role], pretrained: Reference, text: Text, parallel: Parallel
) -> dict[str, Reference]:
    """The generator and the detector. Raises ConfigError if the detector is not made here."""
    found = train_roles(
        pair, settings=like(way.train, "detect", way.detect), parallel=parallel,
        inits={GENERATOR: pretrained}, labels=way.labels(pair), name=way.task("detect"), prefix="detect.",
        section="detect", **read(text, pair),
    )  # fmt: skip
    if DETECTOR not in found:
        raise ConfigError(
            "detect.link",
            "puts the detector at another site, but the next training begins from it",
            "sites=[a,b] plans all sites together",
        )
    return found


def pairs_for(way: Way, pretrained: Reference) -> Reference:
    """Sentences and their translations, as tokens for the models of this way."""
    keys = {"place": "tune.chats", "length": "tune.sequence", "node": way.task("render")}
    return render(way.tune.chats, pretrained, way.tune.sequence, pairs=True, **keys)


def translations(chats: Reference, text: Text) -> Translations:
    return {
        "tokens": {},
        "weights": {SOURCE: 1.0},
        "tokenizer": text.tokenizer,
        "extras": {"chats": {SOURCE: chats}},
        "prefix": "tune.",
        "section": "tune",
    }


def translate(
    way: Way, roles: dict[str, Role], begun: Mapping[str, Reference], given: Translations, parallel: Parallel
) -> dict[str, Reference]:
    """The teacher and its students after the training on translations, which goes on from `begun`."""
    return train_roles(
        roles, settings=like(way.train, "tune", among(way.tune, roles), sequence=way.tune.sequence),
        parallel=parallel, inits=begun, labels=way.labels(roles), name=way.task("tune"), **given,
    )  # fmt: skip


def read(text: Text, roles: Mapping[str, Role]) -> PretrainingInputs:
    """The inputs of a pretraining of these roles."""
    return {
        "tokens": text.tokens,
        "weights": text.weights,
        "phases": text.phases,
        "sharing": text.sharing,
        "tokenizer": text.tokenizer,
        "extras": extras(text, roles),
    }


def like(train: Train, place: str, section: Spec, **other: object) -> Train:
    """The settings of the first training with a section's own length and link. Raises ConfigError for a link
    that does not fit. `place`: the section's name; `other`: what else differs.
    """
    own = {"steps": getattr(section, "steps", 0), "tokens": 0, "micro_batch": "auto", **other}
    keys = kinds_of(f"config/{place}").keys() & kinds_of("config/train").keys()
    links = {key: getattr(section, key) for key in keys}
    return parse(Train, {**train.model_dump(), **own, **links}, place)
