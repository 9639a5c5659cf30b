"""The hourly budget for files of artifacts, set at either site and with either site calling."""

from contextlib import suppress
from pathlib import Path

import pytest

from atelier.infra.sites.agent import Agent
from atelier.infra.sites.files import offer
from atelier.infra.sites.incoming import NotTaken
from atelier.infra.sites.policy import GIGA, Policies, SitePolicy
from tests.infra.sites.agents import answered, asked, friends, make_due
from tests.infra.sites.test_files import BODY, Sites

LESS, ENOUGH = len(BODY) - 1, 10 * len(BODY)  # bytes an hour


class Made:
    """Sites `a`, which has asked for a model, and `b`, which has made it; sites in `silent` dial out."""

    def __init__(self, folder: Path, silent: str = "") -> None:
        self.orders = made = Sites(folder / "orders")
        self.sites = friends(folder, silent=silent)
        for name, site in self.sites.items():
            site.mail = str(folder / "orders" / name)
        offer(made.desks["b"], made.order, made.artifact, str(made.address), made.record)
        self.head = made.head()
        self.large, self.small = (made.files["a"].place(made.head(number)) for number in (0, 1))

    def let(self, site: str, size: float) -> None:
        """What crosses in an hour to and from the other site, by the policy of this one."""
        policy = SitePolicy(site="ab".replace(site, ""), hourly=size / GIGA)
        Policies(self.sites[site].keys.folder).set(policy)

    def agent(self, name: str) -> Agent:
        return Agent(self.sites[name].keys, self.sites[name].mail)


@pytest.mark.parametrize("at", ["a", "b"])
@pytest.mark.parametrize("silent", ["", "a"])
def test_a_file_that_would_be_too_much_waits_and_a_smaller_one_crosses(
    tmp_path: Path, silent: str, at: str
) -> None:
    """Pushed by the site that made it, or fetched by the one that asked for it."""
    made = Made(tmp_path, silent)
    made.let(at, LESS)
    here, there = ("a", "b") if silent else ("b", "a")
    agent = made.agent(here)
    with made.sites[there].served() as served:
        for _ in range(3):
            with suppress(NotTaken):
                agent.exchange(there)
        assert made.small.exists() and not made.large.exists()
        made.let(at, ENOUGH)
        make_due(agent._exchange.later[there])
        make_due(served._exchange.later[here])
        agent.exchange(there)
    assert made.large.read_bytes() == BODY


@pytest.mark.parametrize("call", ["Offer", "Put", "Get"])
def test_whatever_a_peer_asks_waits_where_it_would_be_too_much(tmp_path: Path, call: str) -> None:
    """Also what skips the offer before it."""
    made = Made(tmp_path)
    name, peer = ("b", "a") if call == "Get" else ("a", "b")
    made.let(name, LESS)
    agent, request = made.agent(name), asked("file", made.head.model_dump(mode="json"))
    with pytest.raises(NotTaken, match="have to wait: ") as refused:
        answered(agent, call, request, peer, BODY)
    assert refused.value.when == "early" and not made.large.exists()
    made.let(name, ENOUGH)
    answered(agent, call, request, peer, BODY)
