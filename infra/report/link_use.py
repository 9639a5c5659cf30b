"""Traffic between sites during a training, as a table, from one site's metric lines
(engine/extensions/sites/link_meter.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from atelier.engine.config.base import Json, parse
from atelier.engine.config.error import ConfigError
from atelier.engine.config.metric import CurveLine
from atelier.engine.config.record import Record
from atelier.engine.config.section import Section
from atelier.infra.report.lineage import find_trajectory
from atelier.infra.report.render import size
from atelier.infra.report.table import Table
from atelier.infra.report.table import markdown_rows as markdown_rows  # for the page of sites
from atelier.infra.store.store import Store

HEAD = ("messages", "sent to each site", "received", "seconds", "stall", "codecs", "staleness")


@dataclass(frozen=True)
class LinkForm:
    """A training between sites: its sites, whether they have their own roles, and its codecs."""

    sites: Sequence[str] = ()
    has_roles: bool = False
    codecs: Sequence[str] = ()


def form_of_link(given: Json | Section) -> LinkForm:
    """Parse `train.link`, or an identity's part of it. Raises ConfigError if it is invalid."""
    from atelier.engine.extensions.sites.config.train.link import Link  # late: an extension's

    link = given if isinstance(given, Link) else parse(Link, given, "link")
    return LinkForm(link.sites, bool(link.roles), [codec.text for codec in link.codecs])


@dataclass(frozen=True)
class LinkUse:
    """Bytes count message bodies; a sent body counts once, however many sites get it. `seconds`: for sending,
    waiting and adding; `stall`: their share of the training's time. With roles by site they cover all roles
    here, and are in the first one's lines alone. `staleness`: mean steps from a contribution to its outer
    step, or by which answers were ahead.
    """

    messages: int
    sent: int
    received: int
    seconds: float
    stall: float
    staleness: float
    codecs: dict[str, int] = field(default_factory=dict)  # how often each was sent

    @property
    def cells(self) -> list[str]:
        """The cells for `HEAD`."""
        counts = ", ".join(f"{text} x {count}" for text, count in self.codecs.items())
        return [
            str(self.messages),
            f"{size(self.sent)}B" if self.sent else "",
            f"{size(self.received)}B" if self.received else "",
            f"{self.seconds:.1f}" if self.seconds else "",
            f"{100 * self.stall:.1f} %" if self.seconds else "",
            counts,
            f"{self.staleness:.1f} steps",
        ]


def link_use(lines: Sequence[CurveLine], link: LinkForm, beside: Iterable[CurveLine] = ()) -> LinkUse | None:
    """Traffic in a role's metric lines; None if there was none. `beside`: lines of other roles (they may
    include its own), whose seconds of the same step count as well.
    """
    timings = [line.get("timing", {}) for line in lines]
    crossed = [each for each in timings if "link_bytes" in each or "link_received_bytes" in each]
    if not crossed:
        return None
    of_steps = _seconds_of_steps([*beside, *lines])
    seconds = whole = 0.0
    for line in lines:
        found = of_steps[_step_of(line)]
        own, role = line.get("timing", {}), line.get("role", "")
        if not link.has_roles:
            seconds += own.get("link_s", 0.0)
            whole += own.get("step_s", 0.0) + sum(found.values())
        else:  # the line of each role has the seconds of all
            seconds += own.get("link_s", 0.0) if role == min(found) else 0.0
            whole += own.get("step_s", 0.0) + own.get("link_s", 0.0)
    ages = [each[key] for each in crossed for key in ("link_delay_steps", "link_ahead_steps") if key in each]
    counts: dict[str, int] = {}
    for each in crossed:
        if "link_codec" in each:
            place = int(each["link_codec"])
            text = link.codecs[place] if place < len(link.codecs) else f"codec {place}"
            counts[text] = counts.get(text, 0) + 1
    is_sender = any("link_bytes" in each for each in crossed)
    return LinkUse(
        messages=sum(("link_bytes" if is_sender else "link_received_bytes") in each for each in crossed),
        sent=int(sum(each.get("link_bytes", 0.0) for each in crossed)),
        received=int(sum(each.get("link_received_bytes", 0.0) for each in crossed)),
        seconds=seconds,
        stall=seconds / whole if whole else 0.0,
        staleness=sum(ages) / len(ages) if ages else 0.0,
        codecs=counts,
    )


def _step_of(line: CurveLine) -> tuple[int, float]:
    """Key of a step, equal for all roles of one gang, which share its seconds."""
    return line["step"], line.get("timing", {}).get("step_s", 0.0)


def _seconds_of_steps(lines: Iterable[CurveLine]) -> dict[tuple[int, float], dict[str, float]]:
    """`link_s` of each step, by role; a trunk's lines may occur twice."""
    found: dict[tuple[int, float], dict[str, float]] = {}
    for line in lines:
        own = line.get("timing", {}).get("link_s", 0.0)
        found.setdefault(_step_of(line), {})[line.get("role", "")] = own
    return found


def link_tables(
    found: Mapping[str, Record], store: Store, curve: Callable[[Store, Record], list[CurveLine]]
) -> list[Table]:
    """A table of the models that were trained at several sites, if any. Traffic at other sites is in their
    own curves.
    """
    rows: list[list[str]] = []
    curves = {name: curve(store, each) for name, each in found.items() if "step" in each.identity}
    every = [line for lines in curves.values() for line in lines]
    for name, lines in curves.items():
        link = _link_of(found[name], store)
        use = link_use(lines, link, every)
        if use is not None:
            rows.append([name, ", ".join(link.sites), *use.cells])
    if not rows:
        return []
    return [Table("Between sites", ["name", "sites", *HEAD], rows, ["link"] * len(rows)).filled()]


def _link_of(record: Record, store: Store) -> LinkForm:
    """The link in the identity of a model's training."""
    trajectory = find_trajectory(store, record.parents.get("trajectory", ""))
    given: Json = trajectory.identity.get("link") if trajectory is not None else None
    with suppress(ConfigError, ImportError):  # made by another version, or without the extension
        return form_of_link(given) if given else LinkForm()
    return LinkForm()
