"""Helper: a site that answers in a bucket, its peers, and an attacker who writes into the bucket."""

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atelier.infra.sites.bucket import IN, Bucket
from atelier.infra.sites.bucket_calls import RequestHead
from atelier.infra.sites.keys import AUDIT, Keys
from atelier.infra.sites.sealed import Context, seal
from tests.infra.sites.agents import Site, asked, friends
from tests.infra.sites.test_agent import DATA, head

NUMBERS = iter(range(1, 10**6))


@dataclass
class Forger:
    """Objects of a call of site `keys` to `to`, made one by one as its agent makes them."""

    keys: Keys
    to: Site
    door: str
    parts: list[bytes]
    method: str = "Put"
    claims: str = ""  # the certificate that it says is its own; '' = its own
    signs: Keys | None = None
    lane: int = 0
    number: int = 0
    call: str = ""
    objects: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.call = self.call or os.urandom(16).hex()
        self.number = self.number or next(NUMBERS)
        digest = ""
        for block, part in enumerate(self.parts):
            own: dict[str, Any] = {
                "sender": self.claims or self.keys.card.digest,
                "last": block == len(self.parts) - 1,
            }
            if block == 0:
                own |= {"method": self.method, "door": self.door, "lane": self.lane, "number": self.number}
            about = {"kind": "request", "recipient": self.to.keys.card.digest, "call": self.call}
            context = Context.model_validate(about | {"block": block, "request": digest})
            made = seal(
                RequestHead.model_validate(own), part, context, self.signs or self.keys, self.to.keys.card
            )
            digest = digest or hashlib.sha256(made).hexdigest()
            self.objects.append(made)


class Bench:
    """A site a that answers in a bucket, its peers b and c, a stranger, and what lies in the bucket."""

    def __init__(self, folder: Path) -> None:
        self.sites = friends(folder, "abc", carrier="bucket")
        self.a, self.b, self.c = self.sites.values()
        for site in self.sites.values():
            site.box.open(site.name, ["a", "b", "c"])
        self.stranger = Site(folder / "x", "d", carrier="bucket")
        self.stranger.trust(self.a)
        self.bucket = Bucket(self.a.keys.card.address, self.a.keys.card.digest)
        self.place = Path(self.a.bucket) / self.a.keys.card.digest[:32]
        self.secret = folder / "secret"
        self.secret.write_bytes(b"not for the bucket")

    @property
    def door(self) -> str:
        return json.loads((self.place / "door").read_bytes())["door"]["nonce"]

    def put(self, call: str, objects: list[bytes]) -> None:
        """As the attacker writes: the first object last, so that all is there when it is looked at."""
        for block in reversed(range(len(objects))):
            self.bucket.write(objects[block], IN, f"{call}.{block}")

    def parts(self, data: bytes = DATA) -> list[bytes]:
        """A message of b, in four objects."""
        begin = asked(head=head("b", data))
        third = len(data) // 3
        return [begin, data[:third], data[third : 2 * third], data[2 * third :]]

    def made(self, **more: Any) -> Forger:
        return Forger(self.b.keys, self.a, self.door, self.parts(), **more)

    def refusals(self, site: Site) -> list[dict[str, Any]]:
        path = site.keys.folder / AUDIT
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line["what"] == "refused"]
