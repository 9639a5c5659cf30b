"""Notes of orders cross during a large transfer."""

import threading
from pathlib import Path

import pytest

from atelier.infra.sites.agent import Agent
from atelier.infra.sites.desk import OrderDesk
from tests.infra.sites.agents import Carrier, friends, until, with_agents
from tests.infra.sites.orders import cancellation, order, reply


@pytest.mark.parametrize(("carrier", "silent"), [("grpc", ""), ("grpc", "b"), ("bucket", "")])
def test_an_order_its_replies_and_its_cancellation_wait_for_no_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carrier: Carrier, silent: str
) -> None:
    """What the agents carry else takes as long as the whole test."""
    sites = friends(tmp_path, silent=silent, carrier=carrier)
    home, there = OrderDesk(sites["a"].mail), OrderDesk(sites["b"].mail)
    is_over = threading.Event()
    monkeypatch.setattr(Agent, "exchange", lambda agent, peer: is_over.wait())

    def work() -> None:
        try:
            asked = order()
            home.put(asked)
            until(lambda: [*there.orders()] == [asked], "the order")
            there.put(reply(asked))
            until(lambda: home.reply(asked.id) is not None, "the reply")
            home.put(cancellation(asked))
            until(lambda: there.is_cancelled(asked.id), "the cancellation")
        finally:
            is_over.set()

    with_agents(sites.values(), work)
