"""Policies of a site for its peers: one file a peer, in the folder of its keys. Without a file, the site only
exchanges messages of its own trainings.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from pydantic import Field

from atelier.engine.config.base import Json, Spec
from atelier.engine.config.document import parse_as
from atelier.engine.config.error import ConfigError
from atelier.engine.config.site_name import SiteName
from atelier.engine.io.storage import sync_folder, write_bytes
from atelier.infra.sites.desk import SiteOrder

FOLDER, EVERYTHING = "policy", "all"
GIGA = 1e9  # bytes
# a path, or an address of any kind (also file:~/x); not stdlib:json,email or languages:svo
PLACE = re.compile(
    r"^[~/.\\]|^(?!(stdlib(-prose|-code)?|languages):)[A-Za-z][\w+.-]*:\S|[:/\\]{2}|(^|[/\\:,])\.\.([/\\,]|$)|:[/\\]"
)


class SitePolicy(Spec):
    """The policy of this site for one peer."""

    site: SiteName
    tasks: tuple[str, ...] = Field(default=(), description="tasks that run here for it; all = every task")
    reads: tuple[str, ...] = Field(
        default=(), description="folders and URLs that its configurations may name, with all below them"
    )
    uses: tuple[str, ...] = Field(
        default=(), description="own artifacts that its tasks may use, by name; all = every artifact"
    )
    sends: tuple[str, ...] = Field(
        default=(), description="kinds of artifacts whose files are sent to it; all = every kind"
    )
    pool: str = Field(default="here", description="of conf/pool, where its tasks run")
    tracker: str = Field(default="mlflow", description="of conf/tracker")
    hourly: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="GB of messages and files to and from it in an hour, together; 0 = any",
    )

    def runs(self, task: str) -> bool:
        return bool({EVERYTHING, task} & {*self.tasks})

    def refusal(self, order: SiteOrder) -> str:
        """Why this site refuses an order, and the command that would allow it; '' = it does not. The folders
        that may be read are not named.
        """
        wanted = [product for task in order.tasks.values() for product in task.products.values()]
        tasks = dict.fromkeys(task.task for task in order.tasks.values() if not self.runs(task.task))
        kinds = dict.fromkeys(product.kind for product in wanted if product.is_sent)
        kinds = () if EVERYTHING in self.sends else [kind for kind in kinds if kind not in self.sends]
        places = [
            f"{key}={value[:80]}"
            for key, value in texts(order.document)
            if PLACE.search(value) and not any(is_below(value, place) for place in self.reads)
        ]
        why = [
            f"runs no task {' or '.join(tasks)}" if tasks else "",
            f"sends no files of a {' or a '.join(kinds)}" if kinds else "",
            f"reads no such place: {', '.join(places)}" if places else "",
        ]
        words = [
            f"--tasks {','.join((*self.tasks, *tasks))}" if tasks else "",
            f"--send {','.join((*self.sends, *kinds))}" if kinds else "",
            "--read <folder or URL>, beside those that it has" if places else "",
        ]
        if not any(why):
            return ""
        allow = f"at {order.site}: atelier site allow {order.home} {' '.join(filter(None, words))}"
        return f"{order.site} {', '.join(filter(None, why))}, for {order.home}; {allow}"


def is_below(value: str, place: str) -> bool:
    """Whether a text names a place or an entry below it. A text with `..` in any encoding does not."""
    plain = value
    for _ in range(4):
        plain = unquote(plain)
    if unquote(plain) != plain or ".." in re.split(r"[/\\]", plain) or "::" in plain:
        return False
    return value == place or value.startswith(place.rstrip("/") + "/")


def texts(document: Json, key: str = "") -> Iterator[tuple[str, str]]:
    """All texts of a configuration, each with its key; names of keys count too."""
    if isinstance(document, str):
        yield key, document
    elif isinstance(document, Mapping):
        for name, value in document.items():
            place = f"{key}.{name}" if key else name
            yield place, name
            yield from texts(value, place)
    elif isinstance(document, Sequence):
        for value in document:
            yield from texts(value, key)


class Policies:
    """The policies in the folder of a site's keys."""

    def __init__(self, keys: Path) -> None:
        self._folder = keys / FOLDER

    def of(self, peer: str) -> SitePolicy:
        """The policy for a peer. Raises DamageError for an invalid file."""
        path = self._folder / f"{peer}.json"
        try:
            return parse_as(SitePolicy, path.read_bytes(), str(path), "a site's policy")
        except FileNotFoundError:
            return SitePolicy(site=peer)

    def runs_any(self, peer: str) -> bool:
        """Whether any task may run here for a peer. Raises DamageError."""
        return bool(self.of(peer).tasks)

    def has(self, peer: str) -> bool:
        return (self._folder / f"{peer}.json").exists()

    def forget(self, peer: str) -> None:
        """Remove the policy for a peer; durable when it returns."""
        if self.has(peer):
            (self._folder / f"{peer}.json").unlink(missing_ok=True)
            sync_folder(self._folder)

    def set(self, policy: SitePolicy) -> None:
        for place in policy.reads:
            if ".." in place.split("/") or place.startswith("~") or not ("://" in place or place[:1] == "/"):
                raise ConfigError(
                    "--read", f"{place!r} is not an absolute path or a URL", "give one such as /data/text"
                )
        write_bytes(
            str(self._folder / f"{policy.site}.json"), (policy.model_dump_json(indent=1) + "\n").encode()
        )
