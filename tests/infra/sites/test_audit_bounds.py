"""Bounds of an audit log: lines of any caller, an hour by any clock, and named damage."""

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import grpc
import pytest

from atelier.engine.config.error import DamageError
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.messages import ReaderProgress
from atelier.infra.sites import audit as audits
from atelier.infra.sites.agent import Agent
from atelier.infra.sites.audit import MOST_REFUSED, MOST_WHY, Audit
from atelier.infra.sites.desk import OrderDesk
from atelier.infra.sites.hourly import Hourly
from atelier.infra.sites.incoming import NotTaken
from atelier.infra.sites.keys import AUDIT
from atelier.infra.sites.last_hour import HOUR_S, LastHour
from atelier.infra.sites.policy import Policies, SitePolicy
from atelier.infra.sites.transfer import BLOCK, CallError
from tests.infra.sites.agents import answered, asked, check
from tests.infra.sites.orders import order
from tests.infra.sites.test_agent import DATA, head, two


def test_a_trusted_peer_fills_no_disk_with_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "MOST_REFUSED", 5)
    now = [600.0]
    monkeypatch.setattr(audits.time, "monotonic", lambda: now[0])
    log = Audit(tmp_path / "audit.jsonl")
    for number in range(20):
        log.add("refused", who="b", why=f"{number} " + "x" * 100_000)
    log.add("refused", who="c", why="of another")
    now[0] += 60
    log.add("refused", who="b", why="a minute later")
    whys = [json.loads(line)["why"] for line in log.path.read_text().splitlines()]
    assert [why.split()[0] for why in whys] == ["0", "1", "2", "3", "4", "of", "a"]
    assert max(map(len, whys)) < 600 and whys[4].endswith("further refusals in this minute are not logged")
    assert check(log.path)


def test_nor_with_what_it_asks_or_says_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "MOST_LINES", 5)
    a, _ = two(tmp_path, "b")
    a.send(1, DATA)
    OrderDesk(a.mail).put(order())
    answers = Mailbox(a.mail, "cd" * 32)
    answers.open_answers("a", "ab", "a", most=10, ahead=3)
    agent = Agent(a.keys, a.mail)

    about = json.loads((Path(a.box.folder(1, "a")) / "message.json").read_bytes())

    def get(offset: int) -> None:
        assert len(answered(agent, "Get", asked(head=about, offset=offset), "b")) == len(DATA) - offset

    get(0)
    for _ in range(20):
        get(len(DATA))
        assert order().id.encode() in answered(agent, "List", asked("note"), "b")
    assert [line["kind"] for line in a.audited()] == ["contribution", "order"]
    with pytest.raises(NotTaken, match="in this minute") as refused:
        for _ in range(20):
            get(len(DATA) - 1)
    assert refused.value.when == "early" and len(a.audited()) == 2 + 4
    with pytest.raises(NotTaken, match="in this minute"):
        for begun in range(1, 20):
            said = ReaderProgress(trajectory="cd" * 32, site="b", begun=begun, step=0, safe=0)
            document = said.model_dump(mode="json", by_alias=True)
            answered(agent, "Put", asked("progress", document), "b")
    assert len(a.audited()) == 6 + 5


def test_nor_do_strangers_each_with_a_connection_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "MOST_REFUSED", 5)
    monkeypatch.setattr(audits.time, "monotonic", lambda: 600.0)
    log = Audit(tmp_path / "audit.jsonl")
    for port in range(20):
        log.add("refused", who=f"ipv4:127.0.0.1:{port}", why="its certificate is not trusted")
    log.add("refused", who="b", why="of one that is known")
    whos = [json.loads(line)["who"] for line in log.path.read_text().splitlines()]
    assert whos == [*(f"ipv4:127.0.0.1:{port}" for port in range(5)), "b"]
    assert len(log._lines) == 2


def test_a_clock_that_was_set_back_counts_an_hour_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1e9]
    monkeypatch.setattr(time, "time", lambda: now[0])
    log = Audit(tmp_path / "audit.jsonl")
    log.add("sent", who="b", bytes=1000)
    now[0] -= 10 * 3600
    for _ in range(6):
        log.add("sent", who="b", bytes=7)
        now[0] += 3000
    assert log.last_hour("b") == 7 == Audit(tmp_path / "audit.jsonl").last_hour("b")


def test_nothing_is_less_than_nothing(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    hourly = Hourly(a.keys.folder, Audit(a.keys.folder / AUDIT))
    with pytest.raises(NotTaken, match="after its end"), hourly.admitted("b", 7000 - 10**40):
        pass
    hourly.check("b", 0)


class Cut:
    """A link that is cut after so many bytes of a push."""

    block = BLOCK

    def __init__(self, after: int) -> None:
        self.after, self.given, self.offset = after, 0, 0

    def ask(self, call: str, request: bytes, blocks: Iterable[bytes], timeout: float) -> bytes:
        if call == "Offer":
            return json.dumps({"offset": self.offset}).encode()
        for part in blocks:
            self.given += len(part)
            if self.given >= self.after:
                raise CallError(grpc.StatusCode.UNAVAILABLE, "cut")
        return b'{"took": true}'

    def get(self, request: bytes, timeout: float) -> Iterator[bytes]:
        raise NotImplementedError

    def close(self) -> None: ...


def test_an_hour_counts_what_was_pushed_before_a_link_was_cut_and_once(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    Policies(a.keys.folder).set(SitePolicy(site="b", hourly=0.004))
    a.send(1, bytes(2_500_000))
    agent, link = Agent(a.keys, a.mail), Cut(after=1 << 20)
    for _ in range(20):
        with pytest.raises((grpc.RpcError, NotTaken)):
            agent._exchange.send(link, "b", agent._exchange.kinds["message"])
    assert link.given == 2 << 20, "more than the first two times"
    agent._hourly._broken = LastHour()
    agent._hourly._broken.add("b", 1 << 20)
    link.offset, link.after = 1 << 20, 10**9
    agent._exchange.send(link, "b", agent._exchange.kinds["message"])
    with pytest.raises(NotTaken, match=r"2\.5 MB of 4 MB have crossed"):
        agent._hourly.check("b", 1_500_001)
    agent._hourly.check("b", 1_500_000)


def test_an_hour_counts_what_has_come_and_was_dropped(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    Policies(a.keys.folder).set(SitePolicy(site="b", hourly=10e-6))
    agent, begin = Agent(a.keys, a.mail), asked(head=head("b", DATA))
    with pytest.raises(NotTaken, match="does not match its digest"):
        answered(agent, "Put", begin, "b", bytes(len(DATA)))
    with pytest.raises(NotTaken, match="have to wait"):
        answered(agent, "Put", begin, "b", DATA)


@pytest.mark.parametrize("damage", [b"\xff", b"{", b'{"previous": 1}'])
def test_a_damaged_audit_log_is_named_with_its_line(tmp_path: Path, damage: bytes) -> None:
    log = Audit(tmp_path / "audit.jsonl")
    log.add("sent", who="b", bytes=1)
    with log.path.open("ab") as file:
        file.write(damage + b"\n")
    with pytest.raises(DamageError, match=r"audit\.jsonl:2: .*move the file away"):
        Audit(log.path)


def test_files_of_the_same_bytes_have_a_line_each(tmp_path: Path) -> None:
    log = Audit(tmp_path / "audit.jsonl")
    for number in range(2):
        for path in ("x", "y"):
            log.add_once("sent", "b", kind="file", order="ab", path=path, sha256="0" * 64, bytes=number)
    assert [json.loads(line)["path"] for line in log.path.read_text().splitlines()] == ["x", "y"]


def test_what_is_damaged_here_has_few_lines_and_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its reason has a name that a peer gives it."""
    now = [6000.0]
    monkeypatch.setattr(audits.time, "monotonic", lambda: now[0])
    audit, heard = Audit(tmp_path / "audit.jsonl"), list[str]()
    audit.on_damage = heard.append
    for number in range(2 * MOST_REFUSED):
        audit.complain(f"{number} " + "x" * 10_000)
    assert len(heard) == MOST_REFUSED and max(map(len, heard)) == MOST_WHY
    now[0] += 60
    audit.complain(heard[0])  # the same, in the same hour
    assert len(heard) == MOST_REFUSED
    now[0] += HOUR_S
    audit.complain(heard[0])
    assert len(heard) == MOST_REFUSED + 1 and [*audit._complained] == [heard[0]]
