"""One command over two sites: each has a store, keys and an agent of its own, on loopback."""

import json
import os
import random
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from atelier.engine.config.metric import CurveLine, merge
from atelier.infra.sites.policy import Policies, SitePolicy
from tests.faults.command import CommandStore
from tests.flow.kills import weights_of
from tests.flow.two_sites import VICTIMS, TwoSites, at, killed, ran, started, wait

pytestmark = pytest.mark.slow
WORDS = (
    "pretrain", "experiment=tiny", "tracker=none", "score.baselines=false", "train.checkpoint_every=4",
    "train.link.every=6", "sites.names=[a,b]", "sites.loopback=true",
)  # fmt: skip
THERE = ("curate", "encode", "learn_tokenizer", "train")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TwoSites:
    return ran(tmp_path_factory.mktemp("over"), WORDS)


def test_both_sites_have_the_model_and_home_shows_the_tasks_of_both(whole: TwoSites) -> None:
    one, other = whole.models()
    assert one == other and one
    [home], [there] = whole.home.records("model"), whole.other.records("model")
    assert home["fingerprint"] == there["fingerprint"]
    assert not whole.other.records("scores")  # nobody needs them there
    [run] = [each for each in whole.home.runs() if each["status"] == "finished"]
    assert all(run["states"][f"{name}@b"] == "done" for name in THERE)


def test_again_there_is_nothing_to_do_and_plan_asks_the_other_site(whole: TwoSites) -> None:
    code, out, err = whole.home.finish(*WORDS)
    assert code == 0 and "nothing to do" in out, err
    code, out, err = whole.home.finish("plan", *WORDS, "train.seed=2", "--json")
    assert code == 0, err
    rows = {row["name"]: row for row in json.loads(out)["tasks"]}
    assert [rows[f"{name}@b"]["state"] for name in THERE] == ["reuse", "reuse", "reuse", "run"]
    assert rows["train@b"]["site"] == "b" and rows["train"]["site"] == "" and rows["train@b"]["params"] > 0
    whole.home.wait_for_quiet()


def test_plan_page_and_report_say_what_crossed(whole: TwoSites) -> None:
    """The bytes that were planned are those that both sites sent; the page of the run has a row a site and
    one for the link.
    """
    code, out, err = whole.home.finish("plan", *WORDS, "--json")
    assert code == 0, err
    document = json.loads(out)
    [link], sites = document["links"], document["sites"]
    [cost] = link["costs"]
    assert [(each["site"], each["run"]) for each in sites] == [("a", 0), ("b", 0)]
    for store in (whole.home, whole.other):
        timings = [line.get("timing", {}) for lines in curves(store) for line in lines]
        assert sum(each.get("link_bytes", 0) for each in timings) == cost["sent"] > 0
        assert sum(each.get("link_received_bytes", 0) for each in timings) == cost["sent"]
    assert link["mbps"]["b"] > 0 and cost["seconds"] > 0  # as the agent has measured
    size = f"{cost['sent'] / 1e6:.3g}MB"
    with closing(sqlite3.connect(Path(os.environ["PREFECT_HOME"]) / "prefect.db")) as database:
        pages = [
            json.loads(page) for [page] in database.execute("select data from artifact where key = 'sites'")
        ]
    [page] = {page for page in pages if f"| {size} | {size} |" in page}  # other runs' pages are there as well
    rows = [row for row in page.splitlines() if row.startswith("| ")]
    assert rows[1].startswith("| a | 7 of 7 |") and "train 24/24" in rows[1]
    assert rows[2].startswith("| b | 4 of 4 |") and "train@b 24/24" in rows[2]
    assert rows[4].startswith(f"| train.model | a, b | {link['messages']} | {size} | {size} |")
    assert f"none x {link['messages']}" in rows[4]
    [report] = whole.home.root.glob("report/*/payload-*/report.md")
    assert "## Between sites" in report.read_text() and f"| {size} | {size} |" in report.read_text()


def curves(store: CommandStore) -> Iterator[list[CurveLine]]:
    for folder in store.root.glob("trajectory/*/metrics"):
        yield merge((path.name, path.read_text()) for path in folder.iterdir())


@pytest.mark.parametrize("seed", range(3))
def test_killed_without_warning_it_goes_on_to_the_same_bits(
    whole: TwoSites, tmp_path: Path, seed: int
) -> None:
    """Home's command, an agent, or what the agent runs: in a round that is drawn. What has a parent left is
    started again by it; after home's end the same command goes on.
    """
    least, victim = random.Random(seed).choice((1, 2)), VICTIMS[seed]
    sites = TwoSites(tmp_path)
    killed(sites, whole, WORDS, victim, lambda: sites.rounds() >= least)
    assert sites.models() == whole.models()


def test_a_task_that_fails_at_home_ends_the_other_sites(whole: TwoSites, tmp_path: Path) -> None:
    """It would wait for ever: a message that comes to home damaged ends home's training."""
    sites = TwoSites(tmp_path)
    sites.home.copy_data(whole.home)
    command = sites.home.start(*WORDS)
    command.until(lambda: sites.rounds() >= 1, "a round")
    [place] = (tmp_path / "sites" / "a" / "keys" / "mailbox").glob("*/round-000001")
    damaged = place.with_name("round-000003") / "b" / "message.json"
    damaged.parent.mkdir(parents=True, exist_ok=True)
    damaged.write_bytes(b"{")
    assert command.wait() == 1 and "round-000003" in command.text and "site serve" not in command.text
    [reply] = [each for each in sites.replies() if each["state"] == "stopped"]
    assert reply["tasks"]["train"]["state"] == "stopped"
    sites.home.wait_for_quiet()


@pytest.mark.parametrize("site", ["a", "b"])
def test_a_site_that_lost_a_training_whose_messages_are_gone_is_refused(
    whole: TwoSites, tmp_path: Path, site: str
) -> None:
    """It would wait for ever for a site that has finished: the plan says so, and what to do."""
    sites = TwoSites(tmp_path)  # without a message
    sites.other.root.mkdir(parents=True)
    stores = {"a": (sites.home, whole.home), "b": (sites.other, whole.other)}
    for name, (store, source) in stores.items():
        store.copy_data(source)
        for kind in ("model", "trajectory") if name != site else ():
            shutil.copytree(source.root / kind, store.root / kind)
    code, out, err = sites.home.finish(*WORDS)
    assert code == 2 and "and its messages are gone" in err, out + err
    other = "b" if site == "a" else "a"
    assert f"{other} is finished" in err and f"remove that training at {other} too" in err, err
    sites.home.wait_for_quiet()


def test_a_stop_at_home_stops_both(whole: TwoSites, tmp_path: Path) -> None:
    sites = TwoSites(tmp_path)
    command = sites.home.start(*WORDS, "train.steps=600")
    command.until(lambda: sites.rounds() >= 2, "a round")
    began = time.monotonic()
    command.interrupt()
    assert command.wait() == 1
    took = time.monotonic() - began
    print(f"both sites have stopped after {took:.1f} s")
    assert took < 15, command.text
    [reply] = [each for each in sites.replies() if "train" in each["tasks"] and each["state"] == "stopped"]
    assert reply["tasks"]["train"]["state"] == "stopped" and sites.other.steps()
    sites.home.wait_for_quiet()


def test_a_teacher_and_its_student_train_at_both_sites_with_one_word_more(tmp_path: Path) -> None:
    sites = TwoSites(tmp_path)
    command = sites.home.start("distill", *WORDS[1:])
    assert command.wait() == 0, command.text
    one, other = sites.models()
    assert one == other and {*one} == {"teacher", "student_a"}


APART = (
    "distill", *(word for word in WORDS[1:] if "link" not in word), "train.link.ahead=3",
    "train.link.roles={a:[teacher],b:[student_a]}",
)  # fmt: skip


TYPED = tuple(word for word in APART if "sites" not in word)


@pytest.fixture(scope="module")
def whole_apart(tmp_path_factory: pytest.TempPathFactory) -> TwoSites:
    return ran(tmp_path_factory.mktemp("apart"), APART)


def test_a_teacher_here_and_its_student_there_are_one_run(whole_apart: TwoSites, tmp_path: Path) -> None:
    """The student's model comes home and is scored; it is what the same command at each site makes."""
    sites = whole_apart
    home, there = sites.models()
    assert {*home} == {"teacher", "student_a"} and {*there} == {"student_a"}
    assert there["student_a"] == home["student_a"]
    assert {record["name"] for record in sites.home.records("scores")} >= {
        "teacher scores",
        "student_a scores",
    }
    code, out, err = sites.home.finish(*APART)
    assert code == 0 and "nothing to do" in out, err
    code, out, err = sites.home.finish("lineage", "student_a")
    assert code == 0 and "teacher @ steps" in out, out + err
    runs = {site: started(tmp_path, site, (*TYPED, *at(tmp_path, site))) for site in ("a", "b")}
    wait(tmp_path, runs)
    assert weights_of(CommandStore(tmp_path / "a"))["teacher"] == home["teacher"]
    assert weights_of(CommandStore(tmp_path / "b"))["student_a"] == home["student_a"]


@pytest.mark.parametrize("seed", range(3))
def test_a_run_with_its_teacher_elsewhere_is_killed_and_goes_on_to_the_same_bits(
    whole_apart: TwoSites, tmp_path: Path, seed: int
) -> None:
    """Home's command, an agent, or what the agent runs: at a step that is drawn."""
    step, sites = random.Random(seed).randint(14, 20), TwoSites(tmp_path)  # the student begins at step 12
    name = f"*/round-{step:06d}/a/message.json"
    killed(sites, whole_apart, APART, VICTIMS[seed], lambda: any(sites.keys.mailbox.glob(name)))
    assert sites.models() == whole_apart.models()


def test_a_task_that_runs_elsewhere_brings_home_what_is_needed_there(whole: TwoSites, tmp_path: Path) -> None:
    """Training alone at site b: its model comes home, with its record, to be scored; nothing else does."""
    sites = TwoSites(tmp_path)
    words = tuple(word for word in WORDS if "link" not in word)
    command = sites.home.start(*words, "sites.at={train:b}")
    assert command.wait() == 0, command.text
    assert sites.models()[0] == sites.models()[1] != {}
    [home], [there] = sites.home.records("model"), sites.other.records("model")
    assert (
        home["files"] == there["files"] and home["provenance"]["site"] == "b" and sites.home.records("scores")
    )
    assert not list(
        (tmp_path / "sites").glob("a/keys/mailbox/orders/*/files/*/*")
    )  # used, and not fetched again
    assert not list(sites.home.root.glob("trajectory/*")) and sites.other.steps()
    code, out, err = sites.home.finish(*words, "sites.at={train:b}")
    assert code == 0 and "nothing to do" in out, err
    alone = CommandStore(tmp_path / "alone")
    code, _, err = alone.finish(*[word for word in words if "sites" not in word])
    assert code == 0 and weights_of(alone) == sites.models()[0], err  # as if it had run here
    Policies(sites.keys.folder).set(SitePolicy(site="a", tasks=("all",), sends=("scores",)))
    code, _, err = sites.home.finish(*words, "sites.at={train:b}", "train.seed=2")
    assert (
        code == 2
        and "b sends no files of a model, for a; at b: atelier site allow a --send scores,model" in err
    ), err


def test_what_a_policy_does_not_allow_is_refused_before_anything_runs(
    whole: TwoSites, tmp_path: Path
) -> None:
    sites = TwoSites(tmp_path)
    code, out, err = sites.home.finish("plan", *WORDS)
    assert code == 0 and "\nat a: " in out, out + err  # the line of totals
    for policy, why in (
        (SitePolicy(site="a", tasks=("curate", "encode")), "b runs no task learn_tokenizer or train, for a"),
        (SitePolicy(site="a"), "at b: atelier site allow a --tasks curate,encode,learn_tokenizer,train"),
    ):
        Policies(sites.keys.folder).set(policy)
        code, _, err = sites.home.finish(*WORDS)
        assert code == 2 and why in err, err
    assert not sites.other.root.exists() and not sites.home.records("corpus")
