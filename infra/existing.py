"""A finished model as a starting point: found by name, alias or fingerprint, with its network, tokens and
tokenizer.
"""

from contextvars import ContextVar
from dataclasses import dataclass

from engine.spec.error import AtelierError, ConfigError, DamageError
from engine.spec.kinds import ModelSpec
from engine.spec.record import Record
from engine.spec.registry import spec_class
from engine.storage import join, read_object
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
    spec = _spec_of(record, store)
    tokens = next((fp for role, fp in record.parents.items() if role.startswith("tokens.")), "")
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


def _spec_of(record: Record, store: Store) -> ModelSpec:
    """The network as a configuration says it; a DamageError when its config.json describes none."""
    address = store.address("model", record.fingerprint)
    entry = next((file for file in record.files if file.path.endswith("/config.json")), None)
    if entry is None:
        raise DamageError(f"{address}: a model without config.json")
    place = join(address, entry.path)
    document = read_object(place, "a model's configuration")
    model = document.get("model", document)
    try:
        return spec_class("model", str(model["kind"])).model_validate(model | {"vocab": "auto"})
    except (ValueError, TypeError, KeyError) as error:
        raise DamageError(f"{place}: not a model's configuration ({str(error).splitlines()[0]})") from None


def _reference(record: Record) -> Reference:
    return Reference(kind=record.kind, fingerprint=record.fingerprint, name=record.name, node="")
