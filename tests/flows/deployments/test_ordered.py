"""A site's checks of an order before it runs: products, code and inputs."""

import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.record import Record
from atelier.engine.config.site import Site
from atelier.engine.extensions.sites.config.train.link import link_of
from atelier.engine.io.addresses import NAMED
from atelier.flows.deployments import ordered as module
from atelier.flows.deployments.ordered import check_inputs, check_linked, check_tasks, frozen_of, work_on
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.flows.run.over_sites import linked_at
from atelier.flows.sites.elsewhere import code_of
from atelier.infra.code.provenance import version
from atelier.infra.dag import Node
from atelier.infra.launch.supervisor import rank_env
from atelier.infra.sites.desk import OrderDesk, OrderedProduct, OrderedTask, SiteOrder
from atelier.infra.sites.policy import Policies, SitePolicy
from atelier.infra.store.lease import Holder
from atelier.infra.store.store import Store

WORDS = (
    "experiment=tiny", "score.baselines=false", "train.link.every=6", "train.link.rows={a:4,b:4}",
    "train.link.site=a", "train.link.mailbox=/mail",
)  # fmt: skip
NAMES = ("curate", "learn_tokenizer", "encode", "train")
POLICY = SitePolicy(site="a", tasks=("all",), tracker="none")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """And the environment as it was: an order has a process of its own, which sets it."""
    with mock.patch.dict("os.environ", {"ATELIER_ROOT": str(tmp_path)}):
        yield Store(str(tmp_path))


def ordered(store: Store, names: tuple[str, ...] = NAMES, **changes: Any) -> SiteOrder:
    frozen = compose("pretrain", [*WORDS])
    tasks = {
        node.name: OrderedTask(
            task=node.task,
            code=code_of(node),
            products={
                key: OrderedProduct(kind=product.kind, fingerprint=product.fingerprint)
                for key, product in node.products.items()
            },
        )
        for node in collect_nodes(frozen, store)
        if node.name in names
    }
    about: dict[str, Any] = {"act": "run", "home": "a", "site": "b", "flow": "pretrain", "version": version()}
    return SiteOrder.of(**(about | {"document": frozen.document, "tasks": tasks} | changes))


def drawn(order: SiteOrder, store: Store) -> list[Node]:
    return collect_nodes(frozen_of(order, POLICY, "/other", store), store)


def with_task(order: SiteOrder, name: str, **changes: Any) -> SiteOrder:
    task = order.tasks[name].model_copy(update=changes)
    return order.model_copy(update={"tasks": {**order.tasks, name: task}})


def test_a_site_draws_what_home_has_drawn_and_nothing_beside_it(store: Store) -> None:
    order = ordered(store)
    nodes = drawn(order, store)
    assert sorted(node.name for node in nodes) == sorted(NAMES)
    check_tasks(order, nodes)
    check_inputs(order, nodes, POLICY, store)
    [train] = [node for node in nodes if node.name == "train"]
    link = link_of(train.training.train)
    assert (link.site, link.mailbox) == ("b", "/other")


def test_what_is_another_thing_here_than_at_home_is_refused(store: Store) -> None:
    order = ordered(store)
    nodes = drawn(order, store)
    [(key, product)] = order.tasks["train"].products.items()
    other = {key: product.model_copy(update={"fingerprint": "0" * 64})}
    for changed, why in (
        (with_task(order, "train", products={}), "makes model at b, not the requested artifacts"),
        (with_task(order, "train", products=other), "is model 00000000 at a"),
        (with_task(order, "train", code="1" * 64), "has digest 11111111 at a"),
        (with_task(order, "train", task="score"), "b has no such task in pretrain"),
    ):
        with pytest.raises(ConfigError, match=why):
            check_tasks(changed, nodes)
    for name in ("learn_tokenizer", "encode"):  # another tokenizer, other tokens: of another text
        [(key, product)] = order.tasks[name].products.items()
        other = {key: product.model_copy(update={"fingerprint": "0" * 64})}
        why = rf"is {product.kind} 00000000 at a, but {product.fingerprint[:8]} at b.*use the same text"
        with pytest.raises(ConfigError, match=why):
            check_tasks(with_task(order, name, products=other), nodes)
    with pytest.raises(ConfigError, match=r"sites.parallel.b: cuda, but a gets CPUs at b"):
        drawn(ordered(store, parallel=Parallel(device="cuda")), store)
    with pytest.raises(ConfigError, match=r"version: a has atelier 0, b has"):
        drawn(ordered(store, version="atelier 0"), store)
    with pytest.raises(ConfigError, match="b has no flow 'nothing'"):
        drawn(ordered(store, flow="nothing"), store)


def test_what_the_tasks_do_not_make_themselves_is_not_used(store: Store) -> None:
    order = ordered(store, ("train",))
    with pytest.raises(ConfigError, match=r"train.(tokens.main|tokenizer): b has no"):
        check_inputs(order, drawn(order, store), POLICY, store)


def own(store: Store, names: tuple[str, ...]) -> None:
    """Artifacts of the site's own, called as the tasks that would make them."""
    order = ordered(store)
    for node in drawn(order, store):
        for product in node.products.values() if node.name in names else ():
            about: dict[str, Any] = product.model_dump(include={"kind", "version", "identity", "parents"})
            draft = Record(name=f"our-{node.name}", fingerprint=product.fingerprint, **about)
            store.publish(draft, Holder.me(node.name))


@pytest.mark.parametrize(
    ("uses", "role", "name"),
    [
        ((), "tokens.main", "tokens our-encode"),
        (("our-learn_tokenizer", "encode"), "tokens.main", "tokens our-encode"),
        (("our-encode",), "tokenizer", "tokenizer our-learn_tokenizer"),
    ],
)
def test_what_a_site_has_of_its_own_is_not_used_unless_its_policy_names_it(
    store: Store, uses: tuple[str, ...], role: str, name: str
) -> None:
    own(store, ("learn_tokenizer", "encode"))
    order, policy = ordered(store, ("train",)), POLICY.model_copy(update={"uses": uses})
    with pytest.raises(ConfigError) as refused:
        check_inputs(order, drawn(order, store), policy, store)
    assert str(refused.value) == (
        f"train.{role}: b does not let a use its {name} (it may use: {', '.join(uses) or 'none'}); at b:"
        f" atelier site allow a --use {','.join((*uses, name.split()[1]))}"
    )


@pytest.mark.parametrize("uses", [("our-encode", "our-learn_tokenizer"), ("all",)])
def test_what_a_policy_names_is_used(store: Store, uses: tuple[str, ...]) -> None:
    """And what the tasks of one order make for each other, whoever has made it before."""
    own(store, ("learn_tokenizer", "encode"))
    order, policy = ordered(store, ("train",)), POLICY.model_copy(update={"uses": uses})
    check_inputs(order, drawn(order, store), policy, store)
    whole = ordered(store)
    check_inputs(whole, drawn(whole, store), POLICY, store)


def test_tasks_run_on_the_pool_of_the_policy_and_an_order_names_none(store: Store) -> None:
    order = ordered(store)
    for pool, gpu in (("here", "cpu"), ("v100", "v100")):
        found = frozen_of(order, POLICY.model_copy(update={"pool": pool}), "/other", store)
        assert found.pool.gpu == gpu and found.tracker.kind == "none"
    gpus = POLICY.model_copy(update={"pool": "v100"})
    asked: Any = frozen_of(ordered(store, parallel=Parallel(device="cuda")), gpus, "/other", store).document
    assert asked["parallel"]["device"] == "cuda"
    for key in ("pool", "tracker", "sites", "resume"):
        named = order.model_copy(update={"document": {**order.document, key: {"gpu": "v100"}}})
        with pytest.raises(ConfigError, match=rf"^{key}: "):
            drawn(named, store)


def test_a_site_trains_with_those_alone_whose_policy_says_so(store: Store, tmp_path: Path) -> None:
    order, policies = ordered(store), Policies(tmp_path / "keys")
    nodes = drawn(order, store)
    check_linked(order, nodes, policies)
    elsewhere = order.model_copy(update={"site": "c"})
    with pytest.raises(ConfigError, match="c is not one of its sites"):
        check_linked(elsewhere, nodes, policies)
    of_another = order.model_copy(update={"home": "c"})
    with pytest.raises(ConfigError, match="b runs no task 'train' with a"):
        check_linked(of_another, nodes, policies)
    policies.set(SitePolicy(site="a", tasks=("train",)))
    check_linked(of_another, nodes, policies)


def test_the_gangs_of_an_order_use_the_interface_of_the_site_of_its_pool(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is the agent's, whatever a worker there has."""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "ATELIER_ADDRESS")
    for name in names:
        monkeypatch.setenv(name, "before")
    document = linked_at(compose("pretrain", [*WORDS]).document, "", "")
    order, policies, pools = ordered(store, document=document), Policies(tmp_path / "keys"), list[str]()
    policies.set(POLICY)
    desk, ranks = OrderDesk(str(tmp_path / "mail")), list[dict[str, str]]()
    desk.put(order)

    def run(*_: Any) -> int:
        ranks.append(rank_env(store.root, 1))
        return 0

    def site_of(pool: Any) -> Site:
        pools.append(pool.site)
        return Site(interface="eth7", address="node-7", store="/elsewhere")

    monkeypatch.setattr(module, "_run", run)
    monkeypatch.setattr(module, "site_of", site_of)
    assert work_on(desk, order, policies, str(tmp_path / "mail"), store) == 0, desk.reply(order.id)
    assert pools == ["here"]
    [found] = ranks
    assert [found[name] for name in names[:2]] == ["eth7"] * 2
    assert (os.environ["ATELIER_ADDRESS"], os.environ["ATELIER_ROOT"]) == ("node-7", store.root)


class Moving(http.server.BaseHTTPRequestHandler):
    """What the policy lets be read, which leads to what it does not."""

    asked: ClassVar[list[str]] = []
    elsewhere = ""

    def do_GET(self) -> None:
        self.asked.append(self.path)
        is_moved = self.path.startswith("/moved")
        self.send_response(302 if is_moved else 200)
        if is_moved:
            self.send_header("Location", self.elsewhere)
        self.send_header("Content-Length", "0" if is_moved else "6")
        self.send_header("ETag", "1")
        self.end_headers()
        if self.command == "GET" and not is_moved:
            self.wfile.write(b"secret")

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None: ...


def test_an_order_is_led_nowhere_that_its_policy_does_not_name(store: Store, tmp_path: Path) -> None:
    """Home chooses the addresses, as a form does: a redirect ends at this site's own services no more."""
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Moving) for _ in range(2)]
    for each in servers:
        threading.Thread(target=each.serve_forever, args=(0.05,), daemon=True).start()
    read, inner = (f"http://127.0.0.1:{each.server_address[1]}" for each in servers)
    Moving.elsewhere = f"{inner}/metadata.txt"
    policies, desk = Policies(tmp_path / "keys"), OrderDesk(str(tmp_path / "mail"))
    policies.set(POLICY.model_copy(update={"reads": (read,)}))
    document = compose("pretrain", [*WORDS, f"data.source={read}/moved.txt"]).document
    order = ordered(store, document=linked_at(document, "", ""))
    desk.put(order)
    try:
        assert work_on(desk, order, policies, str(tmp_path / "mail"), store) == 1
    finally:
        for each in servers:
            each.shutdown()
            each.server_close()
    reply = desk.reply(order.id)
    assert reply is not None and f"is not a public address; {NAMED}" in reply.problem
    assert {*Moving.asked} == {"/moved.txt"} and rank_env(store.root, 1)[NAMED] == read.removeprefix(
        "http://"
    )
