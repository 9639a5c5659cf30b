"""Messages between the sites of a training, as files in a folder: a body of tensors and a head of JSON, which
is written last and makes the message exist. All sites reach the folder, or an agent at each site
(infra/sites/) carries messages between folders. Torch-free.
"""

import errno
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal

from pydantic import Field, field_validator

from atelier.engine.config.base import Spec, canonical
from atelier.engine.config.codec import Codec
from atelier.engine.config.document import check_as, parse_object
from atelier.engine.config.error import DamageError, DataError
from atelier.engine.config.link import ANY, Membership, SiteName
from atelier.engine.config.record import Digest, FileEntry, identify
from atelier.engine.io.storage import (
    exists,
    hashed,
    join,
    names,
    put_parts,
    read_as,
    read_bytes,
    remove,
    write_bytes,
)

HEAD, BODY, ABOUT, PROGRESS = "message.json", "tensors.safetensors", "training.json", "progress.json"
WHAT = "the head of a message"
MOST_HEAD = 1 << 20  # bytes
MOST_ROLES = 1000  # of which a progress says something
ROUND = "round-"
TRAJECTORY = re.compile("[0-9a-f]{16}")  # a folder of its messages
Part = bytes | memoryview  # of a file


class Head(Spec):
    """What the heads of all messages have."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    trajectory: Digest
    site: SiteName
    round: int = Field(ge=1, lt=10**9, description="number of the message, from 1")
    body: FileEntry

    @field_validator("body")
    @classmethod
    def _is_a_body(cls, body: FileEntry) -> FileEntry:
        if body.path != BODY or not re.fullmatch("[0-9a-f]{64}", body.sha256) or body.bytes < 0:
            raise ValueError(f"a body is {BODY} with a sha256 of 64 hex digits")
        return body

    @property
    def text(self) -> bytes:
        return canonical(self.model_dump(mode="json", by_alias=True))


class Contribution(Head):
    """By what a site's weights moved since the last outer step; `round` is of the outer step."""

    kind: Literal["contribution"] = "contribution"
    codec: Codec = Field(default=Codec(), description="in what form the body holds the weights")
    fragment: int = Field(default=0, ge=0, description="of the weights, from 1; 0 = all of them")
    before: dict[SiteName, Digest] = Field(
        description="digests of what was added in the last outer step before it was sent, by site"
    )
    safe: int = Field(ge=0, description="the last round that this site will not ask for again")


class Answers(Head):
    """What a teacher says of the batch of a step to students at other sites; `round` is the step, from 1."""

    kind: Literal["answers"]


class Drawings(Head):
    """The tokens that a generator has drawn in the place of hidden ones, for roles at other sites that detect
    them: numbers of samples, places and ids; `round` is the generator's step, from 1.
    """

    kind: Literal["drawings"]


OfStep = Answers | Drawings  # of a step, by the role that others learn from
What = Literal["answers", "drawings"]
Message = Contribution | OfStep
KINDS: dict[str, type[Message]] = {
    "contribution": Contribution, "answers": Answers, "drawings": Drawings,
}  # fmt: skip


def head_of(data: bytes | str, place: str) -> Message:
    """The head of a message. Raises DamageError for what is none."""
    document = parse_object(data, place, WHAT)
    kind = document.get("kind", "contribution")
    if not isinstance(kind, str) or kind not in KINDS:
        raise DamageError(f"{place}: kind {str(kind)[:40]!r}, not one of {', '.join(KINDS)}")
    return check_as(KINDS[kind], document, place, WHAT)


def model_at(trajectory: str, step: int) -> str:
    """Names what a trajectory has made at a step, at which a training of it may end, and a longer one not."""
    return identify("model_at", 1, {"step": step}, {"trajectory": trajectory})


class ReaderProgress(Spec):
    """How far a site has come in what it learns from another one's answers."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    kind: Literal["progress"] = "progress"
    trajectory: Digest
    site: SiteName
    begun: int = Field(
        default=1, ge=1, description="how often it has begun anew: its checkpoints lost, or with other roles"
    )
    step: int = Field(ge=0, description="steps that it has learned from")
    safe: int = Field(ge=0, description="steps whose answers it will not ask for again")
    students: tuple[Digest, ...] = Field(
        default=(), max_length=MOST_ROLES, description="trajectories of the roles of which this is said"
    )
    done: tuple[Digest, ...] = Field(
        default=(), max_length=MOST_ROLES, description="of roles whose models are published: `model_at`"
    )

    @property
    def names_none(self) -> bool:
        """Whether it does not say of which roles: a version before did not."""
        return not (self.students or self.done)

    def covers(self, students: Mapping[str, str]) -> bool:
        """Whether this is said of all these roles: their models, by trajectory."""
        return all(each in self.students or model in self.done for each, model in students.items())

    def is_done_with(self, students: Mapping[str, str]) -> bool:
        return len(students) > 0 and {*students.values()} <= {*self.done}

    def finished(self, models: Collection[str]) -> tuple[str, ...]:
        """`done` with these."""
        return tuple(dict.fromkeys([*self.done, *models]))[-MOST_ROLES:]


class AboutRounds(Spec):
    """The rounds of an elastic membership."""

    rows: dict[SiteName, int]
    every: int = Field(ge=1)
    first: int = Field(default=1, ge=1, description="the first round of the trajectory")
    last: int = Field(ge=1, description="the last one")
    begun: dict[SiteName, Digest] = Field(
        default={}, description="what contributions to round 1 say that was added before: the model `init`"
    )
    membership: Membership
    coordinator: str = Field(description="the site that decides who is in; any")
    is_followed: bool = Field(default=False, description="a round log says it, and nobody decides")

    def may_decide(self, site: str) -> bool:
        """Whether a site decides who is in a round."""
        return not self.is_followed and self.coordinator in (ANY, site)


class AboutTraining(Spec):
    """What a site's ranks say of a training whose messages it takes part in."""

    trajectory: Digest
    site: SiteName
    sites: tuple[SiteName, ...]
    bytes: dict[str, tuple[int, ...]] = Field(
        default={},
        description="of a contribution's body by codec: of all weights, then of each fragment; empty = any",
    )
    teacher: str = Field(default="", description="the site whose answers the others learn from; '' = none")
    what: What = Field(default="answers", description="what that site sends")
    most: int = Field(default=0, ge=0, description="bytes of the answers to a step, at most; 0 = any")
    ahead: int = Field(default=0, ge=0, description="steps that the teacher may be before this site")
    students: dict[SiteName, dict[Digest, Digest]] = Field(
        default={}, description="models (`model_at`) of those that learn, by site and trajectory; else: any"
    )
    rounds: AboutRounds | None = Field(
        default=None, description="of an elastic membership; None = all are in"
    )


class Mailbox:
    """The messages of one trajectory below the folder `url`."""

    def __init__(self, url: str, trajectory: str) -> None:
        self.url, self.trajectory = url, trajectory
        self.place = join(url, trajectory[:16])

    def open(
        self,
        site: str,
        sites: Iterable[str],
        sizes: Mapping[str, Iterable[int]] | None = None,
        rounds: AboutRounds | None = None,
    ) -> None:
        """Say that this site trains it, before its first message: agents take no messages of others, and none
        of other codecs and `sizes`. `rounds`: of an elastic membership.
        """
        self._say(
            AboutTraining(
                trajectory=self.trajectory,
                site=site,
                sites=tuple(sites),
                bytes={codec: tuple(each) for codec, each in (sizes or {}).items()},
                rounds=rounds,
            )
        )

    def open_answers(
        self,
        site: str,
        sites: Iterable[str],
        teacher: str,
        *,
        most: int,
        ahead: int,
        what: What = "answers",
        students: Mapping[str, dict[str, str]] | None = None,
    ) -> None:
        """Say that this site takes part in a teacher's answers, or drawings, before the first: agents take
        none of more than `most` bytes, and none of steps that are more than `ahead` before what this site
        has learned.
        """
        self._say(
            AboutTraining(
                trajectory=self.trajectory,
                site=site,
                sites=tuple(sites),
                teacher=teacher,
                most=most,
                ahead=ahead,
                what=what,
                students=dict(students or {}),
            )
        )

    def _say(self, about: AboutTraining) -> None:
        write_bytes(join(self.place, f"{about.site}-{ABOUT}"), canonical(about.model_dump(mode="json")))

    def about(self, site: str) -> AboutTraining | None:
        """What a site has said of the training; None while it has said nothing, or what is there is damaged
        or another training's.
        """
        found = _said(self.place, site)
        return found if found and found.trajectory == self.trajectory else None

    def folder(self, number: int, site: str) -> str:
        return join(self.place, f"{ROUND}{number:06d}", site)

    def send(
        self,
        number: int,
        site: str,
        parts: Iterable[Part],
        before: Mapping[str, str],
        safe: int,
        *,
        codec: Codec,
        fragment: int = 0,
    ) -> None:
        """Send a site's contribution to round `number`; one that was sent before has to have the same bytes.
        Raises DataError when it has not.
        """
        there, body = self._put(number, site, parts)
        head = Contribution(
            trajectory=self.trajectory,
            site=site,
            round=number,
            codec=codec,
            body=body,
            fragment=fragment,
            before=dict(before),
            safe=safe,
        )
        place = self.folder(number, site)
        if there is None:
            write_bytes(join(place, HEAD), head.text)
        elif there.model_copy(update={"safe": safe}) != head:
            raise DataError(
                f"{place}: this site sent another contribution to round {number} before, from the same steps;"
                " outer weights would differ between the sites. Train on in the layout in which it was sent"
            )

    def answer(self, step: int, site: str, parts: Iterable[Part], what: What = "answers") -> None:
        """Send a teacher's answers to the batch of a step, from 1, or what it has drawn there; what was sent
        before has to have the same bytes. Raises DataError when it has not.
        """
        there, body = self._put(step, site, parts)
        given = {"kind": what, "trajectory": self.trajectory, "site": site, "round": step, "body": body}
        head = KINDS[what].model_validate(given)
        place = self.folder(step, site)
        if there is None:
            write_bytes(join(place, HEAD), head.text)
        elif there != head:
            raise DataError(
                f"{place}: this site sent other {what} to step {step} before, from the same weights; its"
                " students would learn from two versions of one step. Train on in the layout in which they"
                " were sent"
            )

    def _put(self, number: int, site: str, parts: Iterable[Part]) -> tuple[Message | None, FileEntry]:
        """The head that was sent before, if one was, else the body is written; the body's entry."""
        place, there = join(self.folder(number, site), BODY), self.read(number, site)
        return there, put_parts(place, parts) if there is None else hashed(place, parts)

    def rounds(self) -> list[int]:
        """The rounds of which something lies here."""
        found = [name.removeprefix(ROUND) for name in names(self.place) if name.startswith(ROUND)]
        return sorted(int(number) for number in found if number.isdecimal())

    def sent(self, site: str, after: int = 0) -> Iterator[Message]:
        """The heads of a site's messages that lie here, of rounds after `after`, in the order of their
        rounds.
        """
        for number in self.rounds():
            if number > after and (head := self.read(number, site)) is not None:
                yield head

    def last_sent(self, site: str) -> int:
        """The last round of which a message of a site lies here; 0 = none."""
        return next((number for number in reversed(self.rounds()) if self.has(number, site)), 0)

    def has(self, number: int, site: str) -> bool:
        """Whether a site's message of a round lies here."""
        return exists(join(self.folder(number, site), HEAD))

    def forget(self, until: int) -> None:
        """Remove all messages of rounds up to `until`, which nobody will ask for again. Where an agent writes
        one that comes late, the rest is removed the next time.
        """
        for number in self.rounds():
            if number <= until:
                try:
                    remove(join(self.place, f"{ROUND}{number:06d}"))
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:
                        raise

    def tell(self, progress: ReaderProgress) -> None:
        """Say how far a site has come."""
        text = canonical(progress.model_dump(mode="json", by_alias=True))
        write_bytes(join(self.place, f"{progress.site}-{PROGRESS}"), text)

    def progress(self, site: str) -> ReaderProgress | None:
        """How far a site says that it has come, None while it says nothing. Raises DamageError."""
        place = join(self.place, f"{site}-{PROGRESS}")
        if not exists(place):
            return None
        found = read_as(ReaderProgress, place, "what is said of a progress")
        if (found.trajectory, found.site) != (self.trajectory, site):
            raise DamageError(f"{place}: is of site {found.site}, or of another training")
        return found

    def contribution(self, number: int, site: str) -> Contribution | None:
        """`read`, of a contribution. Raises DamageError for another kind as well."""
        found = self.read(number, site)
        if not isinstance(found, Contribution | None):
            raise DamageError(f"{self.folder(number, site)}: is of kind {found.kind}, not a contribution")
        return found

    def answers(self, step: int, site: str, what: What = "answers") -> OfStep | None:
        """`read`, of a teacher's answers to a step, or drawings. Raises DamageError for another kind, too."""
        found = self.read(step, site)
        if found is not None and found.kind != what:
            raise DamageError(f"{self.folder(step, site)}: is of kind {found.kind}, not a teacher's {what}")
        return found if isinstance(found, OfStep) else None

    def read(self, number: int, site: str) -> Message | None:
        """The head of a site's message, None while it is not there. Raises DamageError for one that is no
        head, or of another place.
        """
        place = join(self.folder(number, site), HEAD)
        if not self.has(number, site):
            return None
        try:
            found = head_of(read_bytes(place, MOST_HEAD), place)
        except FileNotFoundError:  # removed meanwhile
            return None
        if (found.trajectory, found.site, found.round) != (self.trajectory, site, number):
            raise DamageError(f"{place}: is of site {found.site}, round {found.round}, or another training")
        return found


def trainings(url: str, site: str) -> list[AboutTraining]:
    """What a site says of the trainings whose messages lie below the folder `url`."""
    found = (_said(join(url, folder), site) for folder in names(url) if TRAJECTORY.fullmatch(folder))
    return [about for about in found if about is not None]


def _said(folder: str, site: str) -> AboutTraining | None:
    """None where there is no such file, or one that is damaged: it holds up no other training."""
    try:
        return read_as(AboutTraining, join(folder, f"{site}-{ABOUT}"), "what is said of a training")
    except (DamageError, FileNotFoundError):
        return None
