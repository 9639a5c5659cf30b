"""Messages between the sites of a training, as files in a folder: a body of tensors and a head of JSON, which
is written last and makes the message exist. All sites reach the folder, or an agent at each site
(infra/sites/) carries messages between folders. Torch-free.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator

from atelier.engine.config.base import Spec, canonical
from atelier.engine.config.error import DataError
from atelier.engine.config.link import SITE
from atelier.engine.config.record import FileEntry
from atelier.engine.io.storage import exists, hashed, join, names, put_parts, read_as, remove, write_bytes

HEAD, BODY, ABOUT = "message.json", "tensors.safetensors", "training.json"
ROUND = "round-"
Part = bytes | memoryview  # of a file
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
SiteName = Annotated[str, Field(pattern=SITE)]


class Contribution(Spec):
    """The head of a message of the only kind there is: by what a site's weights moved since the last outer
    step.
    """

    schema_: Literal[1] = Field(default=1, alias="schema")
    kind: Literal["contribution"] = "contribution"
    trajectory: str = Field(pattern=r"^[0-9a-f]{64}$")
    site: SiteName
    round: int = Field(ge=1, lt=10**6, description="of the outer step, from 1")
    body: FileEntry
    before: dict[SiteName, Digest] = Field(
        description="digests of what was added in the round before, by site"
    )
    safe: int = Field(ge=0, description="the last round that this site will not ask for again")

    @field_validator("body")
    @classmethod
    def _is_a_body(cls, body: FileEntry) -> FileEntry:
        if body.path != BODY or not re.fullmatch("[0-9a-f]{64}", body.sha256) or body.bytes < 0:
            raise ValueError(f"a body is {BODY} with a sha256 of 64 hex digits")
        return body

    @property
    def text(self) -> bytes:
        return canonical(self.model_dump(mode="json", by_alias=True))


class AboutTraining(Spec):
    """What a site's ranks say of a training whose messages it takes part in."""

    trajectory: str = Field(pattern=r"^[0-9a-f]{64}$")
    site: SiteName
    sites: tuple[SiteName, ...]


class Mailbox:
    """The messages of one trajectory below the folder `url`."""

    def __init__(self, url: str, trajectory: str) -> None:
        self._trajectory = trajectory
        self._place = join(url, trajectory[:16])

    def open(self, site: str, sites: Iterable[str]) -> None:
        """Say that this site trains it, before its first message: agents take no messages of others."""
        about = AboutTraining(trajectory=self._trajectory, site=site, sites=tuple(sites))
        write_bytes(join(self._place, f"{site}-{ABOUT}"), canonical(about.model_dump(mode="json")))

    def folder(self, number: int, site: str) -> str:
        return join(self._place, f"{ROUND}{number:06d}", site)

    def send(
        self, number: int, site: str, parts: Iterable[Part], before: Mapping[str, str], safe: int
    ) -> None:
        """Send a site's contribution to round `number`; one that was sent before has to have the same bytes.
        Raises DataError when it has not.
        """
        place = self.folder(number, site)
        there = self.read(number, site)
        body = put_parts(join(place, BODY), parts) if there is None else hashed(join(place, BODY), parts)
        head = Contribution(
            trajectory=self._trajectory, site=site, round=number, body=body, before=dict(before), safe=safe
        )
        if there is None:
            write_bytes(join(place, HEAD), head.text)
        elif there.model_copy(update={"safe": safe}) != head:
            raise DataError(
                f"{place}: this site sent another contribution to round {number} before, from the same steps;"
                " outer weights would differ between the sites. Train on in the layout in which it was sent"
            )

    def rounds(self) -> list[int]:
        """The rounds of which something lies here."""
        found = [name.removeprefix(ROUND) for name in names(self._place) if name.startswith(ROUND)]
        return sorted(int(number) for number in found if number.isdecimal())

    def sent(self, site: str) -> Iterator[Contribution]:
        """The heads of a site's messages that lie here, in the order of their rounds."""
        for number in self.rounds():
            if (head := self.read(number, site)) is not None:
                yield head

    def forget(self, until: int) -> None:
        """Remove all messages of rounds up to `until`, which nobody will ask for again."""
        for number in self.rounds():
            if number <= until:
                remove(join(self._place, f"{ROUND}{number:06d}"))

    def read(self, number: int, site: str) -> Contribution | None:
        """The head of a site's message, None while it is not there. Raises DamageError for one that is no
        head, DataError for one of another place.
        """
        place = join(self.folder(number, site), HEAD)
        if not exists(place):
            return None
        found = read_as(Contribution, place, "the head of a message")
        if (found.trajectory, found.site, found.round) != (self._trajectory, site, number):
            raise DataError(f"{place}: is of site {found.site}, round {found.round}, or another training")
        return found


def trainings(url: str) -> list[AboutTraining]:
    """What is said of the trainings whose messages lie below the folder `url`. Raises DamageError for what is
    no such file.
    """
    found: list[AboutTraining] = []
    for folder in names(url):
        for name in names(join(url, folder)):
            if name.endswith(f"-{ABOUT}"):
                found.append(read_as(AboutTraining, join(url, folder, name), "what is said of a training"))
    return found
