"""Who keeps all that crosses the link between two agents learns no weights, answers, tasks or names from it,
and finds about as many bytes as the agents have counted.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atelier.infra.sites.desk import OrderDesk, OrderedTask, SiteOrder
from atelier.infra.sites.grpc_server import GrpcServer
from tests.engine.extensions.sites.apart import ANSWERS, taught
from tests.engine.extensions.sites.at_sites import all_at_once
from tests.engine.trainings import role, tokens
from tests.infra.sites.agents import friends, with_agents
from tests.infra.sites.test_answers import Carried
from tests.infra.sites.test_linked_training import Linked
from tests.infra.sites.wire import Wire, wired

NAMES = ("northern", "southern")
WINDOW = 24  # bytes of a message that nobody finds by chance


class Plain:
    """What the calls to agents of this process say, before it is encrypted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[bytes] = []
        answer, answers = GrpcServer._answer, GrpcServer._answers  # pyright: ignore[reportPrivateUsage]

        def answering(server: GrpcServer, work: Any, requests: Iterator[bytes], context: Any) -> bytes:
            return self._keep(answer(server, work, map(self._keep, requests), context))

        def streaming(
            server: GrpcServer, work: Any, requests: Iterator[bytes], context: Any
        ) -> Iterator[bytes]:
            yield from map(self._keep, answers(server, work, map(self._keep, requests), context))

        monkeypatch.setattr(GrpcServer, "_answer", answering)
        monkeypatch.setattr(GrpcServer, "_answers", streaming)

    def _keep(self, part: bytes) -> bytes:
        self.said.append(part)
        return part


def leaks(plain: Plain, wire: Wire, *words: str) -> list[str]:
    """Which of the words, all of which were said, and of the parts of what was said crossed the link."""
    said, seen = b"\0".join(plain.said), wire.seen
    for word in words:
        assert word.encode() in said or word in NAMES, word
    parts = {
        body[start : start + WINDOW]
        for body in plain.said
        for start in range(0, len(body) - WINDOW, max(WINDOW, len(body) // 8))
    }
    assert parts and len(seen) > sum(map(len, plain.said))
    return [word for word in words if word.encode() in seen] + [str(part) for part in parts if part in seen]


def test_of_a_linked_training_no_weights_and_no_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, text = Plain(monkeypatch), {"tokens": tokens(tmp_path / "text")}
    linked = Linked(tmp_path / "linked", text, silent=NAMES[0], rows=dict.fromkeys(NAMES, 2))
    with wired(linked.sites[NAMES[1]], linked.sites[NAMES[0]]) as wire:
        with_agents(linked.sites.values(), lambda: linked.train(role(lr=1e-2)))
        assert len(set(linked.models())) == 1
        [first, *_] = [part for part in plain.said if b"data_offsets" in part]
        document, _ = json.JSONDecoder().raw_decode(first[first.index(b'{"') :].decode("latin-1"))
        words = ("contribution", "trajectory", *NAMES, *(str(name) for name in document))
        assert leaks(plain, wire, *words) == []


def test_of_a_training_apart_no_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, text = Plain(monkeypatch), {"tokens": tokens(tmp_path / "text")}
    how: dict[str, Any] = {"students": {"student": taught()}, "frozen": False, "ahead": 2}
    apart = Carried(tmp_path / "carried", text, "a", "grpc", **how)

    def train(site: str) -> None:
        apart.setups[site].train(apart.training(site, **apart.at(site)))

    with wired(apart.agents["b"], apart.agents["a"]) as wire:
        with_agents(apart.agents.values(), lambda: all_at_once("ab", train))
        assert leaks(plain, wire, "answers", "progress", ANSWERS) == []


def test_of_an_order_no_site_no_task_no_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Plain(monkeypatch)
    home, other = friends(tmp_path, NAMES).values()
    document = {"roles": {"schoolmaster": {"model": "tiny"}}}
    names = {"home": home.name, "site": other.name}
    tasks = {"pretraining": OrderedTask(task="train", products={})}
    order = SiteOrder.of(act="plan", flow="distill", document=document, tasks=tasks, version="1", **names)
    OrderDesk(home.mail).put(order)
    with wired(other, home) as wire, other.served(), home.served() as agent:
        agent.exchange(other.name)
        assert OrderDesk(other.mail).order(order.id) == order
        assert leaks(plain, wire, *NAMES, "schoolmaster", "pretraining", "distill", order.id) == []


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
