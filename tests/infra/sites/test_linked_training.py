"""Two sites that train together, each with its own mailbox, and agents between them."""

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from atelier.engine.io.fork_server import Process
from tests.engine.loop.test_outer import Sites
from tests.engine.trainings import role, tokens
from tests.forks import start_alone
from tests.infra.sites.test_agent import Site

PATIENCE_S = 120


class Linked(Sites):
    """Sites with an agent each; a's cannot be called."""

    def __init__(self, folder: Path, text: dict[str, str], **link: object) -> None:
        super().__init__(folder, text, **link)
        self.sites = {name: Site(folder / "agents", name, is_reachable=name != "a") for name in self.setups}
        for site in self.sites.values():
            for other in self.sites.values():
                if other is not site:
                    site.trust(other)

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

    def train(name: str) -> Process:
        return start_alone("atelier.engine.train", paths[name], tmp_path / f"{name}.log")

    agents: dict[str, subprocess.Popen[bytes]] = {name: site.begin() for name, site in linked.sites.items()}
    ranks = {name: train(name) for name in paths}
    kills, end = 0, time.monotonic() + PATIENCE_S
    try:
        while any(rank.poll() is None for rank in ranks.values()):
            assert time.monotonic() < end, "".join(site.log() for site in linked.sites.values())
            time.sleep(draw.uniform(0.1, 0.5))
            name = draw.choice(["a", "b"])
            if kills < 6 and draw.random() < 0.5:
                agents[name].send_signal(signal.SIGKILL)
                agents[name].wait()
                agents[name] = linked.sites[name].begin()
                kills += 1
            elif kills < 6 and ranks[name].poll() is None:
                ranks[name].kill()
                ranks[name].wait()
                kills += 1
            for each, rank in ranks.items():
                if rank.poll() not in (None, 0):
                    assert rank.poll() == -9, (tmp_path / f"{each}.log").read_text()[-2000:]
                    ranks[each] = train(each)
    finally:
        for process in agents.values():
            process.terminate()
            process.wait()
    assert kills >= 1
    assert set(linked.models()) == set(plain.models()) and len(set(plain.models())) == 1
