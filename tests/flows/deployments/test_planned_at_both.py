"""A plan over two sites at home: the other site's replies, and home's decision. Both run their own code;
their mailboxes are one folder, so no agent is needed.
"""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.flows.deployments.ordered import work_on
from atelier.flows.run.compose import compose
from atelier.flows.run.plan import Plan, make_plan
from atelier.flows.sites.elsewhere import Elsewhere
from atelier.infra.sites.desk import OrderDesk, Reply, SiteOrder
from atelier.infra.sites.keys import Keys
from atelier.infra.sites.policy import Policies, SitePolicy
from atelier.infra.store.store import Store

WORDS = ("experiment=tiny", "score.baselines=false", "train.link.every=6", "sites=[a,b]")
PATIENCE_S = 60


class BothSites:
    """Sites a and b, which trust each other; a is home."""

    def __init__(self, folder: Path) -> None:
        self.keys = {name: Keys.create(folder / name / "keys", name) for name in "ab"}
        self.stores = {name: Store(str(folder / name / "store")) for name in "ab"}
        self.policies = {name: Policies(keys.folder) for name, keys in self.keys.items()}
        for name, other in ("ab", "ba"):
            self.keys[name].accept(self.keys[other].card.text, other)
        self.mailbox = str(self.keys["a"].mailbox)
        self.allow()

    def allow(self, **more: Any) -> None:
        """What b does for a."""
        about = {"site": "a", "tasks": ("all",), "sends": ("all",), "tracker": "none"}
        self.policies["b"].set(SitePolicy.model_validate(about | more))

    def planned(self, *words: str) -> Plan:
        """By home, while b does what it is asked."""
        frozen, store = compose("pretrain", [*WORDS, *words]), self.stores["a"]
        plan, stop = make_plan(frozen, store), threading.Event()
        there = threading.Thread(target=self._answer, args=(stop,))
        there.start()
        try:
            return Elsewhere(frozen, plan, store, "1").planned(plan)
        finally:
            stop.set()
            there.join(PATIENCE_S)

    def _answer(self, stop: threading.Event) -> None:
        desk = OrderDesk(self.mailbox)
        while not stop.is_set():
            for order in [each for each in desk.orders() if desk.reply(each.id) is None]:
                work_on(desk, order, self.policies["b"], self.mailbox, self.stores["b"])
            time.sleep(0.01)

    def ran(self, order: SiteOrder) -> Reply:
        """What b says of an order to run."""
        desk = OrderDesk(self.mailbox)
        desk.put(order)
        assert work_on(desk, order, self.policies["b"], self.mailbox, self.stores["b"]) == 1
        reply = desk.reply(order.id)
        assert reply is not None
        return reply


@pytest.fixture
def both(tmp_path: Path) -> Iterator[BothSites]:
    """And the environment as it was: an order has a process of its own, which sets it."""
    found = BothSites(tmp_path)
    own = {"ATELIER_SITE": str(found.keys["a"].folder), "ATELIER_ROOT": str(tmp_path / "a" / "store")}
    with mock.patch.dict("os.environ", own):
        yield found


def layout_of(plan: Plan, name: str) -> Parallel:
    [found] = [each["layout"] for each in plan.rows if each["name"] == name]
    return Parallel.model_validate(found)


@pytest.mark.parametrize(
    ("there", "tensor", "shard"), [("{tensor: 2, shard: 1}", 2, 1), ("{shard: 2}", 1, 2)]
)
def test_the_layout_at_another_site_is_in_its_row(
    both: BothSites, there: str, tensor: int, shard: int
) -> None:
    """And in none of home's, which has its own; the training is the same."""
    plan, alone = both.planned(f"sites.parallel={{b: {there}}}", "parallel.shard=1"), both.planned()
    assert not plan.refusals and not alone.refusals
    found, home = layout_of(plan, "train@b"), layout_of(plan, "train")
    assert (found.tensor, found.shard) == (tensor, shard) and (home.tensor, home.shard) == (1, 1)
    made = {each["fingerprint"] for each in (*plan.rows, *alone.rows) if each["kind"] == "model"}
    assert len(made) == 1


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ("{tensor: 3}", "b: parallel.tensor: 3 does not divide model.num_heads 4; tensor=2 would fit"),
        (
            "{shard: 3}",
            "b: parallel: replicate 1 x shard 3 = 3 does not divide train.global_batch 4; 2 ranks",
        ),
        ("{device: cuda}", "b: sites.parallel.b: cuda, but a gets CPUs at b"),
    ],
)
def test_a_layout_that_does_not_fit_there_is_refused_with_its_place(
    both: BothSites, there: str, says: str
) -> None:
    """Of a batch each site has its own rows."""
    [refusal] = both.planned(f"sites.parallel={{b: {there}}}").refusals
    assert refusal.startswith(says)


def test_more_in_an_hour_than_a_policy_lets_cross_is_refused_by_each_site(both: BothSites) -> None:
    """By home's policy for b, and by b's for home; with numbers and a way out."""
    both.policies["a"].set(SitePolicy(site="b", hourly=1e-6))
    plan = both.planned()
    size = plan.links[0]["costs"][0]["bytes"] / 1e9
    assert plan.refusals == [
        f"train.model: a message of {size:.3g} GB, but a allows 1e-06 GB an hour to and from b; another"
        " codec, or atelier site allow b --hourly at a"
    ]
    both.policies["a"].set(SitePolicy(site="b"))
    both.allow(hourly=1.1 * size)  # for a message alone
    [refusal] = both.planned().refusals
    assert re.match(r"b: train.model: \S+ GB an hour at \S+ s a step, but b allows 0.00\d+ to", refusal)
    assert refusal.endswith("a larger link.every, another codec, or atelier site allow a --hourly at b")
    both.allow(hourly=1e6)
    assert not both.planned().refusals


def test_a_training_is_not_begun_again_over_sites(both: BothSites) -> None:
    with pytest.raises(
        ConfigError, match=r"--fresh: is for runs at one site; use it separately at each site"
    ):
        both.planned("resume.fresh=[train]")
    assert not [*OrderDesk(both.mailbox).orders()]


@pytest.mark.parametrize(
    ("pool", "says"),
    [
        ("local", "pool: local is served by Prefect, which cannot run over sites"),
        ("v100", "pool: v100 is only"),
    ],
)
def test_a_pool_on_which_orders_do_not_run_refuses_them(both: BothSites, pool: str, says: str) -> None:
    """Whatever a policy says: before anything is made there."""
    assert not both.planned().refusals
    [order] = OrderDesk(both.mailbox).orders()
    both.allow(pool=pool)
    asked = {"act": "run", "id": "1" * 64, "tasks": {"curate": order.tasks["curate"]}}
    reply = both.ran(order.model_copy(update=asked))
    assert reply.state == "refused" and reply.problem.startswith(says)
    assert not Path(both.stores["b"].root).exists()
