"""Messages between the sites of a training, as files in a folder: a body of tensors, then a head of JSON,
which makes the message exist. All sites reach the folder, or an agent at each site (infra/sites/) copies
messages between folders. Torch-free.
"""

import errno
import re
from collections.abc import Iterable, Iterator, Mapping

from atelier.engine.config.base import ANSWERS, canonical
from atelier.engine.config.error import DamageError, DataError
from atelier.engine.config.record import FileEntry
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.messages import (
    BODY,
    AboutRounds,
    AboutTraining,
    Contribution,
    Message,
    OfStep,
    ReaderProgress,
    head_of,
)
from atelier.engine.io.storage import (
    Stamp,
    exists,
    hashed,
    join,
    local_path,
    names,
    put_parts,
    read_as,
    read_bytes,
    remove,
    stamp_of,
    write_bytes,
)

HEAD, ABOUT, PROGRESS = "message.json", "training.json", "progress.json"
MOST_HEAD = 1 << 20  # bytes
ROUND = "round-"
TRAJECTORY = re.compile("[0-9a-f]{16}")  # a folder of its messages
Part = bytes | memoryview  # of a file


class Mailbox:
    """The messages of one trajectory, below the folder `url`. `code`: the code's digest in messages sent
    here.
    """

    def __init__(self, url: str, trajectory: str, code: str = "") -> None:
        self.url, self.trajectory, self.code = url, trajectory, code
        self.place = join(url, trajectory[:16])

    def open(
        self,
        site: str,
        sites: Iterable[str],
        sizes: Mapping[str, Iterable[int]] | None = None,
        rounds: AboutRounds | None = None,
    ) -> None:
        """Announce, before the first message, that this site trains it: agents accept messages only of
        announced sites, codecs and `sizes`. `rounds`: of an elastic membership.
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
        what: str = ANSWERS,
        students: Mapping[str, dict[str, str]] | None = None,
    ) -> None:
        """Announce, before the first message, that this site takes part in a teacher's lesson: agents accept
        no message of more than `most` bytes, or more than `ahead` steps ahead of this site.
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
        """A site's announcement of the training; None if there is none, or it is damaged or of another
        training.
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
        tokens: int = 0,
    ) -> None:
        """Send a site's contribution to round `number`. Raises DataError if another one was sent before.
        `tokens`: that this site has learned from so far.
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
            tokens=tokens,
            code=self.code,
        )
        place = self.folder(number, site)
        if there is None:
            write_bytes(join(place, HEAD), head.text)
        elif there.model_copy(update={"safe": safe, "code": head.code}) != head:
            raise DataError(
                f"{place}: this site sent another contribution to round {number} before, from the same steps;"
                " outer weights would differ between the sites. Continue in the layout in which it was sent"
            )

    def answer(self, step: int, site: str, parts: Iterable[Part], what: str = ANSWERS) -> None:
        """Send a teacher's lesson about the batch of a step, from 1. Raises DataError if another one was sent
        before.
        """
        there, body = self._put(step, site, parts)
        given = {"kind": what, "trajectory": self.trajectory, "site": site, "round": step, "body": body}
        head = OfStep.model_validate(given | {"code": self.code})
        place = self.folder(step, site)
        if there is None:
            write_bytes(join(place, HEAD), head.text)
        elif there.model_copy(update={"code": head.code}) != head:
            raise DataError(
                f"{place}: this site sent other {what} to step {step} before, from the same weights; its"
                " students would learn from two versions of one step. Continue in the layout in which they"
                f" were sent, or remove {self.place} at all sites and start all again"
            )

    def _put(self, number: int, site: str, parts: Iterable[Part]) -> tuple[Message | None, FileEntry]:
        """The head that was sent before, and the body's entry. If there is no head, the body is written."""
        place, there = join(self.folder(number, site), BODY), self.read(number, site)
        return there, put_parts(place, parts) if there is None else hashed(place, parts)

    def rounds(self) -> list[int]:
        """The rounds that have files here."""
        found = [name.removeprefix(ROUND) for name in names(self.place) if name.startswith(ROUND)]
        return sorted(int(number) for number in found if number.isdecimal())

    def sent(self, site: str, after: int = 0) -> Iterator[Message]:
        """The heads of a site's messages here, of rounds after `after`, in the order of rounds."""
        for number in self.rounds():
            if number > after and (head := self.read(number, site)) is not None:
                yield head

    def last_sent(self, site: str) -> int:
        """The last round with a message of a site here; 0 = none."""
        return next((number for number in reversed(self.rounds()) if self.has(number, site)), 0)

    def has(self, number: int, site: str) -> bool:
        """Whether a site's message of a round is here."""
        return exists(join(self.folder(number, site), HEAD))

    def forget(self, until: int) -> None:
        """Remove all messages of rounds up to `until`. If an agent writes a late one meanwhile, the rest is
        removed the next time.
        """
        for number in self.rounds():
            if number <= until:
                try:
                    remove(join(self.place, f"{ROUND}{number:06d}"))
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:
                        raise

    def tell(self, progress: ReaderProgress) -> None:
        """Report a site's progress."""
        text = canonical(progress.model_dump(mode="json", by_alias=True))
        write_bytes(join(self.place, f"{progress.site}-{PROGRESS}"), text)

    def progress(self, site: str) -> ReaderProgress | None:
        """A site's reported progress; None = none yet. Raises DamageError."""
        place = join(self.place, f"{site}-{PROGRESS}")
        if not exists(place):
            return None
        found = read_as(ReaderProgress, place, "a report of progress")
        if (found.trajectory, found.site) != (self.trajectory, site):
            raise DamageError(f"{place}: is of site {found.site}, or of another training")
        return found

    def contribution(self, number: int, site: str) -> Contribution | None:
        """`read` a contribution. Raises DamageError for another kind, too."""
        found = self.read(number, site)
        if not isinstance(found, Contribution | None):
            raise DamageError(f"{self.folder(number, site)}: is of kind {found.kind}, not a contribution")
        return found

    def answers(self, step: int, site: str, what: str = ANSWERS) -> OfStep | None:
        """`read` a teacher's lesson of a step. Raises DamageError for another kind, too."""
        found = self.read(step, site)
        if found is not None and found.kind != what:
            raise DamageError(f"{self.folder(step, site)}: is of kind {found.kind}, not a teacher's {what}")
        return found if isinstance(found, OfStep) else None

    def read(self, number: int, site: str) -> Message | None:
        """The head of a site's message; None = not there yet. Raises DamageError for an invalid head, or one
        of another message.
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


class KnownTrainings:
    """A site's announcements of the trainings below the folder `url` of this machine. A file is read again
    only when it has changed.
    """

    def __init__(self, url: str, site: str) -> None:
        self._folder, self._site = str(local_path(url)), site
        self._known: dict[str, tuple[Stamp, AboutTraining | None]] = {}  # by folder

    def listed(self) -> list[AboutTraining]:
        """All that are not damaged."""
        found: dict[str, tuple[Stamp, AboutTraining | None]] = {}
        for name in names(self._folder):
            stamp = stamp_of(f"{self._folder}/{name}/{self._site}-{ABOUT}")
            if stamp is not None and TRAJECTORY.fullmatch(name):
                known = self._known.get(name)
                if known is None or known[0] != stamp:
                    known = (stamp, _said(f"{self._folder}/{name}", self._site))
                found[name] = known
        self._known = found
        return [about for _, about in found.values() if about is not None]


def _said(folder: str, site: str) -> AboutTraining | None:
    """The announcement in a folder; None if it is missing or damaged, so that it blocks no other training."""
    try:
        return read_as(AboutTraining, join(folder, f"{site}-{ABOUT}"), "an announced training")
    except (DamageError, FileNotFoundError):
        return None
