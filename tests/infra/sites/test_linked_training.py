"""Two sites that train together, each with its own mailbox, and agents between them."""

import random
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.extensions.sites.round_log import FILE
from tests.engine.extensions.sites.at_sites import killed_until_they_end, out_until_they_end
from tests.engine.extensions.sites.test_elastic import check_samples, elastic, log_of
from tests.engine.extensions.sites.test_outer import Sites
from tests.engine.trainings import role, tokens
from tests.infra.sites.agents import Carrier, friends, running


class Linked(Sites):
    """Sites with an agent each: that of `silent` cannot be called, or none has a port and all are reached in
    a bucket.
    """

    def __init__(
        self,
        folder: Path,
        text: dict[str, str],
        carrier: Carrier = "grpc",
        silent: str = "a",
        **link: object,
    ) -> None:
        super().__init__(folder, text, **link)
        silent = silent if carrier == "grpc" else ""
        self.sites = friends(folder / "agents", self.setups, silent=silent, carrier=carrier)

    def mailbox(self, site: str) -> str:
        return self.sites[site].mail


LATE: dict[str, object] = {"codec": {"kind": "int4"}, "delay": 3, "fragments": 2}


@pytest.mark.parametrize(
    ("seed", "link", "carrier"),
    [
        (0, {}, "grpc"),
        pytest.param(1, {}, "grpc", marks=pytest.mark.slow),
        pytest.param(2, LATE, "grpc", marks=pytest.mark.slow),
        pytest.param(0, {}, "bucket", marks=pytest.mark.slow),
        pytest.param(2, LATE, "bucket", marks=pytest.mark.slow),
    ],
    ids=["first", "second", "late", "bucket", "bucket-late"],
)
def test_with_agents_between_them_sites_train_as_with_one_mailbox(
    tmp_path: Path, seed: int, link: dict[str, object], carrier: Carrier
) -> None:
    text = {"tokens": tokens(tmp_path / "text")}
    how = {"every": 4, "outer": {"kind": "nesterov", "lr": 0.7, "momentum": 0.9}} | link
    spec, draw = role(lr=1e-2), random.Random(seed)
    plain = Sites(tmp_path / "plain", text, **how)
    plain.train(spec, checkpoint_every=3)
    linked = Linked(tmp_path / "linked", text, carrier, **how)
    paths = {name: linked.write(name, spec, checkpoint_every=3) for name in linked.setups}
    with running(linked.sites.values()) as kill:
        kills = killed_until_they_end(paths, tmp_path, draw, 6, kill)
    assert kills >= 1
    assert set(linked.models()) == set(plain.models()) and len(set(plain.models())) == 1


@pytest.mark.parametrize(
    ("seed", "coordinator", "carrier"),
    [
        (0, "a", "grpc"),
        pytest.param(1, "b", "grpc", marks=pytest.mark.slow),
        pytest.param(2, "a", "bucket", marks=pytest.mark.slow),
    ],
)
def test_an_elastic_membership_goes_on_without_the_ranks_of_any_site(
    tmp_path: Path, seed: int, coordinator: str, carrier: Carrier
) -> None:
    """The coordinator's own as well: its agent decides. Agents are killed, too."""
    text, draw = {"tokens": tokens(tmp_path / "text")}, random.Random(seed)
    how = elastic(coordinator=coordinator, grace=1.5)
    linked = Linked(tmp_path / "linked", text, carrier, **how)
    sizes: dict[str, Any] = {"steps": 30, "checkpoint_every": 3}
    paths = {name: linked.write(name, role(lr=1e-2), **sizes) for name in linked.setups}
    with running(linked.sites.values()) as kill:
        kills = out_until_they_end(paths, linked.mailbox(coordinator), tmp_path, draw, 8, kill_agent=kill)
    assert kills and len(set(linked.models())) == 1
    lines = log_of(linked, "a")
    assert lines == log_of(linked, "b")
    assert any(len(line.sha256) < 2 for line in lines.values())
    check_samples(lines)
    again = Sites(tmp_path / "again", text, **how, rounds=str(linked.setups["b"].output("m") / FILE))
    again.train(role(lr=1e-2), **sizes)
    assert again.models() == linked.models()
