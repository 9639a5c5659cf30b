"""run.json: the complete input of a gang. Reading it needs no environment, database or configuration library.
Torch-free.
"""

import json
from typing import Literal

from pydantic import Field, field_validator, model_validator

from atelier.engine.config.base import Json, JsonObject, Spec
from atelier.engine.config.data_plan import DataPlan
from atelier.engine.config.mixture import EXAMPLES, Assignment, MixturePart, Stream, in_order, parts_of
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.project_roots import other_roots
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train

FILE_BYTES = 5_000_000_000  # largest model file, as in transformers; larger models are sharded
SCHEMA = 1
RESERVE, RESERVED = "reserve", bytes(16384)  # a scratch file that reserves space for the last message


class RootPlace(Spec):
    """A project root besides Atelier, on the machine of the gang."""

    name: str
    folder: str


def root_places() -> tuple[RootPlace, ...]:
    """The roots of this process besides Atelier."""
    return tuple(RootPlace(name=root.name, folder=str(root.folder)) for root in other_roots())


class RunFile(Spec):
    schema_: int = Field(default=SCHEMA, alias="schema")
    task: str
    version: int
    config: JsonObject = Field(description="the task's configuration; each engine module has a spec of it")
    inputs: dict[str, str] = Field(
        default={},
        description="URL of each input artifact by role (its record.json is verified)",
    )
    outputs: dict[str, str] = Field(
        default={}, description="URL of an empty folder for each output's files, by name"
    )
    scratch: str = Field(description="a local folder for this gang alone")
    layout: Parallel = Parallel()
    gpu: str = Field(default="", description="device type that each rank checks; empty = no check")
    seed: int = 1
    ids: dict[str, str] = {}
    sources: dict[str, str] = Field(
        default={},
        description="source file -> sha256 (16 digits); a supervisor that finds other code in a file"
        " refuses to start",
    )

    roots: tuple[RootPlace, ...] = Field(
        default=(), description="the other project roots, in order: where the kinds in `config` may be"
    )

    @field_validator("schema_")
    @classmethod
    def _is_known(cls, schema: int) -> int:
        if schema != SCHEMA:
            raise ValueError(
                f"schema {schema} is not {SCHEMA}, the one of this version; use the code that wrote it"
            )
        return schema

    def document(self) -> dict[str, Json]:
        """As stored: without unset fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def text(self) -> str:
        """The content of run.json."""
        return json.dumps(self.document(), indent=1)


class SegmentAddress(Spec):
    """The part of a role's training in one trajectory, with checkpoints at steps start < s <= end."""

    fingerprint: str
    url: str = Field(description="the trajectory's folder with checkpoints/ and metrics/")
    start: int
    end: int
    attempt: int = Field(
        default=1, description="number of the lease taken on the trajectory; part of metric file names"
    )
    is_leased: bool = Field(default=True, description="the gang may write there")


class LessonMessages(Spec):
    """Messages of one lesson of a role: their name, and the digest of the code that computes them."""

    trajectory: str = Field(pattern=r"^[0-9a-f]{64}$")
    code: str = ""


class Member(Spec):
    """A role in a gang. `train`: trained and stored. `replay`: trained again, not stored, must end with
    `digest`. `frozen`: not trained. `elsewhere`: at another site, as teacher or student of a role here; or
    without part in the gang because its student takes no steps here.
    """

    role: Role
    mode: Literal["train", "replay", "frozen", "elsewhere"] = "train"
    segments: tuple[SegmentAddress, ...] = Field(
        default=(), description="in order; the last ends with the training"
    )
    init: str = Field(
        default="",
        description="key in `inputs` of the model to start from (frozen: to use); empty = random",
    )
    output: str = Field(default="", description="key in `outputs`; empty = nothing is published")
    code: str = Field(default="", description="digest of its code map, stored in its checkpoints")
    accept_code: bool = Field(default=False, description="resume checkpoints of other code or arithmetic")
    digest: str = Field(default="", description="replay: the expected digest of the finished weights")
    trajectory: str = Field(
        default="",
        pattern=r"^([0-9a-f]{64})?$",
        description="elsewhere: the last trajectory of a student of a role here",
    )
    lessons: dict[str, LessonMessages] = Field(
        default={}, description="messages to students at other sites, by lesson"
    )

    @property
    def code_elsewhere(self) -> str:
        """Digest of the code that must have computed other sites' messages for it; '' = any."""
        return "" if self.accept_code else self.code


class Training(Spec):
    """One gang's training of one or more roles on the same batches."""

    members: dict[str, Member]
    streams: tuple[Stream, ...]
    phases: tuple[int, ...] = Field(default=(), description="first step of each phase after the first")
    assignment: Assignment = Field(default="blocks", description="how samples are assigned to streams")
    train: Train
    until: int = Field(default=0, description="step where the gang stops for another layout; 0 = none")

    @field_validator("streams")
    @classmethod
    def _by_name(cls, streams: tuple[Stream, ...]) -> tuple[Stream, ...]:
        return in_order(streams)

    @property
    def data_plan(self) -> DataPlan:
        """What it reads, without its models."""
        return DataPlan.of(self.train, self.streams, self.phases, self.assignment)

    @property
    def reads_labels(self) -> bool:
        """Whether its rows are labelled examples; then the ranks pad a batch that they do not divide."""
        return bool(self.streams) and all(stream.kind == EXAMPLES for stream in self.streams)

    @property
    def parts(self) -> tuple[MixturePart, ...]:
        """The mixture parts that objectives tell apart, in order of their numbers."""
        return parts_of(self.streams, [member.role for member in self.members.values()])

    @model_validator(mode="after")
    def _in_phases(self) -> "Training":
        if list(self.phases) != sorted(set(self.phases)) or min(self.phases, default=1) < 1:
            raise ValueError(f"phases: {self.phases} are not in ascending order")
        if any(len(stream.later) != len(self.phases) for stream in self.streams):
            raise ValueError(f"phases: begin at {self.phases}, but a stream lacks a weight for one of them")
        return self

    @model_validator(mode="after")
    def _judge(self) -> "Training":
        if self.train.keep_best and self.reads_labels:
            raise ValueError(
                f"train.keep_best={self.train.keep_best}, but no stream has held-out text; give 0"
            )
        return self

    @property
    def end(self) -> int:
        """The step at which the last of its roles ends, students at other sites included."""
        ends = [member.segments[-1].end for member in self.members.values() if member.segments]
        return max(ends or (self.readers_end(name) for name in self.members), default=0)

    @property
    def here(self) -> dict[str, Member]:
        """The roles of this site."""
        return {name: member for name, member in self.members.items() if member.mode != "elsewhere"}

    def readers(self, name: str) -> dict[str, Role]:
        """The roles at other sites that learn from a role here."""
        away = {key: each.role for key, each in self.members.items() if each.mode == "elsewhere"}
        return {key: role for key, role in away.items() if role.teacher == name}

    def readers_end(self, name: str) -> int:
        """The last step at which a role at another site learns from this one; 0 = none does."""
        steps = self.train.num_steps
        return max((role.taught(steps).stop for role in self.readers(name).values()), default=0)


class Trainings(Spec):
    """The `config` of a run file of atelier.engine.train: trainings that one gang runs in order."""

    trainings: tuple[Training, ...] = Field(min_length=1)
    peak_tflops: float = Field(
        default=0.0,
        ge=0,
        description="dense peak of one rank, TFLOP/s, for the utilisation (mfu); 0 = unknown",
    )
    file_bytes: int = Field(
        default=FILE_BYTES,
        ge=1,
        description="largest file of a published model, bytes; larger models are sharded",
    )
