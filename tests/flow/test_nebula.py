"""Flow nebula over two sites on loopback: pretrained by both; a generator, and a student with an adapter, at
one site, a detector and the teacher at the other; translations of held-out sentences.
"""

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
FIXED = (*WORDS, "score.controls=true", "train.link.codec.kind=int8")  # a chosen codec depends on the clock
PRETRAINED = {"pretrained", "generator", "detector"}
CONTROLS = ("all-weights", "one-site", "no-codec")
TUNED = {"detector/pretrained-0", "detector/scratch-0"}  # on pairs of sentences


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TwoSites:
    return ran(tmp_path_factory.mktemp("nebula"), FIXED)


def rounds_of(sites: TwoSites) -> int:
    """Messages that home's mailbox has had of site b: contributions, then answers."""
    home = sites.home.root / "sites" / "a" / "keys" / "mailbox"
    return max((int(path.parent.name.removeprefix("round-")) for path in home.glob("*/round-*/b")), default=0)


def test_one_command_has_models_of_both_sites_and_says_what_the_teacher_brought(whole: TwoSites) -> None:
    home, there = whole.models()
    assert {*home} == {*PRETRAINED, "teacher", "student", "student-alone"} | TUNED
    assert {*there} == {"pretrained", "detector", "teacher"}
    assert all(home[name] == there[name] for name in there)
    [report] = whole.home.records("report")
    page = next(path for path in (whole.home.root / "report").glob("*/*/table.json"))
    rows = {row["name"]: row for row in json.loads(page.read_text())["rows"] if "answer_loss" in row}
    assert {*rows} == {"teacher", "student", "student-alone"} and "delta" in rows["student"], report
    assert rows["student"]["kind"] == "student" and rows["student-alone"]["kind"] == "control"
    adapters = {each["name"]: each["parents"]["base"] for each in whole.home.records("adapter")}
    [base] = [each for each in whole.home.records("model") if each["name"] == "pretrained"]
    assert adapters == dict.fromkeys(("student-adapter", "student-alone-adapter"), base["fingerprint"])
    print({name: round(row["answer_loss"], 3) for name, row in rows.items()})
    code, out, err = whole.home.finish("lineage", "student")
    assert code == 0 and "teacher @ steps" in out and "init: pretrained" in out, out + err
    assert "init: detector" in out and "teacher @ steps 0-15: generator" in out, out
    code, out, err = whole.home.finish(*FIXED)
    assert code == 0 and "nothing to do" in out, err


def test_the_report_has_translations_beside_a_copy_and_a_dictionary_and_says_that_it_is_a_trial(
    whole: TwoSites,
) -> None:
    page = next(whole.home.root.glob("report/*/*/report.md")).read_text()
    assert "path only" in page and "chrF" in page and "BLEU" in page
    for name in ("student", "student-alone", "teacher", "copy of the prompt", "word-by-word dictionary"):
        assert f"| {name} " in page, name
    for name in ("detector fine-tuned", "detector on sov fine-tuned", "majority class on sov"):
        assert f"| {name} " in page, name
    assert "one draw, so nothing tells from chance" in page
    exams = [json.loads(path.read_text()) for path in whole.home.root.glob("exam/*/*/exam.json")]
    assert len(exams) == 3 and all(exam["set"] == "translation" for exam in exams)
    rivals = [{name: each["chrf"]["value"] for name, each in exam["rivals"].items()} for exam in exams]
    assert rivals[0] == rivals[1] == rivals[2]
    assert rivals[0]["word-by-word dictionary"] > rivals[0]["copy of the prompt"] + 10


def test_a_slow_link_gets_a_smaller_codec_and_both_sites_end_with_the_same_models(tmp_path: Path) -> None:
    """At 4 Mbit/s, whole weights would take longer than the training. Both end with the same model."""
    sites = ran(tmp_path, (*WORDS, "sites.trial_mbps=4"))
    home, there = sites.models()
    assert home["pretrained"] == there["pretrained"] and home["teacher"] == there["teacher"]
    [log] = tmp_path.glob("model/*/*/rounds.jsonl")
    codecs = [json.loads(line)["codecs"] for line in log.read_text().splitlines()]
    assert {each["kind"] for both in codecs for each in both.values()} <= {"int4", "int8"}, codecs


@pytest.mark.parametrize("seed", range(4))
def test_killed_anywhere_it_goes_on_to_the_same_bits(whole: TwoSites, tmp_path: Path, seed: int) -> None:
    """An agent, what an agent runs, or the whole command: while both pretrain, or while one teaches."""
    draw, sites = random.Random(seed), TwoSites(tmp_path)
    least = draw.randint(2, 3) if seed % 2 else draw.randint(6, 16)
    killed(sites, whole, FIXED, VICTIMS[seed % 3], lambda: rounds_of(sites) >= least)
    assert sites.models() == whole.models()


def test_for_another_student_its_teacher_trains_again_elsewhere(whole: TwoSites, tmp_path: Path) -> None:
    """To the bits of the first run of both, although it is killed meanwhile; then nothing is to do, for this
    student and for the first.
    """
    words = (*FIXED[:-2], FIXED[-1], "tune.trainable.rank=16")
    code, out, err = whole.home.finish("plan", *words, "--json")
    states = {row["name"]: row["state"] for row in json.loads(out)["tasks"]}
    assert code == 0 and {key: states[key] for key in ("tune.a", "tune.b@b")} == {
        "tune.a": "run",
        "tune.b@b": "replay",
    }, (states, err)
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
    for again in (words, FIXED):
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
    code, out, err = store.finish(*WORDS, "sites=[]")
    assert code == 0, out + err
    assert {*weights_of(store)} == {*PRETRAINED, *TUNED, "teacher", "student"}
    code, _, err = store.finish(
        *WORDS, "sites=[]", "tune.trainable.kind=full", "~tune.trainable.rank", "~tune.trainable.alpha"
    )
    assert code == 0, err  # its teacher trains again, for it


def test_pairs_of_a_file_are_learned_too(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"q": f"Say {n}.", "a": f"It is {n}."}) + "\n" for n in range(200)))
    store = CommandStore(tmp_path / "store")
    code, out, err = store.finish(
        *WORDS, "sites=[]", f"tune.chats.source={pairs}", "tune.chats.prompt=q", "tune.chats.answer=a",
    )  # fmt: skip
    assert code == 0, out + err
    assert {*weights_of(store)} == {*PRETRAINED, *TUNED, "teacher", "student"}


def test_controls_are_compared_in_one_report_and_a_killed_one_has_the_bits_of_a_run_of_its_own(
    whole: TwoSites, tmp_path: Path
) -> None:
    """Nothing of the first run is trained again, and a run at one site has nothing left to train."""
    words = (*FIXED, f"tune.controls=[{','.join(CONTROLS)}]")
    first = whole.models()[0]
    command = whole.home.start(*words)
    command.until(
        lambda: any(each["name"] == "pretrained-one-site" for each in whole.home.records("model")),
        "a control's pretraining",
    )
    for process in whole.home.processes("atelier\0nebula"):
        os.kill(process, signal.SIGKILL)
    command.wait()
    whole.home.wait_for_quiet()
    code, out, err = whole.home.finish(*words)
    assert code == 0, out + err
    found, ways = whole.models()[0], ("one-site", "no-codec")
    made = {f"{name}-{way}" for way in ways for name in (*PRETRAINED, "teacher", "student")}
    assert {*found} - {*first} == made | {"student-all-weights"}
    assert {name: found[name] for name in first} == first
    assert found["pretrained-no-codec"] != found["pretrained"] != found["pretrained-one-site"]
    assert len({str(found[name]) for name in found if name.startswith("student")}) == 5
    page = max(whole.home.root.glob("report/*/*/report.md"), key=os.path.getmtime).read_text()
    for name in (*(f"student-{name}" for name in CONTROLS), *(f"pretrained-{way}" for way in ways)):
        assert f"| {name} " in page, name
    alone = ran(tmp_path, (*WORDS, "sites=[]")).models()[0]
    assert {name: found[f"{name}-one-site"] for name in (*PRETRAINED, "teacher", "student")} == {
        name: weights for name, weights in alone.items() if name not in TUNED
    }
    for of_its_own in ((*WORDS, "sites=[]"), (*WORDS, "train.link.codec.kind=none")):
        code, out, err = whole.home.finish("plan", *of_its_own, "--json")
        states = {row["name"]: row["state"] for row in json.loads(out)["tasks"]}
        trained = [
            state for name, state in states.items() if name.split(".")[0] in ("train", "detect", "tune")
        ]
        assert code == 0 and {*trained} == {"reuse"}, (states, err)
