"""Sites on this machine for the time of a run: one run of a store has them at a time."""

import threading
from pathlib import Path

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.sites import Sites
from atelier.flows.run.over_sites import LOOPBACK
from atelier.flows.sites import loopback as module
from atelier.flows.sites.loopback import LOCK, loopback
from atelier.infra.sites.keys import Keys

SITES = Sites(names=("a", "b"), loopback=True)


class Agent:
    """In place of a site's agent: it does nothing."""

    address = "127.0.0.1:1"

    def __init__(self, *about: object) -> None:
        pass

    def end(self) -> None:
        pass


@pytest.fixture(autouse=True)
def agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_Agent", Agent)


def test_of_two_first_runs_in_a_store_one_makes_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one comes while they are made."""
    create, refused = Keys.create, list[str]()

    def other() -> None:
        try:
            with loopback(SITES, str(tmp_path)):
                refused.append("")
        except ConfigError as error:
            refused.append(error.problem)

    def create_beside_another(folder: Path, site: str, address: str = "") -> Keys:
        monkeypatch.setattr(Keys, "create", create)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return create(folder, site, address)

    monkeypatch.setattr(Keys, "create", create_beside_another)
    with loopback(SITES, str(tmp_path)):
        [problem] = refused
        assert problem.startswith("another run uses the sites in")
        keys = [Keys(tmp_path / LOOPBACK / name / "keys") for name in SITES.names]
        assert [[*each.peers] for each in keys] == [["b"], ["a"]]
    with loopback(SITES, str(tmp_path)):
        assert (tmp_path / LOOPBACK / LOCK).exists()
        assert [each.card.digest for each in keys] == [
            keys[1].peers["a"].digest,
            keys[0].peers["b"].digest,
        ]


def test_who_is_refused_leaves_nothing(tmp_path: Path) -> None:
    with loopback(SITES, str(tmp_path)):
        before = sorted(tmp_path.rglob("*"))
        with (
            pytest.raises(ConfigError, match="another run uses the sites in"),
            loopback(Sites(names=("a", "c"), loopback=True), str(tmp_path)),
        ):
            pass
        assert sorted(tmp_path.rglob("*")) == before
