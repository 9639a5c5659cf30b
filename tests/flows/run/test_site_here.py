"""This site among the sites of a run: by its key and its trusted peers; budgets of its policies."""

from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.sites import Sites
from atelier.flows.run.compose import compose
from atelier.flows.run.over_sites import SiteHere, site_here
from atelier.infra.sites.keys import Keys
from atelier.infra.sites.policy import Policies, SitePolicy


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keys:
    """Of site a, which trusts b and c."""
    monkeypatch.setenv("ATELIER_SITE", str(tmp_path / "a"))
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
    found = Keys.create(tmp_path / "a", "a")
    for name in ("b", "c"):
        found.accept(Keys.create(tmp_path / name, name).card.text, name)
    return found


@pytest.mark.parametrize(
    ("sites", "says"),
    [
        (
            Sites(names=("a", "d")),
            "sites: d is not trusted here; atelier site accept <its card>, and accept this site's card there",
        ),
        (Sites(names=("b", "c")), "sites: this site is a, but sites=[b,c]; name it among them"),
    ],
)
def test_a_run_has_this_site_and_those_that_it_trusts(keys: Keys, sites: Sites, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        site_here(sites, "/store")
    assert str(refused.value) == says
    assert site_here(Sites(names=("a", "b", "c")), "/store").name == keys.card.site


@pytest.mark.parametrize("is_loopback", [False, True])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"parallel": {"a": Parallel(shard=2)}}, "sites.parallel.a: is this site; parallel has the layout"),
        ({"mbps": {"a": 8.0}}, "sites.mbps.a: is this site; the link to another has that one's name"),
    ],
)
@pytest.mark.usefixtures("keys")
def test_what_others_alone_have_is_not_given_to_this_site(
    given: dict[str, Any], says: str, is_loopback: bool
) -> None:
    with pytest.raises(ConfigError, match=says):
        site_here(Sites(names=("a", "b"), loopback=is_loopback, **given), "/store")
    there = {key: {"b": value["a"]} for key, value in given.items()}
    assert site_here(Sites(names=("a", "b"), loopback=is_loopback, **there), "/store").name == "a"


def test_a_site_that_is_trusted_no_more_is_refused_by_the_next_run(keys: Keys) -> None:
    words = ["experiment=tiny", "train.link.every=6", "sites=[b,a]"]
    found = compose("pretrain", words)
    assert found.here == SiteHere("a", str(keys.mailbox)) and found.sites.names == ("b", "a")
    keys.revoke("b")
    with pytest.raises(ConfigError, match="b is not trusted here"):
        compose("pretrain", words)


def test_this_site_has_the_mailbox_of_its_agent_and_the_budgets_of_its_policies(keys: Keys) -> None:
    """Of the run's other sites, where there are any."""
    keys.set_mailbox("/data/mail")
    policies = Policies(keys.folder)
    for policy in (SitePolicy(site="b", hourly=2.5), SitePolicy(site="c", hourly=1.0)):
        policies.set(policy)
    assert site_here(Sites(names=("a", "b")), "/store") == SiteHere("a", "/data/mail", {"b": 2.5})
    policies.set(SitePolicy(site="b", tasks=("train",)))
    assert site_here(Sites(names=("a", "b", "c")), "/store") == SiteHere("a", "/data/mail", {"c": 1.0})


def test_on_loopback_this_site_is_the_first_whatever_keys_it_has(keys: Keys) -> None:
    found = site_here(Sites(names=("x", "a"), loopback=True), "/store")
    assert found == SiteHere("x", "/store/sites/x/keys/mailbox") and keys.card.site == "a"
