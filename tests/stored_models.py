"""A store with only the record of a finished model, which is all that a configuration and a plan read."""

import json
from pathlib import Path
from typing import Any

from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.record import FileEntry, Record, identify
from atelier.infra.store.store import Store


def store_with(root: Path, spec: GPT, name: str = "guest") -> Store:
    """A store that has the model `name`, adopted, and its tokenizer."""
    store = Store(str(root))
    tokenizer = _kept(store, "tokenizer", "tokenizer", {}, vocab=spec.ids)
    summary = {"params": spec.num_params(), "text": "unknown"}
    model = _kept(store, "model", name, {"tokenizer": tokenizer.fingerprint}, **summary)
    place = Path(store.address("model", model.fingerprint)) / "payload-1" / "config.json"
    place.parent.mkdir()
    place.write_text(json.dumps({"model": spec.arguments()}))
    return store


def _kept(store: Store, kind: str, name: str, parents: dict[str, str], **summary: Any) -> Record:
    identity = {"name": name}
    fingerprint = identify(kind, 1, identity, parents)
    entry = FileEntry(path="payload-1/config.json", bytes=2, sha256="0" * 64)
    record = Record(
        kind=kind, name=name, fingerprint=fingerprint, version=1, identity=identity, parents=parents,
        files=(entry,) if kind == "model" else (), summary=summary,
    ).sealed()  # fmt: skip
    address = Path(store.address(kind, fingerprint))
    address.mkdir(parents=True, exist_ok=True)
    (address / "record.json").write_text(record.text())
    return record
