"""A finished model as a starting point: found by name, alias or fingerprint, with its network, tokens and
tokenizer.
"""

import json
from contextvars import ContextVar
from dataclasses import dataclass

from engine.spec.error import AtelierError, ConfigError
from engine.spec.kinds import ModelSpec
from engine.spec.record import Record
from engine.spec.registry import spec_class
from engine.storage import join, read_bytes
from infra.dag import Reference
from infra.store import Store
from infra.trajectory import read_birth

_store: ContextVar[Store] = ContextVar("store")


def looking_in(store: Store) -> None:
    """The store that names in a configuration are looked up in."""
    _store.set(store)


@dataclass(frozen=True)
class Existing:
    reference: Reference
    spec: ModelSpec
    tokens: Reference
    tokenizer: Reference
    sequence: int


def existing_model(word: str, place: str) -> Existing:
    """The model called `word`; a ConfigError at `place` when there is none."""
    store = _store.get()
    try:
        record = store.resolve(word, "model")
    except AtelierError as error:
        raise ConfigError(place, str(error)) from None
    entry = next(file for file in record.files if file.path.endswith("/config.json"))
    document = json.loads(read_bytes(join(store.address("model", record.fingerprint), entry.path)))
    model = document.get("model", document)
    spec = spec_class("model", model["kind"]).model_validate(
        model | {"vocab": "auto"}
    )  # as a configuration says it
    tokens = record.parents.get("tokens.main", "")  # of a blend the source whose held-out text is scored
    if not tokens and "init" in record.parents:  # a fine-tuned model: its text is its parent's
        parent = existing_model(record.parents["init"], place)
        return Existing(
            reference=_reference(record),
            spec=spec,
            tokens=parent.tokens,
            tokenizer=parent.tokenizer,
            sequence=parent.sequence,
        )
    return Existing(
        reference=_reference(record),
        spec=spec,
        tokens=Reference(kind="tokens", fingerprint=tokens, name="tokens", node=""),
        tokenizer=Reference(
            kind="tokenizer", fingerprint=record.parents["tokenizer"], name="tokenizer", node=""
        ),
        sequence=int(read_birth(store, record.parents["trajectory"]).identity["sequence"]),
    )


def _reference(record: Record) -> Reference:
    return Reference(kind=record.kind, fingerprint=record.fingerprint, name=record.name, node="")
