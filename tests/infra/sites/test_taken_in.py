"""Files from another site in the store at home: only those ordered, complete, in their payload."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.base import fingerprint
from atelier.engine.config.error import AtelierError, DamageError
from atelier.engine.config.record import FileEntry, Record, identify
from atelier.infra.dag import Product
from atelier.infra.sites.desk import Reply
from atelier.infra.sites.files import folder_of, is_taken, take_in
from atelier.infra.store.store import Store
from tests.infra.sites.test_files import BODY, Sites, entry

BODIES = {len(BODY): BODY, 2: b"{}"}  # of entries, by their size


class Home:
    """Home has asked `b` for the model m; `b` sends what a test says."""

    def __init__(self, folder: Path) -> None:
        self.sites, self.root = Sites(folder, is_answered=False), folder / "home"
        self.store, self.desk, self.artifact = (
            Store(str(self.root)),
            self.sites.desks["a"],
            self.sites.artifact,
        )
        one = self.sites.record
        about: dict[str, Any] = {"version": one.version, "identity": one.identity, "parents": one.parents}
        self.product = Product(kind="model", name="asked for", **about)

    def gets(self, record: Record | dict[str, Any], *, damaged: str = "") -> None:
        """A reply with this record, and the files of a whole one; one of them may be `damaged`."""
        about = {"order": self.sites.order.id, "home": "a", "site": "b", "number": 1, "state": "finished"}
        document = record.dump() if isinstance(record, Record) else record
        self.desk.put(Reply.model_validate(about | {"records": [document]}))
        for each in record.files if isinstance(record, Record) else ():
            path = self.path(each)
            path.parent.mkdir(parents=True, exist_ok=True)
            body = BODIES[each.bytes]
            path.write_bytes(body[::-1] if each.path == damaged else body)

    def path(self, file: FileEntry) -> Path:
        return folder_of(self.desk, self.sites.order.id, self.artifact) / file.path

    def takes(self, product: Product | None = None) -> bool:
        return take_in(self.desk, self.sites.order, self.artifact, product or self.product, self.store)

    def found(self) -> Record | None:
        return self.store.find("model", self.artifact.fingerprint)

    def stored(self) -> list[Path]:
        return [path for path in self.root.rglob("*") if path.is_file()]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def other(record: Record, **changes: Any) -> Record:
    """The record of something else, as its site would publish it."""
    changed = record.model_copy(update=changes)
    made = identify(changed.kind, changed.version, changed.identity, changed.parents)
    return changed.model_copy(update={"fingerprint": made}).sealed()


def test_what_was_asked_for_is_published_under_homes_name_with_the_site_that_made_it(home: Home) -> None:
    assert not home.takes()  # no word of it yet
    late = home.sites.record.model_copy(update={"provenance": {"ended": 9e10}}).sealed()
    home.gets(late)
    path = home.path(late.files[0])
    body = path.read_bytes()
    path.unlink()
    assert not home.takes() and not home.stored()  # a file is still on its way
    path.write_bytes(body)
    assert home.takes()
    found = home.found()
    assert found is not None and found.name == "asked for" and found.files == late.files
    about: dict[str, Any] = {**found.provenance}
    assert about["site"] == "b" and about["ended"] < 9e10  # by this clock, it is not from the future
    assert not home.store.check(found)
    assert is_taken(home.desk, home.sites.order.id, home.artifact) and not path.exists()


CHANGES: list[dict[str, Any]] = [
    {"version": 2},
    {"parents": {"tokens.main": "a" * 64}},
    {"identity": {"name": "another"}},
    {"kind": "adapter"},
]


@pytest.mark.parametrize("changes", CHANGES)
def test_a_record_of_something_else_is_not_taken(home: Home, changes: dict[str, Any]) -> None:
    """As its site publishes it; and as if it were what was asked for, which its fingerprint gives away."""
    record = home.sites.record
    for sent in (other(record, **changes), record.model_copy(update=changes).sealed()):
        home.gets(sent)
        assert not home.takes() and not home.stored()


@pytest.mark.parametrize("changes", CHANGES[:3])
def test_a_record_that_is_not_of_the_product_is_refused_whatever_the_order_says(
    home: Home, changes: dict[str, Any]
) -> None:
    """What is published is what the DAG here means by the product, not what an order in the mailbox does."""
    home.gets(home.sites.record)
    with pytest.raises(AtelierError, match="b sends model m, not the ordered artifact"):
        home.takes(home.product.model_copy(update=changes))
    assert not home.stored()


@pytest.mark.parametrize(
    "path",
    [
        "record.json",
        "leases/000001.json",
        "payload-1",
        "payload-/model.safetensors",
        "x/payload-1/model",
        "payload-1/" + "x" * 256,
        "payload-1/" + "x/" * 500 + "y",
    ],
)
def test_a_file_outside_the_payload_is_refused(home: Home, path: str) -> None:
    """It would stand where the store keeps its own."""
    record = home.sites.record
    with suppress(OSError):  # no file has such a name
        home.gets(record.model_copy(update={"files": (entry(path),)}).sealed())
    with pytest.raises(AtelierError, match=f"b sends m with '{path[:80]}', which is outside its payload"):
        home.takes()
    assert not home.stored()


@pytest.mark.parametrize("path", ["../record.json", "/etc/passwd", "payload-1/../record.json"])
def test_a_path_that_leaves_its_artifact_makes_no_record(home: Home, path: str) -> None:
    document: dict[str, Any] = home.sites.record.dump()
    document["files"][0]["path"] = path
    home.gets(document | {"digest": fingerprint(document | {"digest": ""})})
    assert not home.takes() and not home.stored()


def test_a_file_that_is_not_its_record_s_makes_no_artifact(home: Home) -> None:
    record = home.sites.record
    home.gets(record, damaged=record.files[0].path)
    with pytest.raises(DamageError, match=r"model.safetensors"):
        home.takes()
    assert home.found() is None and not home.stored()
