"""What a configuration takes from finished models: `model=auto` is the model of `init`, `tokenizer.model` has
a known vocabulary; and a check that a model that goes on computes as it did.
"""

from collections.abc import Iterator, MutableMapping
from typing import cast

from atelier.engine.config.base import Json, Spec
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError
from atelier.engine.config.families import difference
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.role import Role
from atelier.infra.store.existing_model import ANY_VOCAB, existing_in
from atelier.infra.store.store import Store, default_root

AUTO = "auto"


def filled(document: dict[str, Json]) -> set[str]:
    """Fill in, in place, what finished models say; the places of models that were. Raises ConfigError for
    `auto` without an `init`, and for an unknown model.
    """
    found: set[str] = set()
    for place, section in _sections(document):
        model = section_of(section.get("model"))
        if model.get("kind") != AUTO:
            continue
        word = str(section.get("init") or "")
        if not word:
            raise ConfigError(
                f"{place}model",
                "auto is the model of `init`, and there is none",
                f"{place}init=<model>, or a model",
            )
        known = existing_in(Store(default_root()), word, f"{place}init").spec
        changes = {key: value for key, value in model.items() if key != "kind"}
        section["model"] = {**known.model_dump(mode="json"), **changes}
        found.add(place)
    tokenizer = section_of(document.get("tokenizer"))
    if word := str(tokenizer.get("model") or ""):
        store = Store(default_root())
        record = store.find(*_tokenizer(store, word))
        if record is not None:
            document["tokenizer"] = {**tokenizer, "vocab": record.summary["vocab"], "specials": []}
    return found


def _tokenizer(store: Store, word: str) -> tuple[str, str]:
    reference = existing_in(store, word, "tokenizer.model").tokenizer
    return reference.kind, reference.fingerprint


def _sections(document: MutableMapping[str, Json]) -> Iterator[tuple[str, dict[str, Json]]]:
    """What may have a model and an init: the whole, and each role, with the beginning of its keys' names."""
    yield "", cast(dict[str, Json], document)
    for name, role in section_of(document.get("roles")).items():
        if isinstance(role, dict):
            yield f"roles.{name}.", role


def check_beginnings(arguments: Spec, taken: set[str], overrides: list[str]) -> None:
    """Raises ConfigError for a role whose model has the weights of its `init` but computes otherwise, and
    was not taken from there; and for an optimiser of one that is finished, in one of the overrides.
    """
    roles: dict[str, Role] = getattr(arguments, "roles", None) or {}
    for name, role in roles.items():
        place = f"roles.{name}."
        for text in [] if role.moves else overrides:
            key = text.lstrip("+~").partition("=")[0]
            if key.startswith((f"{place}optim", f"optim@{place}")):
                raise ConfigError(key, f"does nothing: {name} is a finished model", "leave it out")
        if not role.init or (place in taken and role.moves):
            continue
        there = existing_in(Store(default_root()), role.init, f"{place}init").spec.resolved(ANY_VOCAB)
        here = role.model.resolved(ANY_VOCAB)
        if not isinstance(there, GPT) or not isinstance(here, GPT) or there.shapes() != here.shapes():
            continue
        if said := difference(there, here):
            raise ConfigError(
                f"{place}model",
                f"computes otherwise than {role.init}, which has {said}",
                f"model@{place}model=auto takes its model; what trains may be changed beside that",
            )
