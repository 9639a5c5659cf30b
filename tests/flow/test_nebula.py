"""Flow nebula over two sites on loopback: pretrained by both, tuned at one, a student of it at the other."""

import json
import random
from pathlib import Path

import pytest

from tests.faults.command import CommandStore
from tests.flow.kills import weights_of
from tests.flow.two_sites import VICTIMS, TwoSites, killed, ran

pytestmark = pytest.mark.slow
WORDS = ("nebula", "experiment=tiny", "tracker=none", "score.baselines=false", "train.checkpoint_every=4")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TwoSites:
    return ran(tmp_path_factory.mktemp("nebula"), WORDS)


def rounds_of(sites: TwoSites) -> int:
    """Messages that home's mailbox has had of site b: contributions, then answers."""
    home = sites.home.root / "sites" / "a" / "keys" / "mailbox"
    return max((int(path.parent.name.removeprefix("round-")) for path in home.glob("*/round-*/b")), default=0)


def test_one_command_has_models_of_both_sites_and_says_what_the_teacher_brought(whole: TwoSites) -> None:
    home, there = whole.models()
    assert {*home} == {"pretrained", "teacher", "student", "student-alone"}
    assert {*there} == {"pretrained", "teacher"}
    assert all(home[name] == there[name] for name in there)
    [report] = whole.home.records("report")
    page = next(path for path in (whole.home.root / "report").glob("*/*/table.json"))
    rows = {row["name"]: row for row in json.loads(page.read_text())["rows"] if "answer_loss" in row}
    assert {*rows} == {"teacher", "student", "student-alone"} and "delta" in rows["student"], report
    assert rows["student"]["kind"] == "student" and rows["student-alone"]["kind"] == "control"
    print({name: round(row["answer_loss"], 3) for name, row in rows.items()})
    code, out, err = whole.home.finish("lineage", "student")
    assert code == 0 and "teacher @ steps" in out and "init: pretrained" in out, out + err
    code, out, err = whole.home.finish(*WORDS)
    assert code == 0 and "nothing to do" in out, err


@pytest.mark.parametrize("seed", range(4))
def test_killed_anywhere_it_goes_on_to_the_same_bits(whole: TwoSites, tmp_path: Path, seed: int) -> None:
    """An agent, what an agent runs, or the whole command: while both pretrain, or while one teaches."""
    draw, sites = random.Random(seed), TwoSites(tmp_path)
    least = draw.randint(2, 3) if seed % 2 else draw.randint(6, 16)
    killed(sites, whole, WORDS, VICTIMS[seed % 3], lambda: rounds_of(sites) >= least)
    assert sites.models() == whole.models()


def test_a_student_whose_teacher_has_finished_elsewhere_is_refused_with_a_way_out(whole: TwoSites) -> None:
    code, _, err = whole.home.finish(*WORDS, "tune.student.hidden=64")
    assert code == 2 and "is finished, and its answers are gone" in err and "attach=replay" in err, err
    both = "tune.link.roles={b:[teacher,student]}"
    code, out, err = whole.home.finish(*WORDS, "tune.student.hidden=64", both, "score.controls=false")
    assert code == 0, out + err


def test_at_one_site_it_is_one_gang(tmp_path: Path) -> None:
    store = CommandStore(tmp_path)
    code, out, err = store.finish(*WORDS, "sites=[]", "score.controls=false")
    assert code == 0, out + err
    assert {*weights_of(store)} == {"pretrained", "teacher", "student"}
    code, _, err = store.finish(*WORDS, "sites=[]", "score.controls=false", "tune.student.hidden=64")
    assert code == 0, err  # its teacher trains again, for it


def test_pairs_of_a_file_are_learned_too(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"q": f"Say {n}.", "a": f"It is {n}."}) + "\n" for n in range(200)))
    store = CommandStore(tmp_path / "store")
    code, out, err = store.finish(
        *WORDS, "sites=[]", "score.controls=false", f"tune.chats.source={pairs}", "tune.chats.prompt=q",
        "tune.chats.answer=a",
    )  # fmt: skip
    assert code == 0, out + err
    assert {*weights_of(store)} == {"pretrained", "teacher", "student"}
