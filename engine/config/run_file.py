"""run.json: everything that a gang is given. It needs no environment, database or configuration library.
Torch-free.
"""

import json
from typing import Literal

from pydantic import Field, field_validator, model_validator

from atelier.engine.config.base import Json, JsonObject, Spec
from atelier.engine.config.mixture import MixturePart, Stream, in_order, parts_of
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train

FILE_BYTES = 5_000_000_000  # of weights in one file of a model, as transformers writes them; above: shards
SCHEMA = 1
RESERVE, RESERVED = "reserve", bytes(16384)  # a file in a gang's scratch folder: room for its last message


class RunFile(Spec):
    schema_: int = Field(default=SCHEMA, alias="schema")
    task: str
    version: int
    config: JsonObject = Field(
        description="what the task asks of its ranks: each engine module has a spec of it"
    )
    inputs: dict[str, str] = Field(
        default={},
        description="role of the input -> URL of the artifact (its record.json is read and verified)",
    )
    outputs: dict[str, str] = Field(
        default={}, description="name of the output -> URL of the empty folder its files go to"
    )
    scratch: str = Field(description="a local folder of this gang alone")
    layout: Parallel = Parallel()
    gpu: str = Field(
        default="", description="device type of the pool's GPUs, which each rank checks; empty = not checked"
    )
    seed: int = 1
    ids: dict[str, str] = {}
    sources: dict[str, str] = Field(
        default={},
        description="file of the code -> sha256 of what it must hold, 16 digits; what a supervisor"
        " starts is refused when it holds anything else",
    )

    @field_validator("schema_")
    @classmethod
    def _is_known(cls, schema: int) -> int:
        if schema != SCHEMA:
            raise ValueError(
                f"schema {schema} is not {SCHEMA}, which this version reads; run the code that wrote it"
            )
        return schema

    def document(self) -> dict[str, Json]:
        """As it is stored: without what nobody has set."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def text(self) -> str:
        """The content of run.json."""
        return json.dumps(self.document(), indent=1)


class SegmentAddress(Spec):
    """A segment of a role's training that belongs to one trajectory: its checkpoints are those of the steps
    start < s <= end.
    """

    fingerprint: str
    url: str = Field(description="the trajectory's address: checkpoints/ and metrics/ lie under it")
    start: int
    end: int
    attempt: int = Field(
        default=1, description="numbers the metric segments; rises with every take of the trajectory's lease"
    )
    is_leased: bool = Field(default=True, description="the gang may write there")


class LessonMessages(Spec):
    """The messages of one lesson of a role: their name, and the digest of the code that computes them."""

    trajectory: str = Field(pattern=r"^[0-9a-f]{64}$")
    code: str = ""


class Member(Spec):
    """A role in a gang. `train` trains and is stored; `replay` trains, is not stored and must end with
    `digest`; `frozen` does not train; `elsewhere` is at another site, and teaches a role here or learns from
    one; or it has no part in the gang, in which a student of it has no steps to take.
    """

    role: Role
    mode: Literal["train", "replay", "frozen", "elsewhere"] = "train"
    segments: tuple[SegmentAddress, ...] = Field(
        default=(), description="in order; the last ends where the training ends"
    )
    init: str = Field(
        default="",
        description="key in `inputs` of the model to start from (for frozen: to be); empty = from the seed",
    )
    output: str = Field(default="", description="key in `outputs`; empty = nothing is published")
    code: str = Field(default="", description="digest of its code map: its checkpoints carry it")
    accept_code: bool = Field(default=False, description="go on from checkpoints of other code or arithmetic")
    digest: str = Field(
        default="", description="replay: the digest that the finished weights must have again"
    )
    trajectory: str = Field(
        default="",
        pattern=r"^([0-9a-f]{64})?$",
        description="elsewhere: the last trajectory of a role that learns from one here",
    )
    lessons: dict[str, LessonMessages] = Field(
        default={}, description="by lesson, its messages to students at other sites"
    )

    @property
    def code_elsewhere(self) -> str:
        """Digest of the code that has to have computed what other sites send of it; '' = any."""
        return "" if self.accept_code else self.code


class Training(Spec):
    """One gang's training of one or more roles on the same batches."""

    members: dict[str, Member]
    streams: tuple[Stream, ...]
    phases: tuple[int, ...] = Field(default=(), description="the first step of each phase after the first")
    train: Train

    @field_validator("streams")
    @classmethod
    def _by_name(cls, streams: tuple[Stream, ...]) -> tuple[Stream, ...]:
        return in_order(streams)

    @property
    def parts(self) -> tuple[MixturePart, ...]:
        """The parts of the mixture between which objectives distinguish, in the order of their numbers."""
        return parts_of(self.streams, [member.role for member in self.members.values()])

    @model_validator(mode="after")
    def _in_phases(self) -> "Training":
        if list(self.phases) != sorted(set(self.phases)) or min(self.phases, default=1) < 1:
            raise ValueError(f"phases: {self.phases} do not follow each other")
        if any(len(stream.later) != len(self.phases) for stream in self.streams):
            raise ValueError(f"phases: begin at {self.phases}, and not every stream has a weight in each")
        return self

    @model_validator(mode="after")
    def _judge(self) -> "Training":
        if self.train.keep_best and all(stream.kind == "examples" for stream in self.streams):
            raise ValueError(
                f"train.keep_best={self.train.keep_best}, but no stream has held-out text to judge by; give 0"
            )
        return self

    @property
    def end(self) -> int:
        """The step at which the last of its roles ends, or of those elsewhere that learn from one here."""
        ends = [member.segments[-1].end for member in self.members.values() if member.segments]
        return max(ends or (self.readers_end(name) for name in self.members), default=0)

    @property
    def here(self) -> dict[str, Member]:
        """The roles of this site."""
        return {name: member for name, member in self.members.items() if member.mode != "elsewhere"}

    def readers(self, name: str) -> dict[str, Role]:
        """The roles elsewhere that learn from a role here."""
        away = {key: each.role for key, each in self.members.items() if each.mode == "elsewhere"}
        return {key: role for key, role in away.items() if role.teacher == name}

    def readers_end(self, name: str) -> int:
        """The last step at which a role here has one elsewhere that learns from it; 0 = it has none."""
        steps = self.train.num_steps
        return max((role.taught(steps).stop for role in self.readers(name).values()), default=0)


class Trainings(Spec):
    """The `config` of a run file of atelier.engine.train: trainings that one gang runs one after another."""

    trainings: tuple[Training, ...] = Field(min_length=1)
    peak_tflops: float = Field(
        default=0.0,
        ge=0,
        description="dense peak of one rank, TFLOP/s, for the utilisation (mfu); 0 = not known",
    )
    file_bytes: int = Field(
        default=FILE_BYTES,
        ge=1,
        description="of weights in one file of a model that is published; above: shards",
    )
