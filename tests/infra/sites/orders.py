"""Helpers: orders between sites, replies to them and cancellations."""

from typing import Any

from atelier.infra.sites.desk import Cancellation, OrderedProduct, OrderedTask, Reply, SiteOrder

DIGEST = "ab" * 32


def order(home: str = "a", site: str = "b", nonce: str = "", **more: Any) -> SiteOrder:
    product = OrderedProduct(kind="corpus", fingerprint=DIGEST)
    about: dict[str, Any] = {
        "act": "run", "home": home, "site": site, "flow": "pretrain", "version": "atelier 0",
        "document": {"data": {"source": "stdlib"}},
        "tasks": {"curate": OrderedTask(task="curate", products={"corpus": product})},
    }  # fmt: skip
    return SiteOrder.of(nonce=nonce, **(about | more))


def reply(asked: SiteOrder, number: int = 1, state: str = "running", **more: Any) -> Reply:
    about = {"order": asked.id, "home": asked.home, "site": asked.site, "number": number, "state": state}
    return Reply.model_validate(about | more)


def cancellation(asked: SiteOrder) -> Cancellation:
    return Cancellation(order=asked.id, home=asked.home, site=asked.site)


def large(nonce: str, size: int) -> SiteOrder:
    return order(nonce=nonce, document={"data": {"source": "x" * size}})
