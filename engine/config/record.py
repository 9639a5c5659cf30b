"""record.json of an artifact, written last: an artifact exists once its record does. It holds the digest of
every file and of itself. Torch-free.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict, cast

from pydantic import Field

from atelier.engine.config.base import AS_IT_IS, Json, JsonObject, Spec, fingerprint
from atelier.engine.config.document import check_as, parse_object
from atelier.engine.config.error import DamageError

SCHEMA = 1
DATA_KINDS = ("corpus", "tokenizer", "tokens", "labels", "triples", "imitations", "attributes", "chats")
CURATED = ("documents", "verdicts", "copies", "overlaps", "classifier")  # parts of a curation
EXAMS = ("evaluation", "exam", "word_index", "audit")
KINDS = (*DATA_KINDS, *CURATED, *EXAMS, "trajectory", "model", "adapter", "scores", "report", "registration")


UNFIT = re.compile(r"[\\\x00-\x1f\x7f]")  # characters not allowed in an artifact's paths
KIND = re.compile(r"[a-z][a-z0-9_]{0,39}")
FINGERPRINT = re.compile(r"[0-9a-f]{1,64}")
LATEST = 1e11  # seconds since 1970 (year 5138); later times count as damage
NUMBER, WHOLE, TEXT = (int, float), (int,), (str,)
# keys that are read from a summary or provenance, with their types; other keys may hold anything
SUMMARY_WORDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(
        ("step", "tokens", "params", "vocab", "documents", "started_at", "test", "bytes", "rank"), WHOLE
    ),
    **dict.fromkeys(("loss", "eval_loss", "bits_per_byte", "accuracy", "perplexity"), NUMBER),
    **dict.fromkeys(("role", "teacher", "computed", "family"), TEXT),
}
PROVENANCE_WORDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("started", "ended", "device_seconds"), NUMBER),
    **dict.fromkeys(("run", "command", "commit", "engine", "flow", "task"), TEXT),
}


class Summary(TypedDict):
    """Keys that are read from summaries. A record has those of its kind, and possibly others."""

    step: int
    tokens: int
    params: int
    vocab: int
    documents: int
    bytes: int
    empty: int
    waterfall: list[dict[str, Any]]
    started_at: int
    test: int
    rank: int
    loss: float
    eval_loss: float
    bits_per_byte: float
    accuracy: float
    role: str
    teacher: str
    computed: str
    family: str
    held_out: str
    options: list[str]
    teacher_steps: list[int]


class Provenance(TypedDict, total=False):
    """Keys that are read from a provenance; it may hold others."""

    started: float  # seconds since 1970
    ended: float
    device_seconds: float
    run: str
    command: str
    commit: str
    engine: str
    flow: str
    task: str
    code: dict[str, str]  # file -> digest


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # sha256


class FileEntry(Spec):
    path: str = Field(description="path inside the artifact")
    bytes: int = Field(ge=0)
    sha256: str

    def model_post_init(self, context: None) -> None:
        parts = self.path.split("/")
        if self.path.startswith("/") or {"..", ".", ""} & {*parts} or UNFIT.search(self.path):
            raise ValueError(f"path {self.path!r} leaves its artifact")


class Record(Spec):
    schema_: int = Field(default=SCHEMA, alias="schema")
    kind: str
    name: str = Field(description="name for people; not part of identity")
    fingerprint: str
    version: int
    identity: JsonObject
    parents: dict[str, str] = Field(description="role of the parent -> its fingerprint")
    files: tuple[FileEntry, ...] = ()
    summary: Annotated[Summary, AS_IT_IS] = cast(Summary, {})
    provenance: Annotated[Provenance, AS_IT_IS] = {}
    digest: str = ""

    def dump(self) -> dict[str, Json]:
        return self.model_dump(mode="json", by_alias=True)

    def sealed(self) -> "Record":
        """The same record with its own digest: sha256 of the canonical JSON without it."""
        body = self.dump() | {"digest": ""}
        return self.model_copy(update={"digest": fingerprint(body)})

    def text(self) -> str:
        return json.dumps(self.dump(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    @staticmethod
    def read(text: str | bytes, place: str) -> "Record":
        """Parse and check a record. Raises DamageError naming `place` if it is damaged or not a record."""
        record = check_as(Record, parse_object(text, place, "a record"), place, "a record")
        if record.sealed().digest != record.digest:
            raise DamageError(f"{place}: the record's digest does not match its content", place=place)
        if problem := _problem(record):
            raise DamageError(f"{place}: not a record ({problem})", place=place)
        return record


def _problem(record: Record) -> str:
    """Content that would break a reader although the digest is right; '' if there is none."""
    prints = {"fingerprint": record.fingerprint} | {f"parents.{k}": v for k, v in record.parents.items()}
    wrong = [key for key, found in prints.items() if not FINGERPRINT.fullmatch(found)]
    if wrong or not KIND.fullmatch(record.kind):
        return f"{wrong[0]} is not a fingerprint" if wrong else "kind is not a word"
    for part, words in (("summary", SUMMARY_WORDS), ("provenance", PROVENANCE_WORDS)):
        found = getattr(record, part)
        for word, types in words.items():
            value = found.get(word)
            if value is not None and (isinstance(value, bool) or not isinstance(value, types)):
                return f"{part}.{word} is not a {types[-1].__name__}"
    times = (record.provenance.get("started") or 0, record.provenance.get("ended") or 0)
    if not all(0 <= time <= LATEST for time in times):
        return "provenance has a time out of range"
    made_of = identify(record.kind, record.version, record.identity, record.parents)
    if made_of != record.fingerprint:  # otherwise records could be each other's parents
        return "its fingerprint does not follow from identity and parents"
    steps = record.summary.get("teacher_steps")
    if steps is not None and not (isinstance(steps, list) and len(steps) in (0, 2) and _whole(*steps)):
        return "summary.teacher_steps is not two steps"
    options = record.summary.get("options", [])
    if not (isinstance(options, list) and all(isinstance(option, str) for option in options)):
        return "summary.options is not a list of text"
    if not _whole(record.identity.get("step", 0), record.identity.get("trunk_step", 0)):
        return "identity has a step that is not a whole number"
    return ""


def _whole(*values: Json) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def identify(kind: str, version: int, identity: Mapping[str, Json], parents: dict[str, str]) -> str:
    """The fingerprint of an artifact: hash of kind, task version, identity and the parents' fingerprints."""
    return fingerprint({"kind": kind, "version": version, "identity": identity, "parents": parents})
