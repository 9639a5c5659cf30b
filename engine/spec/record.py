"""record.json: what makes an artifact exist. Written last; carries the digest of every file and of itself.
Torch-free.
"""

import json
from typing import Any

from pydantic import Field

from engine.spec.base import Spec, fingerprint
from engine.spec.error import DamageError

SCHEMA = 1
DATA_KINDS = ("corpus", "tokenizer", "tokens", "labels", "triples", "imitations", "attributes")
KINDS = (*DATA_KINDS, "trajectory", "model", "scores", "report", "registration")


class FileEntry(Spec):
    path: str = Field(description="relative to the artifact, never outside it")
    bytes: int = Field(ge=0)
    sha256: str

    def model_post_init(self, context: Any) -> None:
        parts = self.path.split("/")
        if self.path.startswith("/") or ".." in parts or "" in parts or "\\" in self.path:
            raise ValueError(f"path {self.path!r} leaves its artifact")


class Record(Spec):
    schema_: int = Field(default=SCHEMA, alias="schema")
    kind: str
    name: str = Field(description="what people call it; not identity")
    fingerprint: str
    version: int
    identity: dict[str, Any]
    parents: dict[str, str] = Field(description="role of the parent -> its fingerprint")
    files: tuple[FileEntry, ...] = ()
    summary: dict[str, Any] = {}
    provenance: dict[str, Any] = {}
    digest: str = ""

    def dump(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    def sealed(self) -> "Record":
        """The same record carrying its own digest: sha256 of the canonical JSON without it."""
        body = self.dump() | {"digest": ""}
        return self.model_copy(update={"digest": fingerprint(body)})

    def text(self) -> str:
        return json.dumps(self.dump(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    @staticmethod
    def read(text: str | bytes, place: str) -> "Record":
        """Parse and check a record; a flipped bit or a foreign file is a DamageError naming `place`."""
        try:
            record = Record.model_validate(json.loads(text))
        except ValueError as error:
            raise DamageError(f"{place}: not a record ({str(error).splitlines()[0]})") from None
        if record.sealed().digest != record.digest:
            raise DamageError(f"{place}: the record's digest does not match its content")
        return record


def identify(kind: str, version: int, identity: dict[str, Any], parents: dict[str, str]) -> str:
    """The fingerprint of an artifact: hash of kind, task version, identity and the parents' fingerprints."""
    return fingerprint({"kind": kind, "version": version, "identity": identity, "parents": parents})
