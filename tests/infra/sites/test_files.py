"""Files of artifacts that a site sends home: those that home ordered, with the digests of their record."""

import hashlib
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.record import FileEntry, Record, identify
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.desk import OrderDesk, OrderedProduct, OrderedTask, Reply, SiteOrder
from atelier.infra.sites.file_items import FileHead, Files
from atelier.infra.sites.files import drop, offer
from atelier.infra.sites.incoming import Arrival, NotTaken
from atelier.infra.sites.kinds import Item

BODY = bytes(range(256)) * 40


def entry(path: str, body: bytes = BODY) -> FileEntry:
    return FileEntry(path=path, bytes=len(body), sha256=hashlib.sha256(body).hexdigest())


def record(name: str = "m") -> Record:
    identity = {"name": name}
    files = (entry("payload-1/model.safetensors"), entry("payload-1/config.json", b"{}"))
    about: dict[str, Any] = {"kind": "model", "version": 1, "identity": identity, "parents": {}}
    made = identify("model", 1, identity, {})
    return Record(name=name, fingerprint=made, files=files, **about).sealed()


class Sites:
    """Home `a` has asked `b` for a model and its files; `b` has made it."""

    def __init__(self, folder: Path, *, is_answered: bool = True) -> None:
        self.record = record()
        self.artifact = OrderedProduct(kind="model", fingerprint=self.record.fingerprint, is_sent=True)
        other = OrderedProduct(kind="model", fingerprint="0" * 64)
        tasks = {"train": OrderedTask(task="train", products={"m": self.artifact, "n": other})}
        about: dict[str, Any] = {"act": "run", "home": "a", "site": "b", "flow": "pretrain"}
        self.order = SiteOrder.of(**about, document={}, tasks=tasks, version="1")
        self.desks = {name: OrderDesk(str(folder / name)) for name in "ab"}
        self.is_trusted = True
        audit = Audit(folder / "audit.jsonl")
        self.files = {
            name: Files(str(folder / name), name, audit, lambda peer: self.is_trusted) for name in "ab"
        }
        self.address = folder / "store" / "model"
        for path, body in (
            (each.path, BODY if each.bytes == len(BODY) else b"{}") for each in self.record.files
        ):
            (self.address / path).parent.mkdir(parents=True, exist_ok=True)
            (self.address / path).write_bytes(body)
        reply = Reply.model_validate(
            {"order": self.order.id, "home": "a", "site": "b", "number": 1, "state": "running",
             "records": [self.record.dump()]}
        )  # fmt: skip
        for name in "ab":
            self.desks[name].put(self.order)
            if is_answered or name == "b":
                self.desks[name].put(reply)

    def head(self, number: int = 0, **changes: Any) -> FileHead:
        head = FileHead(order=self.order.id, artifact=self.artifact, entry=self.record.files[number])
        return head.model_copy(update=changes)

    def item(self, head: FileHead) -> Item[FileHead]:
        return self.files["a"].item(head.model_dump_json().encode(), "b")

    def take(
        self,
        head: FileHead,
        offset: int,
        blocks: Iterable[bytes],
        peer: str = "b",
        note: Callable[[bool], None] = lambda is_new: None,
    ) -> None:
        self.files["a"].take(self.item(head), Arrival(peer, note, offset, blocks))

    def offset(self, head: FileHead) -> int | None:
        return self.files["a"].offset(self.item(head), "b")

    def outgoing(self, peer: str = "a") -> list[FileHead]:
        return [item.head for group in self.files["b"].groups(peer, lambda key: True) for item in group]

    def is_given(self, head: FileHead, peer: str) -> bool:
        try:
            return self.files["b"].path(self.item(head), peer).exists()
        except NotTaken:
            return False

    def arrived(self) -> list[str]:
        folder = Path(self.desks["a"].folder(self.order.id)) / "files"
        return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_what_home_needs_is_offered_carried_in_pieces_and_removed_when_it_is_no_longer_needed(
    tmp_path: Path,
) -> None:
    sites = Sites(tmp_path)
    offer(sites.desks["b"], sites.order, sites.artifact, str(sites.address), sites.record)
    heads = sites.outgoing()
    assert heads == [sites.head(0), sites.head(1)] and not sites.outgoing("c")
    for head in heads:
        body = sites.files["b"].place(head).read_bytes()
        half = len(body) // 2
        with pytest.raises(NotTaken) as broken:
            sites.take(head, 0, [body[:half]])
        assert broken.value.when == "early" and sites.offset(head) == half
        sites.take(head, half, [body[half:]])
        assert sites.offset(head) is None
        assert sites.files["a"].place(head).read_bytes() == body
    drop(sites.desks["b"], sites.order, sites.artifact)
    assert not sites.outgoing()


def test_a_file_is_noted_before_it_exists(tmp_path: Path) -> None:
    """Killed when it was noted, it is noted again as one of which nothing comes anew."""
    sites = Sites(tmp_path)
    head, files, noted = sites.head(), sites.files["a"], list[tuple[bool, bool]]()

    def killed(has_come: bool) -> None:
        noted.append((has_come, files.place(head).exists()))
        if has_come:
            raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        sites.take(head, 0, [BODY], note=killed)
    assert sites.offset(head) == len(BODY)
    sites.take(head, len(BODY), [], note=killed)
    assert files.place(head).read_bytes() == BODY and noted == [(True, False), (False, False)]


def other(kind: str, digit: str) -> OrderedProduct:
    return OrderedProduct(kind=kind, fingerprint=digit * 64, is_sent=True)


@pytest.mark.parametrize(
    ("changes", "why", "when"),
    [
        ({"entry": entry("payload-1/other")}, "is not a file of its record", "never"),
        ({"entry": entry("payload-1/model.safetensors", b"other")}, "is not a file of its record", "never"),
        ({"entry": entry("payload-1/" + "x" * 256)}, "is outside its payload, or too long", "never"),
        ({"entry": entry("payload-1/" + "x/" * 500 + "y")}, "is outside its payload, or too long", "never"),
        ({"artifact": other("model", "0")}, "needs no files", "never"),
        ({"artifact": other("corpus", "1")}, "needs no files", "never"),
        ({"order": "1" * 64}, "there is no order", "never"),
    ],
)  # fmt: skip
def test_no_other_file_is_taken(tmp_path: Path, changes: dict[str, Any], why: str, when: str) -> None:
    sites = Sites(tmp_path)
    with pytest.raises(NotTaken, match=why) as refused:
        sites.take(sites.head(**changes), 0, [BODY])
    assert refused.value.when == when and not sites.arrived()


def test_a_file_comes_from_the_orders_site_after_its_record(tmp_path: Path) -> None:
    sites = Sites(tmp_path / "one")
    with pytest.raises(NotTaken, match=r"there is no order .* to c here"):
        sites.take(sites.head(), 0, [BODY], "c")
    early = Sites(tmp_path / "other", is_answered=False)
    with pytest.raises(NotTaken, match="its record has not arrived") as refused:
        early.take(early.head(), 0, [BODY])
    assert refused.value.when == "early" and not early.arrived()


@pytest.mark.parametrize("seed", range(20))
def test_other_bytes_than_the_records_are_dropped(tmp_path: Path, seed: int) -> None:
    draw, sites = random.Random(seed), Sites(tmp_path)
    body = bytearray(BODY)
    how = draw.choice(("flip", "more", "less", "offset", "untrusted"))
    if how == "flip":
        body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
    cut = draw.randrange(1, len(body))
    blocks = {"more": [bytes(body), b"x"], "less": [bytes(body[:cut])]}.get(how, [bytes(body)])
    sites.is_trusted = how != "untrusted"
    with pytest.raises(NotTaken):
        sites.take(sites.head(), cut if how == "offset" else 0, blocks)
    assert "model.safetensors" not in sites.arrived()


def test_the_records_of_a_reply_are_read_once_and_those_of_the_next_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many files they have, where files are sent and where they are taken."""
    sites, reads, read = Sites(tmp_path), list[str](), Record.read
    offer(sites.desks["b"], sites.order, sites.artifact, str(sites.address), sites.record)

    def counted(document: str, place: str) -> Record:
        reads.append(place)
        return read(document, place)

    monkeypatch.setattr(Record, "read", counted)
    for _ in range(2):
        assert sites.outgoing() == [sites.head(0), sites.head(1)]
        for number in range(2):
            assert sites.is_given(sites.head(number), "a") and sites.offset(sites.head(number)) == 0
    assert len(reads) == 2
    before = sites.desks["b"].reply(sites.order.id)
    assert before is not None and not sites.is_given(sites.head(), "c")
    sites.desks["b"].put(before.model_copy(update={"number": 2, "records": ()}))
    assert not sites.outgoing() and not sites.is_given(sites.head(), "a")


def test_a_path_never_leaves_its_folder() -> None:
    for path in ("../x", "/etc/x", "a/../../x", "a//x", "./x"):
        with pytest.raises(ValueError, match="leaves its artifact"):
            entry(path)
