"""Fill in values from finished models: `model=auto` is the model of `init`, `tokenizer.model` fixes the
vocabulary. Check that a continued model computes as it did.
"""

from collections.abc import Iterator, MutableMapping
from typing import cast

from atelier.engine.config.base import Json, Spec, parse
from atelier.engine.config.data import Tokenizer
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError
from atelier.engine.config.foreign.families import Said, difference
from atelier.engine.config.role import Role
from atelier.infra.store.existing_model import ANY_VOCAB, existing_in
from atelier.infra.store.store import Store, default_root

AUTO = "auto"
LEAST_VOCAB = 300  # of a learned tokenizer; the plan uses it


def filled(document: dict[str, Json]) -> set[str]:
    """Fill in values of finished models, in place, and replace their names by fingerprints: a name may mean
    another model when the flow runs. Returns the places of models that were filled in. Raises ConfigError for
    `auto` without an `init`, and for an unknown model.
    """
    found: set[str] = set()
    for place, section in _sections(document):
        model, word = section_of(section.get("model")), str(section.get("init") or "")
        if model and word:
            section["init"] = fingerprint_of(word, f"{place}init")
        if model.get("kind") != AUTO:
            continue
        if not word:
            raise ConfigError(
                f"{place}model",
                "auto is the model of `init`, but init is empty",
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
        taken: dict[str, Json] = {"model": fingerprint_of(word, "tokenizer.model"), "specials": []}
        if record is not None and record.summary["vocab"] >= LEAST_VOCAB:
            taken["vocab"] = record.summary["vocab"]
        document["tokenizer"] = {**tokenizer, **taken}
    data = section_of(document.get("data"))
    written = section_of(data.get("written"))
    if word := str(written.get("by") or ""):
        by = fingerprint_of(word, "data.written.by")
        document["data"] = {**data, "written": {**written, "by": by}}
    return found


def fingerprint_of(word: str, place: str) -> str:
    """The fingerprint of the model called `word`. Raises ConfigError at `place` when there is none."""
    return existing_in(Store(default_root()), word, place).reference.fingerprint


def _tokenizer(store: Store, word: str) -> tuple[str, str]:
    reference = existing_in(store, word, "tokenizer.model").tokenizer
    return reference.kind, reference.fingerprint


def _sections(document: MutableMapping[str, Json]) -> Iterator[tuple[str, dict[str, Json]]]:
    """The sections that may have a model and an init: the whole, and each role, with key prefixes."""
    yield "", cast(dict[str, Json], document)
    for name, role in section_of(document.get("roles")).items():
        if isinstance(role, dict):
            yield f"roles.{name}.", role


def _beginning(arguments: Spec) -> dict[str, Role]:
    """The roles of a flow, by name; '' for a single one."""
    roles: dict[str, Role] = dict(getattr(arguments, "roles", None) or {})
    fields = ("model", "objective", "optim", "init")
    if not roles and all(hasattr(arguments, name) for name in fields):
        roles[""] = parse(Role, {name: getattr(arguments, name) for name in fields}, "")
    return roles


def check_beginnings(arguments: Spec, taken: set[str], overrides: list[str]) -> None:
    """Raises ConfigError for a role that has the weights of its `init` but a model that computes otherwise
    (if the model was not taken from there), and for an override of a finished role's optimiser.
    """
    keys = [text.lstrip("+~").partition("=")[0] for text in overrides]
    tokenizer = getattr(arguments, "tokenizer", None)
    if isinstance(tokenizer, Tokenizer) and tokenizer.model:
        for key in keys:
            if key in ("tokenizer.vocab", "tokenizer.specials"):
                raise ConfigError(key, "does nothing beside tokenizer.model", "leave it out")
    for name, role in _beginning(arguments).items():
        place = f"roles.{name}." if name else ""
        for key in [] if role.moves else keys:
            idle = (f"{place}optim", f"optim@{place}", f"{place}trainable.")
            if key.startswith(idle) and key != f"{place}trainable.kind":
                raise ConfigError(key, f"does nothing: {name} is a finished model", "leave it out")
        if not role.init or (place in taken and role.moves):
            continue
        there = existing_in(Store(default_root()), role.init, f"{place}init")
        before, here = there.spec.resolved(ANY_VOCAB), role.model.resolved(ANY_VOCAB)
        if not isinstance(before, Said) or not isinstance(here, Said) or before.shapes() != here.shapes():
            continue
        group = f"model@{place}model" if place else "model"
        if said := difference(before, here):
            raise ConfigError(
                f"{place}model",
                f"differs from {there.reference.name}, which has {said}",
                f"{group}=auto takes its model; training settings may still be changed",
            )
