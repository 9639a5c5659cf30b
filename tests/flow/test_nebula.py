"""Flow nebula over two sites on loopback: pretrained by both, tuned at one, a student of it at the other."""

import json
import os
import random
import signal
from pathlib import Path

import pytest

from tests.catalogues import as_catalogue
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


def test_for_another_student_its_teacher_trains_again_elsewhere(whole: TwoSites, tmp_path: Path) -> None:
    """To the bits of the first run of both, although it is killed meanwhile; then nothing is to do, for this
    student and for the first.
    """
    words = (*WORDS, "score.controls=false", "tune.student.hidden=64")
    code, out, err = whole.home.finish("plan", *words, "--json")
    states = {row["name"]: row["state"] for row in json.loads(out)["tasks"] if "tune" in row["name"]}
    assert code == 0 and states == {"tune.a": "run", "tune.b@b": "replay"}, err
    first = whole.models()
    command = whole.home.start(*words)
    mailbox = whole.home.root / "sites" / "a" / "keys" / "mailbox"

    def is_taught() -> bool:
        """Whether another student has learned from a few steps."""
        said = [json.loads(path.read_text()) for path in mailbox.glob("*/a-progress.json")]
        return any(one["begun"] > 1 and 6 <= one["step"] < 20 for one in said)

    command.until(is_taught, "a student that learns")
    for process in whole.home.processes("site\0work"):
        os.kill(process, signal.SIGKILL)
    assert command.wait() == 0, command.text
    mine, there = whole.models()
    assert there == first[1], "the teacher is published once"
    theirs, _ = ran(tmp_path, words).models()
    assert mine["student"] == theirs["student"] != first[0]["student"]
    for again in (words, WORDS):
        code, out, err = whole.home.finish(*again)
        assert code == 0 and "nothing to do" in out, out + err


def test_what_is_tuned_on_one_language_is_scored_on_another(whole: TwoSites, tmp_path: Path) -> None:
    """With the options of the first; nothing of the other's test was seen in any language; others' are
    refused.
    """
    for name in ("boats", "birds", "bread"):
        pairs = [(f"the {name} of {n}", f"die {name.title()} von {n}") for n in range(60)]
        (tmp_path / f"{name}.mo").write_bytes(as_catalogue(pairs))
    english, german = (
        f"source:{tmp_path / '*.mo'},prompt:{field},completion:catalogue" for field in ("msgid", "msgstr")
    )
    words = ("finetune", "init=student", "tracker=none", "finetune.num_labels=96", "finetune.epochs=30")
    words += (f"finetune.labels={{{english},held_out:0.3}}", "finetune.draws=2", "finetune.scratch=false")
    code, out, err = whole.home.finish(*words, f"also={{german:{{{german}}}}}")
    assert code == 0, out + err
    [report] = [each for each in whole.home.records("report") if each["name"] == "finetune"]
    rows = {row["name"]: row for row in report["summary"]["table"]}
    tuned = {"student fine-tuned", "student on german fine-tuned"}
    others = {
        "student zero-shot",
        "student on german zero-shot",
        "majority class",
        "majority class on german",
    }
    assert {*rows} == tuned | others
    assert all(rows[name]["draws"] == 2 for name in tuned)
    print({name: round(row["accuracy"], 3) for name, row in rows.items()})
    assert all(rows[name]["accuracy"] > rows["majority class"]["accuracy"] + 0.2 for name in tuned)
    labels = {each["name"]: each["fingerprint"] for each in whole.home.records("labels")}
    scores = {each["name"]: each["parents"].get("labels") for each in whole.home.records("scores")}
    assert scores["student on german/pretrained-1 scores"] == labels["german"]
    assert scores["student/pretrained-1 scores"] == labels["labels"]
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps({"text": f"{n}", "label": "ab"[n % 2]}) + "\n" for n in range(40)))
    code, out, err = whole.home.finish(*words, f"also={{other:{{source:{other}}}}}")
    assert code == 2 and "also.other.source" in out + err and "option of the tuned models" in out + err, (
        out + err
    )


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
