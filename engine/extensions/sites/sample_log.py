"""Assign samples to sites in the rounds of an elastic membership. Torch-free.

A round takes missed samples first, the oldest first, then samples that were never assigned. Each site gets
`every` steps of its own rows. The samples of a site that is not in the round's outer step are assigned again,
so every sample is learned once, by the site in the round log. All functions are pure functions of the log.
"""

from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field

from atelier.engine.config.base import Spec
from atelier.engine.config.site_name import SiteName

Span = tuple[int, int]  # samples first, first + 1 ... end - 1


class RoundSamples(Spec):
    """The samples in a line of the round log."""

    assigned: dict[SiteName, tuple[Span, ...]] = Field(
        description="[first, end) by site; learned if the line has a contribution of the site"
    )
    again: tuple[Span, ...] = Field(description="to be assigned again after the round")
    fresh: int = Field(ge=0, description="the first sample that was never assigned")
    next: dict[SiteName, tuple[Span, ...]] = Field(description="assigned in the next round, by site")


class SampleLog:
    """The samples of the rounds after a line of the log; None = before the first round."""

    def __init__(self, rows: Mapping[str, int], every: int, line: RoundSamples | None = None) -> None:
        self._rows, self._every = rows, every
        if line is None:
            self._again: tuple[Span, ...] = ()
            self.assigned, self._fresh = self._deal(sorted(rows), (), 0)
        else:
            self.assigned = {site: tuple(spans) for site, spans in line.next.items()}
            self._again, self._fresh = line.again, line.fresh

    def decided(self, members: Iterable[str], following: Iterable[str]) -> RoundSamples:
        """The line of the round with these members; `following`: the sites of the round after it."""
        members = {*members}
        missed = [span for site, spans in self.assigned.items() if site not in members for span in spans]
        again = joined([*self._again, *missed])
        following = sorted({*following})
        dealt, fresh = self._deal(following, again, self._fresh)
        taken = [span for spans in dealt.values() for span in spans]
        return RoundSamples(
            assigned=self.assigned,
            again=without(again, taken),
            fresh=fresh,
            next=dealt,
        )

    def _deal(
        self, sites: Sequence[str], again: Sequence[Span], fresh: int
    ) -> tuple[dict[str, tuple[Span, ...]], int]:
        """The samples of a round by site, and the next sample that was never assigned."""
        dealt: dict[str, tuple[Span, ...]] = {}
        left = list(again)
        for site in sites:
            needed, spans = self._every * self._rows[site], list[Span]()
            while needed:
                first, end = left.pop(0) if left else (fresh, fresh + needed)
                part = min(needed, end - first)
                if first + part < end:
                    left.insert(0, (first + part, end))
                elif end > fresh:
                    fresh = end
                spans.append((first, first + part))
                needed -= part
            dealt[site] = joined(spans)
        return dealt, fresh

    def of_step(self, site: str, number: int) -> list[int]:
        """The samples of a site's step of the round, counted from 0."""
        rows = self._rows[site]
        return taken(self.assigned[site], number * rows, rows)


def taken(spans: Iterable[Span], skip: int, count: int) -> list[int]:
    """`count` samples of spans, after the first `skip`."""
    found: list[int] = []
    for first, end in spans:
        size = end - first
        begin = min(skip, size)
        skip -= begin
        part = range(first + begin, end)[: count - len(found)]
        found += part
    return found


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same samples in order, neighbours as one span."""
    found: list[Span] = []
    for first, end in sorted(spans):
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], end)
        else:
            found.append((first, end))
    return tuple(found)


def without(spans: Iterable[Span], taken: Iterable[Span]) -> tuple[Span, ...]:
    """The samples of spans that are not in `taken`, as spans."""
    left = list(spans)
    for first, end in taken:
        parts = list[Span]()
        for low, high in left:
            if end <= low or high <= first:
                parts.append((low, high))
            else:
                parts += [span for span in ((low, first), (end, high)) if span[0] < span[1]]
        left = parts
    return joined(left)


def size_of(spans: Iterable[Span]) -> int:
    """How many samples spans have."""
    return sum(end - first for first, end in spans)
