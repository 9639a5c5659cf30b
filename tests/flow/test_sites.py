"""One command at two sites: each with its own store, one mailbox; killed and resumed to the same bits."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.checkout import TOP
from tests.faults.command import CommandStore
from tests.flow.kills import weights_of
from tests.flow.two_sites import at, started, wait

pytestmark = pytest.mark.slow
SITES = ("a", "b")
WORDS = (
    "pretrain", "experiment=tiny", "tracker=none", "score.baselines=false", "parallel.threads=1",
    "train.link.rows={a:3,b:5}", "train.link.every=6", "train.checkpoint_every=4",
    "train.link.outer.kind=nesterov", "train.link.outer.lr=0.7", "train.link.outer.momentum=0.9",
)  # fmt: skip


def begin(folder: Path, site: str) -> subprocess.Popen[bytes]:
    return started(folder, site, (*WORDS, *at(folder, site)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sites")
    wait(folder, {site: begin(folder, site) for site in SITES})
    return folder


def models(folder: Path) -> list[dict[str, list[str]]]:
    return [weights_of(CommandStore(folder / site)) for site in SITES]


def test_both_sites_have_the_same_model(whole: Path) -> None:
    one, other = models(whole)
    assert one == other and one
    records = [CommandStore(whole / site).records("model") for site in SITES]
    assert records[0][0]["fingerprint"] == records[1][0]["fingerprint"]
    again = begin(whole, "b")
    wait(whole, {"b": again})
    assert "nothing to do" in (whole / "b.log").read_text()


def test_killed_without_warning_they_go_on_to_the_same_bits(whole: Path, tmp_path: Path) -> None:
    """The whole process tree of a site, while it trains; the other waits."""
    for site in SITES:
        CommandStore(tmp_path / site).copy_data(CommandStore(whole / site))
    runs = {site: begin(tmp_path, site) for site in SITES}
    until = time.monotonic() + 120
    while not list((tmp_path / "mail").glob("*/round-000002/b/message.json")):
        assert time.monotonic() < until and runs["b"].poll() is None, (tmp_path / "b.log").read_text()[-3000:]
        time.sleep(0.01)
    os.killpg(runs["b"].pid, signal.SIGKILL)
    runs["b"].wait()
    runs["b"] = begin(tmp_path, "b")
    wait(tmp_path, runs)
    assert models(tmp_path) == models(whole)


def test_two_sites_do_not_share_a_store(whole: Path) -> None:
    env = os.environ | {"ATELIER_ROOT": str(whole / "a")}
    words = (*WORDS, "train.link.site=b", f"train.link.mailbox={whole / 'mail'}", "train.seed=7")
    first = (*WORDS, "train.link.site=a", f"train.link.mailbox={whole / 'other'}", "train.seed=7")
    run = subprocess.Popen(
        [sys.executable, "-m", "atelier", *first], cwd=TOP, env=env, start_new_session=True
    )
    until = time.monotonic() + 120
    while not list((whole / "other").glob("*/round-000001/a/message.json")):
        assert time.monotonic() < until and run.poll() is None
        time.sleep(0.01)
    said = subprocess.run(
        [sys.executable, "-m", "atelier", *words],
        cwd=TOP,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    os.killpg(run.pid, signal.SIGTERM)
    run.wait(120)
    assert (
        said.returncode == 2
        and "train.link.site: b, but this store has the training of site a" in said.stderr
    )
