"""Look up a finished model as a starting point, by name, alias or fingerprint, with its model spec, tokens
and tokenizer.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import cast

from atelier.engine.config.conversions import OPTIMIZER
from atelier.engine.config.data import TEXT_ENDS
from atelier.engine.config.document import section_of, whole_of
from atelier.engine.config.error import AtelierError, ConfigError, DamageError
from atelier.engine.config.project_roots import HERE
from atelier.engine.config.record import FileEntry, Record
from atelier.engine.config.registry import ModelSpec, check_code, check_version, kinds, spec_class
from atelier.engine.config.role import Role
from atelier.engine.io.storage import join, read_object
from atelier.infra.code.code_map import model_kinds
from atelier.infra.dag import Reference
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import last_checkpoint, read_trajectory

OF_SHOTS = re.compile(r"(\.\d+)?(\.draw\d+)?$")  # end of a set's name: its shots and draw
ANY_VOCAB = 2  # the tokenizer is the same, so shapes are compared without its size

_store: ContextVar[Store] = ContextVar("store")


def looking_in(store: Store) -> None:
    """Set the store in which names from a configuration are looked up."""
    _store.set(store)


def store_in_use() -> Store:
    """The store in which names are looked up."""
    return _store.get()


def sets_of_exams(store: Store, word: str) -> list[str]:
    """Fingerprints of the evaluation sets on which a model, or a checkpoint of its last trajectory, was
    examined, one of each name.
    """
    model = store.resolve(word, "model")
    asked = {model.fingerprint, model.parents.get("trajectory", model.fingerprint)}
    exams = (each for each in store.records("exam") if not asked.isdisjoint(each.parents.values()))
    sets = {each.parents["set"]: "" for each in exams}
    found = [record for each in sets if (record := store.find("evaluation", each)) is not None]
    return list({OF_SHOTS.sub("", record.name): record.fingerprint for record in found}.values())


@dataclass(frozen=True)
class Existing:
    """A finished model; `text`: its tokens and their sequence length, None for a model that was
    adopted or trained at another site.
    """

    reference: Reference
    spec: ModelSpec
    tokenizer: Reference
    text: tuple[Reference, int] | None
    place: str

    @property
    def tokens(self) -> Reference:
        """Its tokens. Raises ConfigError for a model without `text`."""
        return self._known[0]

    @property
    def sequence(self) -> int:
        """Its sequence length. Raises ConfigError for a model without `text`."""
        return self._known[1]

    @property
    def sized(self) -> ModelSpec:
        """The spec with the vocabulary of its tokenizer."""
        record = _store.get().find(self.tokenizer.kind, self.tokenizer.fingerprint)
        return self.spec.resolved(whole_of(record.summary["vocab"]) if record else ANY_VOCAB)

    @property
    def bytes(self) -> int:
        """Bytes of its files."""
        record = _store.get().find(self.reference.kind, self.reference.fingerprint)
        return sum(entry.bytes for entry in record.files) if record else 0

    def check_states(self) -> None:
        """Raises ConfigError unless the last checkpoint of its training has optimiser states."""
        record = _store.get().find(self.reference.kind, self.reference.fingerprint)
        if record is not None:
            last_checkpoint(_store.get(), record, "convert.optimizer")

    @property
    def _known(self) -> tuple[Reference, int]:
        if self.text is None:
            name = self.reference.name
            raise ConfigError(
                self.place,
                f"{name} was adopted, or trained at another site: its training text is not known here",
                "give a model that was trained here",
            )
        return self.text


def existing_model(word: str, place: str) -> Existing:
    """The model called `word`. Raises ConfigError at `place` when there is none, or when this code computes
    another version of its kind; DamageError when its spec is unreadable.
    """
    return existing_in(_store.get(), word, place)


def existing_in(store: Store, word: str, place: str) -> Existing:
    """`existing_model` for a given store."""
    try:
        record = store.resolve(word, "model")
    except AtelierError as error:
        raise ConfigError(place, str(error)) from None
    spec = spec_of(record, store, place, word)
    tokens = record.parents.get("tokens.main", "")  # for a blend, the source with the scored held-out text
    earlier = record.parents.get("init") or record.parents.get("model")
    if earlier and (not tokens or "trajectory" not in record.parents):  # fine-tuned or converted
        parent = existing_in(store, earlier, place)
        found = replace(parent, reference=_reference(record, spec), spec=spec)
        if own := record.parents.get("tokenizer"):
            found = replace(found, tokenizer=_tokenizer(store, own))
        if not tokens or parent.text is None:
            return found
        text = Reference(kind="tokens", fingerprint=tokens, name="tokens", node="")
        return replace(found, text=(text, parent.sequence))
    text = None
    if tokens:
        with suppress(FileNotFoundError):  # another site trained it, and has sent the model alone
            sequence = whole_of(read_trajectory(store, record.parents["trajectory"]).identity["sequence"])
            text = Reference(kind="tokens", fingerprint=tokens, name="tokens", node=""), sequence
    tokenizer = _tokenizer(store, record.parents["tokenizer"])
    return Existing(
        reference=_reference(record, spec), spec=spec, tokenizer=tokenizer, text=text, place=place
    )


def _tokenizer(store: Store, fingerprint: str) -> Reference:
    """A finished tokenizer. Raises DamageError if its begin token is unreadable."""
    record, begin = store.find("tokenizer", fingerprint), None
    for entry in record.files if record is not None else ():
        if entry.path.rpartition("/")[2] == TEXT_ENDS:
            place = join(store.address("tokenizer", fingerprint), entry.path)
            begin = read_object(place, "how texts begin and end").get("begin")
    return Reference(
        kind="tokenizer", fingerprint=fingerprint, name="tokenizer", node="", is_begun=begin is not None
    )


def beginnings(roles: Mapping[str, Role], tokenizer: Reference, place: str = "roles") -> dict[str, Reference]:
    """The initial models of roles, by role. Raises ConfigError if the weights' shapes differ from the role's
    model, or the tokenizer differs.
    """
    found = {}
    for name, role in roles.items():
        if not role.init:
            continue
        prefix = f"{place}.{name}." if place else ""
        where = f"{prefix}init"
        group = f"model@{prefix}model" if prefix else "model"
        there = existing_model(role.init, where)
        model = there.reference.name
        if not _have_the_same_ids(there.tokenizer, tokenizer):
            raise ConfigError(
                where,
                f"the tokenizer of {model} is {there.tokenizer.fingerprint[:8]}, that of this run "
                f"{tokenizer.fingerprint[:8]}{_apart(there.tokenizer, tokenizer)}",
                f"tokenizer.model={model} takes its own; data.written.by={model} trains a student with any "
                "tokenizer on its text",
            )
        if there.spec.resolved(ANY_VOCAB).shapes() != role.model.resolved(ANY_VOCAB).shapes():
            raise ConfigError(
                where,
                f"the weights of {model} do not fit {prefix}model",
                f"{group}=auto takes its model",
            )
        found[name] = there.reference
    return found


def spec_of(record: Record, store: Store, where: str, word: str) -> ModelSpec:
    """The model spec of a record. Raises DamageError if its config.json has none; ConfigError at `where`,
    naming the model `word`, if this code computes another version of its kind.
    """
    address = store.address("model", record.fingerprint)
    entry = next((file for file in record.files if file.path.endswith("/config.json")), None)
    if entry is None:
        raise DamageError(f"{address}: a model without config.json")
    place = join(address, entry.path)
    document = read_object(place, "a model's configuration")
    model = dict(section_of(document.get("model", document)))
    made, code = model.pop("version", 1), model.pop("code", "")
    if code and model.get("kind") not in kinds("model"):
        raise ConfigError(
            where,
            f"{word} is of kind {model.get('kind')}, of a project that is not among the roots here",
            f"work in that project's folder, or set {HERE} to it",
        )
    try:
        found = spec_class("model", str(model["kind"])).model_validate({**model, "vocab": "auto"})
    except (ValueError, TypeError, KeyError) as error:
        raise DamageError(f"{place}: not a model's configuration ({str(error).splitlines()[0]})") from None
    spec = cast(ModelSpec, found)
    check_version(made, spec, where, word, record.provenance.get("commit", ""))
    check_code(code, spec, where, word)
    return spec


def check_ids(one: Existing, other: Existing, place: str) -> None:
    """Raises ConfigError at `place` if two models' tokenizers differ, with the first differing id."""
    if not _have_the_same_ids(one.tokenizer, other.tokenizer):
        raise ConfigError(
            place,
            f"the tokenizer of {other.reference.name} is {other.tokenizer.fingerprint[:8]}, that of "
            f"{one.reference.name} {one.tokenizer.fingerprint[:8]}{_apart(other.tokenizer, one.tokenizer)}",
            f"convert=vocabulary convert.tokenizer={one.reference.name} converts it",
        )


def adapter_of(base: Existing, word: str, place: str) -> Reference:
    """The low-rank adapter `word` of a model. Raises ConfigError at `place` if there is none, if it is a soft
    prompt, or if it was tuned on other weights (their digests are compared).
    """
    store = _store.get()
    try:
        record = store.resolve(word, "adapter")
    except AtelierError as error:
        raise ConfigError(place, str(error)) from None
    if "rank" not in record.summary:
        raise ConfigError(
            place,
            f"{record.name} is a soft prompt and cannot be merged into matrices",
            "give an adapter of trainable.kind=lora",
        )
    tuned = record.parents.get("base", "")
    if tuned != base.reference.fingerprint:
        mine, theirs = (_weight_digests(store, each) for each in (base.reference.fingerprint, tuned))
        if not mine or mine != theirs:
            known = store.find("model", tuned)
            raise ConfigError(
                place,
                f"{record.name} was tuned on {known.name if known else 'a model'} {tuned[:8]}, whose weights"
                f" differ from {base.reference.name} {base.reference.fingerprint[:8]}",
                f"init={tuned[:8]}" if known else "give the model that the adapter was tuned on",
            )
    return _reference(record)


def _weight_digests(store: Store, fingerprint: str) -> list[str]:
    record = store.find("model", fingerprint)
    files = [entry for entry in record.files if entry.path.endswith(".safetensors")] if record else []
    return [entry.sha256 for entry in files if not entry.path.endswith(OPTIMIZER)]


def _have_the_same_ids(one: Reference, other: Reference) -> bool:
    """Whether two tokenizers are equal, or have equal files, so that texts begin and end alike."""
    if one.fingerprint == other.fingerprint:
        return True
    mine, theirs = ([entry.sha256 for entry in _tokenizer_files(each)] for each in (one, other))
    return bool(mine) and mine == theirs


def _tokenizer_files(reference: Reference) -> list[FileEntry]:
    """The files of a tokenizer, tokenizer.json first; empty if it is not made yet."""
    record = _store.get().find(reference.kind, reference.fingerprint)
    files = record.files if record else ()
    return sorted(files, key=lambda file: not file.path.endswith("/tokenizer.json"))


def _apart(one: Reference, other: Reference) -> str:
    """Sizes of two tokenizers and the first id that differs; '' if one is not made yet."""
    files = [_tokenizer_files(each)[:1] for each in (one, other)]
    if not all(files):
        return ""
    addresses = [_store.get().address(each.kind, each.fingerprint) for each in (one, other)]
    mine, theirs = (
        _tokens_of(join(address, file.path)) for address, [file] in zip(addresses, files, strict=True)
    )
    first = next((i for i in range(max(mine | theirs) + 1) if mine.get(i) != theirs.get(i)), None)
    sizes = f" ({len(mine)} and {len(theirs)} tokens"
    if first is None:
        return sizes + ", with equal names; their texts begin or end differently)"
    return sizes + f"; id {first} is {mine.get(first)!r} and {theirs.get(first)!r})"


def _tokens_of(place: str) -> dict[int, str]:
    """id -> token, of a tokenizer.json."""
    document = read_object(place, "a tokenizer")
    vocab = section_of(document.get("model")).get("vocab")
    found = {number: token for token, number in section_of(vocab).items() if isinstance(number, int)}
    if isinstance(vocab, list):  # unigrams: pairs of token and score
        found = {number: str(pair[0]) for number, pair in enumerate(vocab) if isinstance(pair, list) and pair}
    added = document.get("added_tokens")
    for each in map(section_of, added if isinstance(added, list) else []):
        number = each.get("id")
        if isinstance(number, int):
            found[number] = str(each.get("content"))
    return found


def _reference(record: Record, spec: ModelSpec | None = None) -> Reference:
    kinds = model_kinds(spec) if spec is not None else ()
    return Reference(kind=record.kind, fingerprint=record.fingerprint, name=record.name, node="", kinds=kinds)
