"""`name@alias` is the artifact that last got the alias."""

from pathlib import Path

import pytest

from atelier.engine.config.error import AtelierError, ConfigError
from atelier.infra.store.alias import aliases, give_alias
from atelier.infra.store.gc import Collector
from atelier.infra.store.store import Store
from tests.infra.records import Shelf


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(Store(str(tmp_path)))


def test_an_alias_moves_and_a_name_without_one_is_the_newest(shelf: Shelf) -> None:
    first, second = (shelf.publish("model", "a/b", step=step) for step in (1, 2))
    give_alias(shelf.store.root, first, "best", "by hand")
    assert shelf.store.resolve("a/b@best") == first
    give_alias(shelf.store.root, second, "best", "by hand")
    assert shelf.store.resolve("a/b@best") == second
    assert [str(one) for one in aliases(shelf.store.root)] == ["a/b@best"]
    assert shelf.store.resolve("a/b@latest") == shelf.store.resolve("a/b")


def test_an_unknown_alias_is_no_other_model(shelf: Shelf) -> None:
    record = shelf.publish("model", "a", step=1)
    with pytest.raises(AtelierError, match=r"no alias a@best .*there is a@latest, the newest"):
        shelf.store.resolve("a@best")
    give_alias(shelf.store.root, record, "best", "by hand")
    with pytest.raises(AtelierError, match="there is a@best"):
        shelf.store.resolve("a@bets", "model")


@pytest.mark.parametrize("alias", ["latest", "v12", "Best", "a b", "", "../x"])
def test_a_bad_alias_is_refused(shelf: Shelf, alias: str) -> None:
    with pytest.raises(ConfigError, match="cannot be given"):
        give_alias(shelf.store.root, shelf.publish("model", "a", step=1), alias, "")


def test_what_an_alias_means_is_kept(shelf: Shelf) -> None:
    kept, other = (shelf.publish("model", "a", step=step) for step in (1, 2))
    give_alias(shelf.store.root, kept, "best", "by hand")
    waste = {one.url for one in Collector(shelf.store).find().waste}
    address = shelf.store.address
    assert address("model", other.fingerprint) in waste
    assert address("model", kept.fingerprint) not in waste
