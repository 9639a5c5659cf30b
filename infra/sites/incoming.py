"""Receive messages from other sites. A message is judged by its head before its body is read. An incomplete
body is kept, and moved into the mailbox when its digest is right.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from atelier.engine.config.error import AtelierError, DamageError
from atelier.engine.extensions.sites.mailbox import HEAD, MOST_HEAD, KnownTrainings, Mailbox
from atelier.engine.extensions.sites.membership import Meeting
from atelier.engine.extensions.sites.messages import (
    BODY,
    AboutRounds,
    AboutTraining,
    Contribution,
    Message,
    OfStep,
    ReaderProgress,
)
from atelier.engine.io.storage import TEMPORARY, digest_of, local_path, make_folder, sync_folder, write_bytes

MOST = 64 << 30  # bytes of a message


class NotTaken(AtelierError):
    """A refused item, with the reason. `when`: it is `never` accepted, is too `early`, or is `over` (no
    longer needed). `lacks`: what must come before it.
    """

    def __init__(
        self,
        problem: str,
        when: Literal["never", "early", "over"] = "never",
        lacks: Literal["", "training", "round"] = "",
    ) -> None:
        super().__init__(problem)
        self.when, self.lacks = when, lacks


class Damaged(NotTaken):
    """A body that does not match its head."""


@dataclass(frozen=True)
class Arrival:
    """An item from a peer: the blocks of its body, from `offset` on. `note` is called with whether it is new,
    before its body is moved into place.
    """

    peer: str
    note: Callable[[bool], None]
    offset: int = 0
    blocks: Iterable[bytes] = ()


class OneTransfer:
    """Allows one transfer to a place at a time, so that no file is replaced or written by two."""

    def __init__(self) -> None:
        self._taking: set[Path] = set()
        self._lock = threading.Lock()

    @contextmanager
    def of(self, place: Path, what: str) -> Iterator[None]:
        """Raises NotTaken during another transfer to the place."""
        with self._lock:
            self._check(place, what)
            self._taking.add(place)
        try:
            yield
        finally:
            with self._lock:
                self._taking.discard(place)

    def check(self, place: Path, what: str) -> None:
        """Raises NotTaken during a transfer to the place, before any bytes are sent."""
        with self._lock:
            self._check(place, what)

    def _check(self, place: Path, what: str) -> None:
        if place in self._taking:
            raise NotTaken(f"{what} is on its way", "early")


class Incoming:
    """Messages that arrive in the mailbox `url` of `site`."""

    def __init__(self, url: str, site: str) -> None:
        self.url, self.site = url, site
        self._one = OneTransfer()
        self.all = KnownTrainings(url, site)

    def trainings(self, peer: str) -> list[AboutTraining]:
        """The trainings here that another site takes part in."""
        return [about for about in self.all.listed() if peer in about.sites]

    def about(self, trajectory: str, of: str, peer: str) -> AboutTraining:
        """This site's announcement of the training of a message `of` a site. Raises NotTaken if `peer` takes
        no part in the training, or did not make the message.
        """
        about = Mailbox(self.url, trajectory).about(self.site)
        if about is None:
            raise NotTaken(f"{trajectory[:16]} is not trained here", "early", "training")
        if peer not in about.sites:
            raise NotTaken(f"{peer} takes no part in {trajectory[:16]}")
        if of != peer:
            raise NotTaken(f"the message is of {of}, and {peer} sends it")
        return about

    def judge(self, head: Message, peer: str) -> Mailbox:
        """The mailbox of a message. Raises NotTaken for one that this site does not accept from `peer`."""
        about, box = self.about(head.trajectory, head.site, peer), Mailbox(self.url, head.trajectory)
        if len(head.text) > MOST_HEAD:
            raise NotTaken(f"a head of {len(head.text)} bytes, at most {MOST_HEAD} are accepted")
        most = min(MOST, about.most or MOST)
        if head.body.bytes > most:
            raise NotTaken(f"{head.body.bytes} bytes, at most {most} are accepted")
        if head.kind != (about.what if about.teacher else "contribution"):
            raise NotTaken(f"{head.trajectory[:16]} has no messages of kind {head.kind}")
        there = box.read(head.round, peer)
        if there is not None and there.body != head.body:
            raise NotTaken(f"another message of {peer} to round {head.round} is here")
        if isinstance(head, Contribution):
            self._judge_contribution(head, box, about, is_here=there is not None)
        else:
            self._judge_answers(head, box, about)
        return box

    def _judge_answers(self, head: OfStep, box: Mailbox, about: AboutTraining) -> None:
        if head.site != about.teacher:
            raise NotTaken(f"the teacher of {head.trajectory[:16]} is at {about.teacher}, not {head.site}")
        own = box.progress(self.site)
        if own is None or head.round > own.step + about.ahead:
            raise NotTaken(f"step {head.round} is too far ahead", "early")
        if head.round <= own.safe:
            raise NotTaken(f"step {head.round} is over", "over")

    def _judge_contribution(
        self, head: Contribution, box: Mailbox, about: AboutTraining, *, is_here: bool
    ) -> None:
        if strange := sorted({*head.before} - {*about.sites}):
            raise NotTaken(f"is sent after a step with {strange[0]}, which takes no part")
        if about.rounds is not None:
            last = self._judge_round(head, box, about.rounds)
        else:
            last = box.last_sent(self.site)
        if head.round > last + 1:
            raise NotTaken(f"round {head.round} is not the next one", "early", "round")
        if about.bytes and head.codec.text not in about.bytes:
            raise NotTaken(f"has codec {head.codec.text}, and the training's are {', '.join(about.bytes)}")
        expected = about.bytes.get(head.codec.text, ())[head.fragment : head.fragment + 1]
        if about.bytes and expected != (head.body.bytes,):
            raise NotTaken(f"{head.body.bytes} bytes of fragment {head.fragment}, not {[*expected]}")
        if not is_here and head.round < min(box.rounds(), default=1):
            raise NotTaken(f"round {head.round} is over", "over")

    def _judge_round(self, head: Contribution, box: Mailbox, rounds: AboutRounds) -> int:
        """The last round that has begun here, in an elastic membership. Raises NotTaken for a contribution
        that is not in the decision, or differs from the one in it.
        """
        meeting = Meeting(box)
        decision, last = meeting.decision(head.round), meeting.last()
        if decision is not None and head.site not in decision.line.sha256:
            raise NotTaken(f"round {head.round} was decided without {head.site}", "over")
        if decision is not None and decision.line.sha256[head.site] != head.body.sha256:
            raise NotTaken(f"the decision on round {head.round} has another message of {head.site}")
        if rounds.is_followed:
            return rounds.last
        own = meeting.presence(self.site)  # it may have no part in the first round of a branch
        begun = own.round - 1 if own is not None else 0
        return max(begun, box.last_sent(self.site), last.line.round if last is not None else 0)

    def take_progress(self, progress: ReaderProgress, peer: str) -> None:
        """Keep the progress that `peer` reports in a lesson of a teacher here. Raises NotTaken if it may not
        report it.
        """
        about = self.about(progress.trajectory, progress.site, peer)
        if about.teacher != self.site:
            raise NotTaken(f"{progress.trajectory[:16]} has no teacher here")
        box = Mailbox(self.url, progress.trajectory)
        known, students = self.progress(box, peer), about.students.get(peer, {})
        is_new = known is None or (progress.covers(students) and not known.covers(students))
        if known is not None and not is_new and (progress.begun, progress.safe) < (known.begun, known.safe):
            if {*progress.done} <= {*known.done}:
                raise NotTaken(f"step {known.safe} was safe, and now {progress.safe}", "over")
            progress = known.model_copy(update={"done": known.finished(progress.done)})
        box.tell(progress)
        readers = {site: self.progress(box, site) for site in about.sites if site != self.site}
        safe = (
            reader.safe if reader and reader.covers(about.students.get(site, {})) else 0
            for site, reader in readers.items()
        )
        box.forget(min(safe))

    def progress(self, box: Mailbox, peer: str) -> ReaderProgress | None:
        """The reported progress of a peer; None if it is missing or damaged. The peer reports it again."""
        try:
            return box.progress(peer)
        except DamageError:
            return None

    def forget(self, progress: ReaderProgress) -> None:
        """Remove the answers that this site will not ask for again; no other site reads them here."""
        Mailbox(self.url, progress.trajectory).forget(progress.safe)

    def offset(self, head: Message, peer: str) -> int | None:
        """How many bytes of a message have arrived; None = all. Raises NotTaken as `judge`."""
        box = self.judge(head, peer)
        if box.has(head.round, peer):
            return None
        path = self._part(box, head)
        self._one.check(path.parent, _what(peer))
        return path.stat().st_size if path.exists() else 0

    def take(
        self,
        head: Message,
        arrival: Arrival,
        is_trusted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Receive a message's bytes; durable when it returns. Raises NotTaken as `judge`, and for bytes that
        do not match the head, which are dropped. `is_trusted`: whether the peer still is, after the last
        byte.
        """
        peer, box = arrival.peer, self.judge(head, arrival.peer)
        path = self._part(box, head)
        with self._one.of(path.parent, _what(peer)):
            if self.judge(head, peer).has(head.round, peer):
                return arrival.note(False)
            make_folder(path.parent)
            for other in path.parent.glob(f"{TEMPORARY}*"):  # of a message with another head
                if other != path:
                    other.unlink()
            folder = box.folder(head.round, peer)
            entry = (head.body.bytes, head.body.sha256)
            received(path, local_path(folder) / BODY, entry, arrival, is_trusted)
            write_bytes(f"{folder}/{HEAD}", head.text)

    def _part(self, box: Mailbox, head: Message) -> Path:
        return local_path(box.folder(head.round, head.site)) / f"{TEMPORARY}{head.body.sha256[:16]}"


def _what(peer: str) -> str:
    return f"{peer}'s message of this round"


def received(
    part: Path,
    target: Path,
    entry: tuple[int, str],
    arrival: Arrival,
    is_trusted: Callable[[], bool],
) -> None:
    """Append the blocks of a file to `part`, and move it to `target` when it matches `entry` (bytes, sha256).
    Durable when it returns. Raises NotTaken for other bytes, which are dropped. `is_trusted`: whether the
    sender still is, after the last byte. `arrival.note` is called before the move, with whether bytes came
    now.
    """
    size, sha256 = entry
    has_come = not size
    if arrival.offset != (part.stat().st_size if part.exists() else 0):
        raise NotTaken(f"begins at byte {arrival.offset}, which is not where it ended", "early")
    with part.open("ab") as file:
        for block in arrival.blocks:
            has_come = has_come or bool(block)
            file.write(block)
            if file.tell() > size:
                part.unlink()
                raise Damaged(f"has more than the {size} bytes that it announces")
        file.flush()
        os.fsync(file.fileno())
    if part.stat().st_size < size:
        raise NotTaken(f"ended after {part.stat().st_size} of {size} bytes", "early")
    if digest_of(str(part)).sha256 != sha256:
        part.unlink()
        raise Damaged("its content does not match its digest")
    if not is_trusted():
        raise NotTaken("its sender is no longer trusted")
    arrival.note(has_come)
    os.replace(part, target)
    sync_folder(target.parent)
