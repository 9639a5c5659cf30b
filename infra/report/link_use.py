"""What the messages between sites took of a training, from the metric lines of one of them
(engine/extensions/sites/link_meter.py), as rows of a table.
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
    """Of a training between sites: its sites, whether they have roles of their own, and its codecs."""

    sites: Sequence[str] = ()
    has_roles: bool = False
    codecs: Sequence[str] = ()


def form_of_link(given: Json | Section) -> LinkForm:
    """Of `train.link`, or of what an identity has of it. Raises ConfigError for what is not one."""
    from atelier.engine.extensions.sites.config.train.link import Link  # an extension's: where it was used

    link = given if isinstance(given, Link) else parse(Link, given, "link")
    return LinkForm(link.sites, bool(link.roles), [codec.text for codec in link.codecs])


@dataclass(frozen=True)
class LinkUse:
    """Bytes are of the bodies of messages; what is sent is counted once, however many sites it goes to.
    `seconds`: of sending, waiting and adding; `stall`: their share of the training's time. Of roles apart
    they are of all roles here, and so of the first one alone. `staleness`: mean steps from a contribution to
    its outer step, or that answers were ahead.
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
        """As `HEAD` has them."""
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
    """Of the lines of a role; None where nothing crossed. `beside`: lines of other roles, its own may be
    among them: those of the same gang's step count in what the step took.
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
    """The same of all roles of one gang: they have the same seconds, measured once."""
    return line["step"], line.get("timing", {}).get("step_s", 0.0)


def _seconds_of_steps(lines: Iterable[CurveLine]) -> dict[tuple[int, float], dict[str, float]]:
    """`link_s` of each step by role; a trunk's lines may come twice."""
    found: dict[tuple[int, float], dict[str, float]] = {}
    for line in lines:
        own = line.get("timing", {}).get("link_s", 0.0)
        found.setdefault(_step_of(line), {})[line.get("role", "")] = own
    return found


def link_tables(
    found: Mapping[str, Record], store: Store, curve: Callable[[Store, Record], list[CurveLine]]
) -> list[Table]:
    """A table of the models that were trained at several sites; none where none was. What crossed at other
    sites is in their curves.
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
    """The link of a model's training, as its identity has it."""
    trajectory = find_trajectory(store, record.parents.get("trajectory", ""))
    given: Json = trajectory.identity.get("link") if trajectory is not None else None
    with suppress(ConfigError, ImportError):  # of a version that had another, or without the extension
        return form_of_link(given) if given else LinkForm()
    return LinkForm()
