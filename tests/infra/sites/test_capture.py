"""A recording of all traffic between two agents, over a link or in a bucket, shows no weights, answers, tasks
or names; over a link it has about as many bytes as the agents counted.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from atelier.infra.sites import bucket_link, bucket_server
from atelier.infra.sites.bucket import Bucket
from atelier.infra.sites.desk import OrderDesk, OrderedTask, SiteOrder
from atelier.infra.sites.exchange import SiteExchange
from atelier.infra.sites.sealed import Context, ObjectHead, seal
from tests.engine.extensions.sites.apart import ANSWERS, taught
from tests.engine.extensions.sites.at_sites import all_at_once
from tests.engine.trainings import role, tokens
from tests.infra.sites.agents import Carrier, Site, friends, with_agents
from tests.infra.sites.test_answers import Carried
from tests.infra.sites.test_linked_training import Linked
from tests.infra.sites.wire import wired

NAMES = ("northern", "southern")
WINDOW = 24  # bytes of a message that nobody finds by chance
CARRIERS: list[Carrier] = ["grpc", "bucket"]


class Capture:
    """What agents of this process say before it is encrypted, and all that crosses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.said, self._heads, self._written = (list[bytes]() for _ in range(3))
        answer = SiteExchange.answer

        def answering(
            exchange: SiteExchange, call: str, requests: Iterator[bytes], peer: str
        ) -> Iterator[bytes]:
            yield from map(self._keep, answer(exchange, call, map(self._keep, requests), peer))

        monkeypatch.setattr(SiteExchange, "answer", answering)

    def _keep(self, part: bytes) -> bytes:
        self.said.append(part)
        return part

    @contextmanager
    def of(self, called: Site, calling: Site) -> Iterator[Callable[[], bytes]]:
        """What has crossed between two sites, over a link or in their bucket."""
        if not called.keys.card.is_in_bucket:
            with wired(called, calling) as wire:
                yield lambda: wire.seen
            return
        write = Bucket.write

        def sealing(head: ObjectHead, body: bytes, context: Context, *rest: Any) -> bytes:
            self._heads.append(head.model_dump_json().encode())  # a sender is named in the bucket
            return seal(head, body, context, *rest)

        def writing(bucket: Bucket, data: bytes, *parts: str) -> None:
            self._written.append("/".join((bucket.place, *parts)).encode() + data)
            write(bucket, data, *parts)

        for module in (bucket_link, bucket_server):
            self._patch.setattr(module, "seal", sealing)
        self._patch.setattr(Bucket, "write", writing)
        yield lambda: b"\0".join(self._written)

    def leaks(self, seen: bytes, words: Iterable[str]) -> list[str]:
        """Which of the words, all of which were said, and of the parts of what was said crossed."""
        said = b"\0".join(self.said + self._heads)
        for word in words:
            assert word.encode() in said or word in NAMES, word
        parts = {
            body[start : start + WINDOW]
            for body in self.said
            for start in range(0, len(body) - WINDOW, max(WINDOW, len(body) // 8))
        }
        least = sum(map(len, self.said))
        assert parts and len(seen) > (least / 2 if self._heads else least)
        found = [word for word in words if word.encode() in seen]
        return found + [str(part) for part in parts if part in seen]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_of_a_linked_training_no_weights_and_no_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carrier: Carrier
) -> None:
    capture, text = Capture(monkeypatch), {"tokens": tokens(tmp_path / "text")}
    silent = NAMES[0] if carrier == "grpc" else ""
    linked = Linked(tmp_path / "linked", text, carrier, silent, rows=dict.fromkeys(NAMES, 2))
    calling, called = linked.sites.values()
    with capture.of(called, calling) as seen:
        with_agents(linked.sites.values(), lambda: linked.train(role(lr=1e-2)))
        assert len(set(linked.models())) == 1
        [first, *_] = [part for part in capture.said if b"data_offsets" in part]
        document, _ = json.JSONDecoder().raw_decode(first[first.index(b'{"') :].decode("latin-1"))
        words = ("contribution", "trajectory", *NAMES, *(str(name) for name in document))
        calls = [f'"method":"{name}"' for name in ("Offer", "Put")] if carrier == "bucket" else []
        assert capture.leaks(seen(), (*words, *calls)) == []
    assert carrier == "grpc" or not [*called.bucket.iterdir()]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_of_a_training_apart_no_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carrier: Carrier
) -> None:
    capture, text = Capture(monkeypatch), {"tokens": tokens(tmp_path / "text")}
    how: dict[str, Any] = {"students": {"student": taught()}, "frozen": False, "ahead": 2}
    apart = Carried(tmp_path / "carried", text, "a" if carrier == "grpc" else "", carrier, **how)

    def train(site: str) -> None:
        apart.setups[site].train(apart.training(site, **apart.at(site)))

    with capture.of(apart.agents["b"], apart.agents["a"]) as seen:
        with_agents(apart.agents.values(), lambda: all_at_once("ab", train))
        assert capture.leaks(seen(), ("answers", "progress", ANSWERS)) == []
    assert carrier == "grpc" or not [*apart.agents["a"].bucket.iterdir()]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_of_an_order_no_site_no_task_no_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carrier: Carrier
) -> None:
    capture = Capture(monkeypatch)
    home, other = friends(tmp_path, NAMES, carrier=carrier).values()
    document = {"roles": {"schoolmaster": {"model": "tiny"}}}
    names = {"home": home.name, "site": other.name}
    tasks = {"pretraining": OrderedTask(task="train", products={})}
    order = SiteOrder.of(act="plan", flow="distill", document=document, tasks=tasks, version="1", **names)
    OrderDesk(home.mail).put(order)
    with capture.of(other, home) as seen, other.served(), home.served() as agent:
        agent.exchange(other.name)
        assert OrderDesk(other.mail).order(order.id) == order
        words = (*NAMES, "schoolmaster", "pretraining", "distill", order.id)
        assert capture.leaks(seen(), words) == []


def test_counted_are_the_bytes_that_cross(tmp_path: Path) -> None:
    """Within 7 %, of a message of some megabytes."""
    a, b = friends(tmp_path, silent="a").values()
    data = bytes(range(256)) * 16_000
    for site in (a, b):
        site.box.open(site.name, "ab")
    a.send(1, data)
    with wired(b, a) as wire, b.served(), a.served() as agent:
        agent.exchange("b")
        assert b.box.rounds() == [1]
        lines = a.audited()
        counted = sum(line["bytes"] for line in lines if line["what"] == "sent")
        assert counted == len(data)
        assert 1 <= len(wire.seen) / counted < 1.07
