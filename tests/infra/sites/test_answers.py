"""A teacher's answers between two sites with a mailbox and an agent each: real processes, real kills."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.record import FileEntry
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.messages import BODY, Contribution, OfStep, ReaderProgress
from atelier.engine.extensions.sites.rates import rate_to, tell_rate
from atelier.infra.sites.incoming import Arrival, Incoming, NotTaken
from atelier.infra.sites.keys import AUDIT
from tests.engine.extensions.sites.apart import ANSWERS, STEPS, Apart, taught
from tests.engine.extensions.sites.at_sites import killed_until_they_end
from tests.engine.trainings import tokens
from tests.infra.sites.agents import Carrier, check, friends, running, until

DATA, CONTRIBUTED = b"answers" * 100, "ef" * 32


class Carried(Apart):
    """Each site has its own mailbox, and an agent; `silent` cannot be called."""

    def __init__(
        self, folder: Path, text: dict[str, str], silent: str, carrier: Carrier, **more: Any
    ) -> None:
        super().__init__(folder, text, **more)
        self.agents = friends(folder / "agents", silent=silent, carrier=carrier)

    def at(self, site: str) -> dict[str, Any]:
        return {"link": self.link | {"site": site, "mailbox": self.agents[site].mail}}


@pytest.mark.parametrize(
    ("seed", "silent", "carrier"),
    [
        (0, "a", "grpc"),
        pytest.param(1, "b", "grpc", marks=pytest.mark.slow),
        pytest.param(2, "", "grpc", marks=pytest.mark.slow),
        pytest.param(2, "", "bucket", marks=pytest.mark.slow),
    ],
)
def test_with_agents_between_them_a_student_learns_as_with_one_mailbox(
    tmp_path: Path, seed: int, silent: str, carrier: Carrier
) -> None:
    text, draw = {"tokens": tokens(tmp_path / "text")}, random.Random(seed)
    how: dict[str, Any] = {"students": {"student": taught()}, "frozen": False, "ahead": 2}
    plain = Apart(tmp_path / "plain", text, **how)
    plain.train()
    apart = Carried(tmp_path / "carried", text, silent, carrier, **how)
    paths = {site: apart.write(site, **apart.at(site)) for site in "ab"}
    with running(apart.agents.values()) as kill:
        kills = killed_until_they_end(paths, tmp_path, draw, 6, kill)
        boxes = [Mailbox(site.mail, ANSWERS) for site in apart.agents.values()]
        left = [[STEPS], [STEPS]]  # a longer training compares it
        until(lambda: [box.rounds() for box in boxes] == left, "what all have learned from is still there")
    assert kills >= 1
    for role, site in (("teacher", "a"), ("student", "b")):
        assert apart.setups[site].weights(role) == plain.setups[site].weights(role), role
    for name in "ab":
        log = apart.agents[name].keys.folder / AUDIT
        lines = map(json.loads, log.read_text().splitlines())  # a signature of the other site has no kind
        assert check(log) and {line["kind"] for line in lines if "kind" in line} == {"answers", "progress"}


def arrival(peer: str, data: bytes) -> Arrival:
    return Arrival(peer, lambda is_new: None, blocks=[data])


def answers(**more: Any) -> OfStep:
    entry = FileEntry(path=BODY, bytes=len(DATA), sha256=hashlib.sha256(DATA).hexdigest())
    given = {"kind": "answers", "trajectory": ANSWERS, "site": "a", "round": 1, "body": entry} | more
    return OfStep.model_validate(given)


def opened(folder: Path, step: int = 0, safe: int = 0, what: str = "answers") -> Incoming:
    box = Mailbox(str(folder), ANSWERS)
    box.open_answers("b", ("a", "b", "c"), "a", most=1000, ahead=3, what=what)
    box.tell(ReaderProgress(trajectory=ANSWERS, site="b", step=step, safe=safe))
    Mailbox(str(folder), CONTRIBUTED).open("b", ("a", "b", "c"))
    return Incoming(str(folder), "b")


def test_a_message_of_another_kind_than_the_trainings_is_not_taken(tmp_path: Path) -> None:
    """Answers where a generator's drawings are awaited, and the other way round."""
    drawings = OfStep.model_validate(answers().model_dump(by_alias=True) | {"kind": "drawings"})
    incoming = opened(tmp_path / "answers")
    incoming.judge(answers(), "a")
    with pytest.raises(NotTaken, match="no messages of kind drawings"):
        incoming.judge(drawings, "a")
    incoming = opened(tmp_path / "drawings", what="drawings")
    incoming.judge(drawings, "a")
    with pytest.raises(NotTaken, match="no messages of kind answers"):
        incoming.judge(answers(), "a")


@pytest.mark.parametrize(
    ("more", "peer", "when", "problem"),
    [
        ({"site": "c"}, "c", "never", "the teacher of"),
        ({"site": "c"}, "a", "never", "the message is of c, and a sends it"),
        ({"round": 10}, "a", "early", "too far ahead"),
        ({"round": 4}, "a", "over", "step 4 is over"),
        (
            {"body": FileEntry(path=BODY, bytes=1001, sha256="0" * 64)},
            "a",
            "never",
            "at most 1000 are accepted",
        ),
        ({"trajectory": "cd" * 32}, "a", "early", "is not trained here"),
        ({"trajectory": CONTRIBUTED}, "a", "never", "has no messages of kind answers"),
    ],
)
def test_answers_that_are_not_its_teachers_next_ones_are_not_taken(
    tmp_path: Path, more: dict[str, Any], peer: str, when: str, problem: str
) -> None:
    incoming = opened(tmp_path, step=6, safe=4)
    with pytest.raises(NotTaken, match=problem) as refused:
        incoming.take(answers(**({"round": 7} | more)), arrival(peer, DATA))
    assert refused.value.when == when and Mailbox(str(tmp_path), ANSWERS).rounds() == []
    incoming.take(answers(round=9), arrival("a", DATA))
    assert Mailbox(str(tmp_path), ANSWERS).rounds() == [9]


@pytest.mark.parametrize(
    ("site", "peer", "problem"),
    [
        ("b", "c", "the message is of b, and c sends it"),
        ("d", "d", "d takes no part"),
        ("c", "c", "has no teacher here"),
    ],
)
def test_a_progress_that_is_not_its_readers_to_say_is_not_taken(
    tmp_path: Path, site: str, peer: str, problem: str
) -> None:
    said = ReaderProgress(trajectory=ANSWERS, site=site, step=5, safe=5)
    with pytest.raises(NotTaken, match=problem):
        opened(tmp_path).take_progress(said, peer)


def test_a_reader_that_lost_its_checkpoints_says_so_and_is_believed(tmp_path: Path) -> None:
    box = Mailbox(str(tmp_path), ANSWERS)
    box.open_answers("a", ("a", "b"), "a", most=1000, ahead=3)
    incoming = Incoming(str(tmp_path), "a")
    for begun, step, safe in ((1, 9, 8), (2, 0, 0)):
        said = ReaderProgress(trajectory=ANSWERS, site="b", begun=begun, step=step, safe=safe)
        incoming.take_progress(said, "b")
    with pytest.raises(NotTaken):  # what came late
        incoming.take_progress(ReaderProgress(trajectory=ANSWERS, site="b", step=9, safe=8), "b")
    found = box.progress("b")
    assert found is not None and (found.begun, found.step) == (2, 0)


def test_a_contribution_to_a_training_of_answers_is_not_taken(tmp_path: Path) -> None:
    entry = FileEntry(path=BODY, bytes=len(DATA), sha256=hashlib.sha256(DATA).hexdigest())
    head = Contribution(trajectory=ANSWERS, site="a", round=1, body=entry, before={}, safe=0)
    with pytest.raises(NotTaken, match="has no messages of kind contribution") as refused:
        opened(tmp_path).take(head, arrival("a", DATA))
    assert refused.value.when == "never" and Mailbox(str(tmp_path), ANSWERS).rounds() == []


def test_a_reader_that_lost_its_checkpoints_gets_answers_again_and_no_rate_is_of_them(tmp_path: Path) -> None:
    """Those that its agent has had, and that its teacher has given once more."""
    sites = friends(tmp_path)
    boxes = {name: Mailbox(site.mail, ANSWERS) for name, site in sites.items()}
    for name, box in boxes.items():
        box.open_answers(name, ("a", "b"), "a", most=1 << 20, ahead=3)

    def told(begun: int, step: int, safe: int) -> None:
        boxes["b"].tell(ReaderProgress(trajectory=ANSWERS, site="b", begun=begun, step=step, safe=safe))

    def answer(*steps: int) -> None:
        for step in steps:
            boxes["a"].answer(step, "a", [bytes([step]) * 4096])

    told(1, 0, 0)
    answer(1, 2, 3)
    with sites["a"].served() as teacher, sites["b"].served() as reader:
        teacher.exchange("b")
        assert boxes["b"].rounds() == [1, 2, 3]
        told(1, 3, 3)
        reader.exchange("a")
        assert boxes["a"].rounds() == boxes["b"].rounds() == []
        told(2, 0, 0)
        reader.exchange("a")
        answer(1, 2)
        teacher.exchange("b")
        assert boxes["b"].rounds() == [1, 2]
    assert rate_to(sites["a"].mail, "b") is None


@pytest.mark.parametrize("does_push", [True, False])
def test_a_student_that_comes_later_gets_all_answers_in_their_order(tmp_path: Path, does_push: bool) -> None:
    """Where the last ones for the first student still lie at both sites, and are given again."""
    sites = friends(tmp_path, silent="" if does_push else "b")
    boxes = {name: Mailbox(site.mail, ANSWERS) for name, site in sites.items()}
    for name, box in boxes.items():
        box.open_answers(name, ("a", "b"), "a", most=1 << 20, ahead=3)

    def told(begun: int, step: int, safe: int) -> None:
        boxes["b"].tell(ReaderProgress(trajectory=ANSWERS, site="b", begun=begun, step=step, safe=safe))

    told(1, 4, 4)
    for step in (5, 6, 7):
        boxes["a"].answer(step, "a", [bytes([step]) * 4096])
    with sites["a"].served() as teacher, sites["b"].served() as reader:

        def exchange() -> None:
            (teacher if does_push else reader).exchange("b" if does_push else "a")

        exchange()
        told(1, 7, 4)
        exchange()
        assert boxes["a"].rounds() == boxes["b"].rounds() == [5, 6, 7]
        told(2, 0, 0)
        reader.exchange("a")
        for step in range(1, 8):
            boxes["a"].answer(step, "a", [bytes([step]) * 4096])
            exchange()
            assert boxes["b"].rounds() == sorted({5, 6, 7, *range(1, step + 1)})
            told(2, step, 0)
            exchange()


def test_nothing_is_removed_that_a_student_who_has_not_begun_will_ask_for(tmp_path: Path) -> None:
    """What its site says is still of the student before."""
    box, first, later = Mailbox(str(tmp_path), ANSWERS), "1" * 64, "2" * 64
    box.open_answers(
        "a", ("a", "b", "c"), "a", most=1000, ahead=3, students={"b": {later: later}, "c": {first: first}}
    )
    incoming = Incoming(str(tmp_path), "a")
    for step in (1, 2, 3):
        box.answer(step, "a", [DATA])
    for site in ("b", "c"):
        said = {"trajectory": ANSWERS, "site": site, "step": 3, "safe": 3, "students": (first,)}
        incoming.take_progress(ReaderProgress.model_validate(said), site)
    assert box.rounds() == [1, 2, 3]
    said |= {"site": "b", "begun": 2, "students": (later,)}
    incoming.take_progress(ReaderProgress.model_validate(said), "b")
    assert box.rounds() == []


def test_answers_between_which_nobody_learns_go_on_to_the_next_reader(tmp_path: Path) -> None:
    """One whose student begins where that of another site has left for long."""
    sites = friends(tmp_path)
    boxes = {name: Mailbox(site.mail, ANSWERS) for name, site in sites.items()}
    for name, box in boxes.items():
        box.open_answers(name, ("a", "b", "c"), "a", most=1 << 20, ahead=3)
    boxes["b"].tell(ReaderProgress(trajectory=ANSWERS, site="b", step=6, safe=6))
    with sites["a"].served() as teacher, sites["b"].served() as reader:
        for steps in ((1, 2, 3), (7, 8)):
            for step in steps:
                boxes["a"].answer(step, "a", [DATA])
            reader.exchange("a")
            teacher.exchange("b")
    assert boxes["b"].rounds() == [7, 8]


def test_a_site_that_has_lost_its_mailbox_may_begin_with_another_student(tmp_path: Path) -> None:
    """It does not know how often it has begun; a student that is published stays so, whatever is safe."""
    box, first, later = Mailbox(str(tmp_path), ANSWERS), "1" * 64, "2" * 64
    known = {"trajectory": ANSWERS, "site": "b", "begun": 3, "step": 9, "safe": 9, "students": (first,)}
    box.tell(ReaderProgress.model_validate(known))
    box.open_answers("a", ("a", "b"), "a", most=1000, ahead=3, students={"b": {first: first}})
    incoming = Incoming(str(tmp_path), "a")
    said = ReaderProgress(trajectory=ANSWERS, site="b", step=0, safe=0, students=(later,))
    with pytest.raises(NotTaken, match="step 9 was safe"):
        incoming.take_progress(said, "b")
    incoming.take_progress(said.model_copy(update={"students": (), "done": (first,)}), "b")
    found = box.progress("b")
    assert found is not None and (found.safe, found.done) == (9, (first,))
    box.open_answers("a", ("a", "b"), "a", most=1000, ahead=3, students={"b": {later: later}})
    incoming.take_progress(said, "b")
    assert box.progress("b") == said


def test_what_is_said_of_other_trainings_holds_up_none(tmp_path: Path) -> None:
    """Of a version before, damaged, or of a peer whose name looks like such a file."""
    incoming = opened(tmp_path)
    old = {"trajectory": "cd" * 32, "site": "b", "sites": ["a", "b"], "bytes": [7, 8]}
    for folder, text in (("c" * 16, json.dumps(old)), ("d" * 16, "{")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "b-training.json").write_text(text)
    tell_rate(str(tmp_path), "x-training", 1 << 20, 1.0)
    assert {about.trajectory for about in incoming.trainings("a")} == {ANSWERS, CONTRIBUTED}
    incoming.take(answers(), arrival("a", DATA))


def test_a_message_that_is_announced_otherwise_takes_no_more_room(tmp_path: Path) -> None:
    incoming = opened(tmp_path)
    for number in range(5):
        entry = FileEntry(path=BODY, bytes=900, sha256=hashlib.sha256(bytes([number])).hexdigest())
        with pytest.raises(NotTaken, match="ended after"):
            incoming.take(answers(body=entry), arrival("a", b"x" * 100))
    assert len([*Path(Mailbox(str(tmp_path), ANSWERS).folder(1, "a")).iterdir()]) == 1


def test_what_was_safe_stays_safe(tmp_path: Path) -> None:
    box = Mailbox(str(tmp_path), ANSWERS)
    box.open_answers("a", ("a", "b"), "a", most=1000, ahead=3)
    incoming = Incoming(str(tmp_path), "a")
    for step, safe in ((5, 4), (4, 4)):  # it went on from an earlier checkpoint
        incoming.take_progress(ReaderProgress(trajectory=ANSWERS, site="b", step=step, safe=safe), "b")
    with pytest.raises(NotTaken, match="step 4 was safe") as refused:
        incoming.take_progress(ReaderProgress(trajectory=ANSWERS, site="b", step=3, safe=3), "b")
    assert refused.value.when == "over"
    found = box.progress("b")
    assert found is not None and (found.step, found.safe) == (4, 4)
