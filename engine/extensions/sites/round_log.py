"""The round log of a training at several sites: codec and digest of each site's contribution, by round.

Each line has the digest of the line before, so a changed or missing line is noticed; the model's record has
the digest of the last. A training that follows the log gets the same bits. Torch-free.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import Field

from atelier.engine.config.base import Spec, canonical
from atelier.engine.config.document import parse_as
from atelier.engine.config.error import AtelierError, ConfigError, DataError
from atelier.engine.config.record import Digest
from atelier.engine.config.site_name import SiteName
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.config.train.link import Link
from atelier.engine.extensions.sites.sample_log import RoundSamples, size_of
from atelier.engine.io.storage import read_bytes

WHAT = "a line of a round log"
FILE = "rounds.jsonl"
MOST = 1 << 28  # bytes of a file
WAY_OUT = "the log of a training of the same configuration, or leave it out"


class RoundLine(Spec):
    round: int = Field(ge=1)
    codecs: dict[SiteName, Codec]
    sha256: dict[SiteName, Digest] = Field(description="of each site's contribution")
    samples: RoundSamples | None = Field(default=None, description="of an elastic membership")
    before: str = Field(description="digest of the line before, '' in the first")

    @property
    def text(self) -> str:
        return canonical(self.model_dump(mode="json", exclude_none=True)).decode()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass
class RoundLog:
    """The lines by round, as they are written."""

    lines: dict[int, str] = field(default_factory=dict)

    def add(self, number: int, codecs: Mapping[str, Codec], digests: Mapping[str, str]) -> None:
        self.follow(RoundLine(round=number, codecs=dict(codecs), sha256=dict(digests), before=self.digest))

    def follow(self, line: RoundLine) -> None:
        """Add a decided line. Raises DataError if it does not follow the last one."""
        if line.before != self.digest:
            raise DataError(f"round {line.round}: does not follow the line before in the round log")
        self.lines[line.round] = line.text

    @property
    def last(self) -> RoundLine | None:
        return parse_as(RoundLine, self.lines[max(self.lines)], "", WHAT) if self.lines else None

    @property
    def digest(self) -> str:
        """The digest of the last line, and so of all; '' = no lines."""
        last = self.lines[max(self.lines)] if self.lines else ""
        return hashlib.sha256(last.encode()).hexdigest() if last else ""

    def check_follows(self, place: str, checkpoints: str) -> None:
        """Raise DataError unless the log at `place` begins with these lines, restored from `checkpoints`."""
        followed = read_log(place)
        for number, text in sorted(self.lines.items()):
            own = hashlib.sha256(text.encode()).hexdigest()
            there = followed[number].digest if number in followed else "nothing"
            if own != there:
                raise DataError(
                    f"{checkpoints}: round {number} is {own[:12]}, and in {place} {there[:12]}: these"
                    " checkpoints are of another log; leave out train.link.rounds, or remove them at all"
                    " sites and start all again with a new mailbox"
                )

    def learned(self) -> dict[str, int]:
        """How many samples each site has learned; {} where every site learns its own rows."""
        found: dict[str, int] = {}
        for text in self.lines.values():
            line = parse_as(RoundLine, text, "", WHAT)
            assigned = line.samples.assigned if line.samples else {}
            for site, spans in assigned.items():
                found[site] = found.get(site, 0) + (size_of(spans) if site in line.sha256 else 0)
        return found

    @property
    def text(self) -> bytes:
        return "".join(f"{self.lines[number]}\n" for number in sorted(self.lines)).encode()


def read_log(place: str) -> dict[int, RoundLine]:
    """The lines of a file by round. Raises DataError if it was changed or has no rounds, FileNotFoundError if
    it is missing.
    """
    found: dict[int, RoundLine] = {}
    before = ""
    for number, text in enumerate(read_bytes(place, MOST).splitlines(), start=1):
        line = parse_as(RoundLine, text, f"{place}:{number}", WHAT)
        if line.before != before or line.round in found:
            raise DataError(f"{place}:{number}: does not follow the line before: the file was changed")
        before = hashlib.sha256(text).hexdigest()
        found[line.round] = line
    if not found:
        raise DataError(f"{place}: has no rounds")
    return found


def check_followed(link: Link, rounds: int, section: str = "train") -> str:
    """The digest of the line of round `rounds` in the log that a link follows. Raises ConfigError if the log
    lacks a round, or has other sites or codecs.
    """
    place = f"{section}.link.rounds"
    try:
        lines = read_log(link.rounds)
    except (AtelierError, OSError) as bad:
        problem = "there is no such file" if isinstance(bad, FileNotFoundError) else f"{bad}"
        raise ConfigError(place, f"{link.rounds}: {problem}", "the rounds.jsonl of a finished model") from bad
    for number in range(1, rounds + 1):
        if number not in lines:
            raise ConfigError(
                place,
                f"{link.rounds} has no round {number}, and this training has {rounds}",
                f"{section}.steps of the training that made it, or leave it out",
            )
        if problem := _misfit(lines[number], link):
            raise ConfigError(place, f"{link.rounds}: round {number} {problem}", WAY_OUT)
    return lines[rounds].digest


def _misfit(line: RoundLine, link: Link) -> str:
    """Why a line does not fit the training; '' = it fits."""
    if link.is_elastic and line.samples is None:
        return "has no samples, and an elastic membership assigns them"
    others = {*line.codecs, *(line.samples.assigned if line.samples else ())} ^ {*link.sites}
    if strange := sorted(others - {*link.sites} if link.is_elastic else others):
        return f"differs in the site {strange[0]}, and the training's are {', '.join(link.sites)}"
    known = [codec.text for codec in link.codecs]
    if strange := sorted({codec.text for codec in line.codecs.values()} - {*known}):
        return f"has the codec {strange[0]}, and the training's are {', '.join(known)}"
    return ""
