"""Two sites that train together, each with its own mailbox, and agents between them."""

import random
from pathlib import Path

import pytest

from tests.engine.loop.at_sites import killed_until_they_end
from tests.engine.loop.test_outer import Sites
from tests.engine.trainings import role, tokens
from tests.infra.sites.agents import friends, running


class Linked(Sites):
    """Sites with an agent each; a's cannot be called."""

    def __init__(self, folder: Path, text: dict[str, str], **link: object) -> None:
        super().__init__(folder, text, **link)
        self.sites = friends(folder / "agents", self.setups, silent="a")

    def mailbox(self, site: str) -> str:
        return self.sites[site].mail


@pytest.mark.parametrize(
    ("seed", "link"),
    [(0, {}), (1, {}), (2, {"codec": {"kind": "int4"}, "delay": 3, "fragments": 2})],
    ids=["first", "second", "late"],
)
def test_with_agents_between_them_sites_train_as_with_one_mailbox(
    tmp_path: Path, seed: int, link: dict[str, object]
) -> None:
    text = {"tokens": tokens(tmp_path / "text")}
    how = {"outer": {"kind": "nesterov", "lr": 0.7, "momentum": 0.9}} | link
    spec, draw = role(lr=1e-2), random.Random(seed)
    plain = Sites(tmp_path / "plain", text, **how)
    plain.train(spec, checkpoint_every=3)
    linked = Linked(tmp_path / "linked", text, **how)
    paths = {name: linked.write(name, spec, checkpoint_every=3) for name in linked.setups}
    with running(linked.sites.values()) as kill:
        kills = killed_until_they_end(paths, tmp_path, draw, 6, kill)
    assert kills >= 1
    assert set(linked.models()) == set(plain.models()) and len(set(plain.models())) == 1
