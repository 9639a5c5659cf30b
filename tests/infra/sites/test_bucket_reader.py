"""Who reads all that was ever written to a bucket learns no weights, answers, tasks or names from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from atelier.infra.sites import bucket_channel, bucket_server
from atelier.infra.sites.bucket import Bucket
from atelier.infra.sites.desk import OrderDesk, OrderedTask, SiteOrder
from atelier.infra.sites.sealed import Context, ObjectHead, seal
from tests.engine.extensions.sites.apart import ANSWERS, taught
from tests.engine.extensions.sites.at_sites import all_at_once
from tests.engine.trainings import role, tokens
from tests.infra.sites.agents import friends, with_agents
from tests.infra.sites.test_answers import Carried
from tests.infra.sites.test_linked_training import Linked


class Reader:
    """Keeps all objects that are ever written, with their places, and what was sealed in them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heads, self.bodies, self.written = list[bytes](), list[bytes](), list[bytes]()
        write = Bucket.write

        def sealing(head: ObjectHead, body: bytes, context: Context, *rest: Any) -> bytes:
            self.heads.append(head.model_dump_json().encode())
            self.bodies.append(body)
            return seal(head, body, context, *rest)

        def writing(bucket: Bucket, data: bytes, *parts: str) -> None:
            self.written.append("/".join((bucket.place, *parts)).encode() + data)
            write(bucket, data, *parts)

        monkeypatch.setattr(bucket_channel, "seal", sealing)
        monkeypatch.setattr(bucket_server, "seal", sealing)
        monkeypatch.setattr(Bucket, "write", writing)

    def check(self, *words: str) -> None:
        """Each word is in what was sealed, and in nothing that was written; nor is a part of any message."""
        plain, written = b"\0".join(self.heads + self.bodies), b"\0".join(self.written)
        assert self.written
        for word in words:
            assert word.encode() in plain, word
            assert word.encode() not in written, word
        for body in self.bodies:
            for start in range(0, len(body) - 24, max(24, len(body) // 8)):
                assert body[start : start + 24] not in written

    def long(self) -> list[bytes]:
        """The messages of tensors."""
        return [body for body in self.bodies if b"__metadata__" in body or b"data_offsets" in body]


def test_of_a_linked_training_no_weights_and_no_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(monkeypatch)
    linked = Linked(tmp_path / "linked", {"tokens": tokens(tmp_path / "text")}, "bucket")
    with_agents(linked.sites.values(), lambda: linked.train(role(lr=1e-2)))
    assert not [*linked.sites["a"].bucket.iterdir()]
    assert len(set(linked.models())) == 1
    [first, *_] = reader.long()
    header = first[first.index(b'{"') :]
    document, _ = json.JSONDecoder().raw_decode(header.decode("latin-1"))
    calls = (f'"method":"{name}"' for name in ("Offer", "Put"))  # the names alone are written by chance
    reader.check("contribution", "trajectory", *calls, *(str(name) for name in document))


def test_of_a_training_apart_no_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, text = Reader(monkeypatch), {"tokens": tokens(tmp_path / "text")}
    how: dict[str, Any] = {"students": {"student": taught()}, "frozen": False, "ahead": 2}
    apart = Carried(tmp_path / "carried", text, "", "bucket", **how)

    def train(site: str) -> None:
        apart.setups[site].train(apart.training(site, **apart.at(site)))

    with_agents(apart.agents.values(), lambda: all_at_once("ab", train))
    assert not [*apart.agents["a"].bucket.iterdir()]
    assert reader.long()
    reader.check("answers", "progress", ANSWERS)


def test_of_an_order_no_site_no_task_no_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(monkeypatch)
    sites = friends(tmp_path, ("northern", "southern"), carrier="bucket")
    home, other = sites.values()
    document = {"roles": {"schoolmaster": {"model": "tiny"}}}
    names = {"home": home.name, "site": other.name}
    tasks = {"pretraining": OrderedTask(task="train", products={})}
    order = SiteOrder.of(act="plan", flow="distill", document=document, tasks=tasks, version="1", **names)
    OrderDesk(home.mail).put(order)
    with other.served(), home.served() as agent:
        agent.exchange(other.name)
    assert OrderDesk(other.mail).order(order.id) == order
    reader.check(
        "northern", "southern", "schoolmaster", "pretraining", "distill", '"method":"Tell"', order.id
    )
