"""With any files in a store, every command answers in a line, and its advice works."""

import itertools
import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atelier.engine.config.record import Record
from atelier.engine.config.run_file import SegmentAddress
from atelier.engine.io.artifact import ArtifactOutput
from atelier.flows.cli.main import run
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.infra.store import removal
from atelier.infra.store.alias import give_alias
from atelier.infra.store.lease import Holder, take
from atelier.infra.store.run_manifest import RunManifest, write_manifest
from atelier.infra.store.store import Store, read_body
from atelier.infra.store.trajectory import register_trajectory
from atelier.tasks import train
from tests.infra import hostile
from tests.infra.records import Family, family

SEED = int(os.environ.get("ATELIER_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
NUMS = [20, pytest.param(100, marks=pytest.mark.slow)]
PATIENCE_S = 30
RUN = "20260101-000000-abcdef"
# its checkpoints do not say by which code they were made
PLAN = "plan pretrain experiment=tiny tracker=none resume.accept_code=true"
ANSWERS = ("runs", "models", "lineage student_a", f"lineage {RUN}", "gc --dry-run", "gc --dry-run --damaged")
COMMANDS = (*ANSWERS, PLAN, "models --json", f"pick {RUN} --by student_a.eval_loss", "gc --damaged --yes")
ACTS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


def stocked(root: Path) -> Family:
    """A family with all the small files that a store of some age has."""
    made = family(root, run=RUN)
    store = made.shelf.store
    rows = [
        {"name": r.name, "kind": r.kind, "fingerprint": r.fingerprint, "key": r.name, "model": r.name}
        for r in made.records.values()
    ]
    about = {"flow": "pretrain", "command": "atelier pretrain", "holder": vars(Holder.me())}
    write_manifest(
        store,
        RunManifest.model_validate(
            {"id": RUN, "status": "finished", "started": 1.0, "ended": 2.0, "tasks": rows, **about}
        ),
    )
    plan(made)
    give_alias(store.root, made["teacher"], "best", "it is")
    lease = take(made.segments["teacher"].url, Holder.me())
    assert lease is not None
    lease.release()
    return made


def plan(made: Family) -> None:
    """Hand-made artifacts at every address that the plan of `PLAN` looks at."""
    shelf = made.shelf
    for node in collect_nodes(compose("pretrain", PLAN.split()[2:]), shelf.store):
        for role, product in node.products.items():
            output = ArtifactOutput(shelf.store.new_payload(product.kind, product.fingerprint))
            output.add_bytes("data.txt", b"data")
            output.close({})
            about = {key: getattr(product, key) for key in ("kind", "name", "version", "identity", "parents")}
            files, _ = read_body(output.url)
            record = Record(**about, fingerprint=product.fingerprint, files=files, provenance={"run": RUN})
            shelf.store.publish(record, Holder.me())
            for part in train.unpack(node)[2][role] if node.task == "train" else ():
                register_trajectory(shelf.store, product.name, part, {"run": RUN})
                url = shelf.store.address("trajectory", part.fingerprint)
                segment = SegmentAddress(
                    fingerprint=part.fingerprint, url=url, start=part.start, end=part.end
                )
                shelf.metrics(segment, range(part.start + 1, part.end + 1))
                shelf.checkpoint(segment, part.end)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole") / "store"
    stocked(root)
    return root


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(removal, "EXPIRY_S", 0.1)
    monkeypatch.setattr(removal.discard, "__defaults__", (0.1,))
    return tmp_path / "store"


@contextmanager
def patience() -> Iterator[None]:
    """What waits for ever fails."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"no answer in {PATIENCE_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def answer(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with patience():
        code = run(words.split())
    return code, *capsys.readouterr()


def small_files(root: Path) -> list[Path]:
    found = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    return [path for path in found if "removal" not in path.parts]


@pytest.mark.parametrize("num", NUMS)
def test_no_damage_and_no_forgery_of_a_small_file_is_a_fault_a_hang_or_acts_on_the_terminal(
    whole: Path, root: Path, capsys: pytest.CaptureFixture[str], num: int
) -> None:
    print(f"ATELIER_SEED={SEED}", file=sys.stderr)
    rng, bad = random.Random(SEED), []
    turn = itertools.cycle(COMMANDS)
    for number in range(num):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(whole, root)
        file, damage = rng.choice(small_files(root)), rng.choice(hostile.DAMAGES)
        damage(file, rng)
        for words in (next(turn), next(turn)):
            try:
                code, out, err = answer(words, capsys)
            except TimeoutError as late:
                code, out, err = 1, "", f"fault: {late}"
            is_bad = (
                "fault" in err or "Traceback" in err or bool(ACTS.search(out + err)) or code not in (0, 1, 2)
            )
            if is_bad or (code and not err.strip()):
                bad.append(
                    f"{number}: {damage.__name__} of {file.relative_to(root)}, {words}: {code} {err!r}"[:400]
                )
    assert not bad, f"{len(bad)} of {2 * num} answers:\n" + "\n".join(bad)


@pytest.mark.slow
def test_the_way_out_of_every_damage_works(
    whole: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print(f"ATELIER_SEED={SEED}", file=sys.stderr)
    rng, bad = random.Random(SEED), []
    damages = (hostile.flip, hostile.truncate, hostile.empty, hostile.overwrite, hostile.pipe, hostile.folder)
    kinds = sorted({(path.parent.name[:8], path.name[:9]) for path in small_files(whole)})
    for kind in kinds:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(whole, root)
        alike = [path for path in small_files(root) if (path.parent.name[:8], path.name[:9]) == kind]
        file, damage = rng.choice(alike), rng.choice(damages)
        damage(file, rng)
        before = {
            path: path.read_bytes() for path in small_files(root) if path != file and path.suffix != ".json"
        }
        answer("gc --damaged --yes", capsys)
        if file.parent.name == "runs":
            kept = [path for path, data in before.items() if not path.exists() or path.read_bytes() != data]
            assert not kept, f"{damage.__name__} of {file.name} let {kept} go"
            answer(f"gc --forget {file.stem} --yes", capsys)
        for words in ("gc --dry-run --damaged", rng.choice(ANSWERS[:4]), PLAN):
            code, out, err = answer(words, capsys)
            is_gone = words.startswith("lineage") and code == 1 and "no artifact and no run" in err
            if (
                (code and not is_gone)
                or "cannot be read" in out + err
                or "DAMAGED" in out
                or "damaged" in err
            ):
                bad.append(f"{damage.__name__} of {file.relative_to(root)}, {words}: {out[-300:]!r} {err!r}")
    assert not bad, f"{len(bad)}:\n" + "\n".join(bad)


def test_names_of_a_store_do_not_act_on_the_terminal(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = family(root)
    made.shelf.publish("model", f"evil{hostile.ESCAPE}[/]", step=1, summary={"teacher": hostile.ESCAPE})
    write_manifest(Store(str(root)), RunManifest(id="run-1", status="finished", command=hostile.ESCAPE))
    for words in ("models", "runs", "lineage evil", "gc --dry-run"):
        code, out, err = answer(words, capsys)
        assert code in (0, 1) and not ACTS.search(out + err), words
        assert "fault" not in err
