"""Store folders with strange names, given in strange ways: all files lie in the named folder, or one line
refuses it.
"""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import fsspec
import mlflow
import sqlalchemy
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from atelier.engine.config.error import UNSEEN, AtelierError
from atelier.engine.io import remote, storage
from atelier.flows.run.store_check import check_root
from atelier.flows.sweep.command import _literal
from atelier.infra.stack.settings import Credentials, mlflow_server, prefect_database, prefect_home
from atelier.infra.stack.stack import Stack
from atelier.infra.store.store import Store
from atelier.infra.tracking.own_database import own_files, settle
from tests.foreign.search import Case
from tests.infra.records import Shelf

COUNT = 30
PIECES = (
    "::", "?", "%25", "%", "${HOME}", "$HOME", "ü", "u\u0308", "日本", "😀", " ", "#", ";", "'", '"',
    "\n", "\t", "\r", "~", "-", "--help", "=", "&", "+", ",", "@", "[a]", "*", "{a,b}", "\\", "|", "<",
    "`", "!", "(", "file:", "c:", "memory:", "sqlite:", ".", "..", "\x1b[2J", "\u202e", "\udcff",
    "a" * 90, "e", "store", "null", "%s", "%(x)s", "{0}", "://", ":memory:", ":", "?uri=true", "\u00a0",
    "\u2028", "\ufeff", "CON", "x" * 300,
)  # fmt: skip
WAYS = ("absolute", "relative", "dot", "slash", "slashes", "link", "up", "file")


def draw(rng: random.Random) -> Case:
    name = "".join(rng.choices(PIECES, k=rng.choice((1, 1, 2, 3, 5))))
    return {"name": name, "below": rng.choice(("", "s", "?", "a b")), "way": rng.choice(WAYS)}


def check(case: Case, folder: Path) -> str:
    name = case["name"]
    home, away = folder / "home", folder / "away"
    for one in (home, away):
        one.mkdir()
    target = home / name / case["below"] if case["below"] else home / name
    before = os.getcwd()
    os.chdir(home)
    try:
        given = address(case, home, target)
        with patch.dict(os.environ, {"ATELIER_ROOT": given, "HOME": str(away)}):
            return _used(Path(os.path.abspath(target)), home, away)
    finally:
        os.chdir(before)


def address(case: Case, home: Path, target: Path) -> str:
    """The store as the case writes it."""
    relative = str(Path(case["name"]) / case["below"]) if case["below"] else case["name"]
    if case["way"] == "link":
        (home.parent / "link").symlink_to(home)
        return str(home.parent / "link" / relative)
    ways: dict[str, str] = {
        "absolute": f"{home}/{relative}",
        "relative": f"./{relative}" if relative.startswith("~") else relative,  # else a home folder
        "dot": f"./{relative}",
        "slash": f"{home}/{relative}/",
        "slashes": f"{home}//{relative}",
        "up": f"{home}/../home/{relative}",
        "file": f"file://{home}/{relative}",
    }
    return ways[case["way"]]


def _used(target: Path, home: Path, away: Path) -> str:
    try:
        check_root(will_write=True)
        store = Store(storage.join(os.environ["ATELIER_ROOT"]))
        uri = settle(store)
    except AtelierError as error:
        text = str(error)
        assert error.exit_code == 2 and not UNSEEN.search(text) and len(text) < 3000, text
        return "refused"
    assert target.is_dir(), f"the store is elsewhere: {store.root}"
    record = Shelf(store).publish("model", "mine", files={"a b": b"1"}, step=1)
    assert [found.fingerprint for found in store.records("model")] == [record.fingerprint]
    assert not store.check(record) and storage.local_path(store.root).samefile(target)
    file = sqlalchemy.engine.make_url(uri).database or ""
    assert Path(file).samefile(target / "mlflow.db"), file
    client = mlflow.artifacts.get_artifact_repository(f"{own_files(store)}/run")  # as MLflow reads it
    (away / "one.txt").write_text("1")
    client.log_artifact(str(away / "one.txt"))
    assert (target / "mlartifacts" / "run" / "one.txt").exists()
    _servers(store, target)
    folder = storage.join(store.root, "sweeps", "id")
    override = OverridesParser.create().parse_override(f"hydra.sweep.dir={_literal(folder)}")
    assert OmegaConf.create({"dir": override.value()}).dir == folder
    _nothing_beside(target, home, away)
    return "works"


def _servers(store: Store, target: Path) -> None:
    """Where the processes of `atelier up` would have their databases."""
    stack = Stack(store.root)
    mlflow_server(stack.folder, Credentials.of(stack.folder))
    assert (target / "stack" / "credentials.json").exists()
    home = prefect_home(store.root)
    database = sqlalchemy.engine.make_url(prefect_database(home)).database or ""
    assert Path(database) == home / "prefect.db" and home.parent.samefile(target)


def _nothing_beside(target: Path, home: Path, away: Path) -> None:
    for path in home.rglob("*"):
        assert path == target or target in path.parents or path in target.parents, f"beside the store: {path}"
    assert [path.name for path in away.iterdir()] == ["one.txt"], "in the home folder"


@contextmanager
def broken() -> Iterator[None]:
    """Local paths pass through fsspec's reading of URLs, as they once did."""

    def read(url: str) -> tuple[remote.FileSystem, str]:
        return fsspec.core.url_to_fs(url)

    with patch.object(storage, "open_system", read), patch.object(storage, "is_path", lambda url: False):
        yield
