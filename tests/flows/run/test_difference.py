"""`atelier diff`: 30 drawn pairs of runs, each with one change; what it refuses and what it cannot tell."""

import json
import random
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.metric import segment_name
from atelier.engine.config.record import Record, identify
from atelier.engine.config.trajectory import Segment
from atelier.engine.io.storage import join, write_bytes
from atelier.flows.cli.main import run
from atelier.flows.run.difference import difference
from atelier.flows.run.sides import Sides
from atelier.infra.store.lease import Holder
from atelier.infra.store.run_manifest import Row, RunManifest, write_manifest
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import register_trajectory

STEPS = 40
KEYS = {"optim.lr": 0.01, "optim.kind": "adamw", "model.hidden": 64, "model.num_layers": 2, "train.clip": 1.0}
LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors")
FILES = ("engine/train.py", "engine/model/gpt.py", "engine/loop/step.py")
SIZES = ("tensor", "pipeline", "shard", "context", "threads")


@dataclass(frozen=True)
class Made:
    """All that one run is made of. From step `apart` on its values are `shift` larger, relatively, and
    `noise` from the second step on.
    """

    keys: dict[str, Any] = field(default_factory=lambda: dict(KEYS))
    source: str = "a" * 64
    seed: int = 1
    versions: dict[str, str] = field(default_factory=lambda: dict.fromkeys(LIBRARIES, "1.0"))
    code: dict[str, str] = field(default_factory=lambda: dict.fromkeys(FILES, "0" * 8))
    version: int = 1
    layout: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIZES, 1))
    apart: int = STEPS + 1
    shift: float = 0.0
    noise: float = 0.0

    def write(self, store: Store, run_id: str) -> str:
        """Write the run, with its corpus and its model, into the store; returns its id."""
        corpus = self._publish(store, "corpus", {}, {"source": self.source})
        data = {"tokens.main": corpus.fingerprint}
        identity = {**self.keys, "seed": self.seed}
        part = Segment(start=0, end=STEPS, identity=identity | {"of": self.version}, parents=data)
        register_trajectory(store, "model", part, {"started": 1.0})
        url = store.address("trajectory", part.fingerprint)
        lines = "\n".join(json.dumps(self._line(step)) for step in range(1, STEPS + 1))
        write_bytes(join(url, "metrics", segment_name(1, 1)), lines.encode())
        parents = data | {"trajectory": part.fingerprint}
        model = self._publish(store, "model", parents, {"step": STEPS}, loss=self._value(STEPS))
        rows = [
            Row(fingerprint=corpus.fingerprint, name="curate", kind="corpus", model="text",
                identity={"data.source": self.source}),
            Row(fingerprint=model.fingerprint, name="train", kind="model", model="model", parents=data,
                identity={**self.keys, "train.seed": self.seed}, keeps=(part.fingerprint,)),
        ]  # fmt: skip
        config = {**self.keys, "train.seed": self.seed}
        config |= {f"parallel.{size}": value for size, value in self.layout.items()}
        manifest = RunManifest(
            id=run_id, flow="pretrain", command="atelier pretrain", started=1.0, ended=2.0, status="finished",
            config=config, tasks=tuple(rows), states={"curate": "done", "train": "done"},
        )  # fmt: skip
        write_manifest(store, manifest)
        return run_id

    def _publish(
        self, store: Store, kind: str, parents: dict[str, str], identity: dict[str, Any], **summary: Any
    ) -> Record:
        about: Any = {"code": self.code, "versions": self.versions, "layouts": [self.layout], "ended": 2.0}
        version = self.version if kind == "model" else 1
        found: Any = summary
        draft = Record(
            kind=kind, name="text" if kind == "corpus" else kind, version=version, identity=identity,
            fingerprint=identify(kind, version, identity, parents), parents=parents, summary=found,
            provenance=about,
        )  # fmt: skip
        return store.publish(draft, Holder.me())

    def _value(self, step: int) -> float:
        more = (self.shift if step >= self.apart else 0.0) + (self.noise if step > 1 else 0.0)
        return (4.0 - step / 50) * (1 + more)

    def _line(self, step: int) -> dict[str, Any]:
        values = {"loss": self._value(step), "lr": 0.01}
        return {"step": step, "role": "model", "tokens": step, "values": values, "timing": {"step_s": step}}


def drawn(number: int) -> tuple[str, Made, str, bool, int | None]:
    """A change of a base run: its kind, the changed run, the name that must appear, whether it needs a store
    of its own (it is in no identity), and the step at which the curves part.
    """
    rng = random.Random(number)
    kind = ("key", "code", "data", "seed", "version", "layout")[number % 6]
    base, apart = Made(), rng.randint(1, STEPS)
    curve = {"apart": apart, "shift": rng.choice([1e-15, 1e-9, 1e-3])}
    if kind == "key":
        key = rng.choice(sorted(KEYS))
        value = "muon" if isinstance(KEYS[key], str) else KEYS[key] * 2
        return kind, replace(base, keys=KEYS | {key: value}, **curve), key, False, apart
    if kind == "code":
        file = rng.choice(FILES)
        return kind, replace(base, code=base.code | {file: "1" * 8}, **curve), file, True, apart
    if kind == "data":
        return kind, replace(base, source="b" * 64, **curve), "data.source", False, apart
    if kind == "seed":
        return kind, replace(base, seed=rng.randint(2, 99), **curve), "train.seed", False, apart
    if kind == "version" and rng.random() < 0.5:
        return kind, replace(base, version=2, **curve), "version of the task: 1 -> 2", False, apart
    if kind == "version":
        library = rng.choice(LIBRARIES)
        return kind, replace(base, versions=base.versions | {library: "2.0"}, **curve), library, True, apart
    size, shift = rng.choice(SIZES), rng.choice([0.0, 1e-4])
    other = replace(base, layout=base.layout | {size: 2}, apart=apart, shift=shift, noise=2e-6)
    return kind, other, size, True, apart if shift else None


PLACES = {
    "key": ("configuration",), "seed": ("configuration",), "data": ("data",), "code": ("code",),
    "version": ("artifacts", "environment"), "layout": ("configuration", "layout"),
}  # fmt: skip


@pytest.mark.parametrize("number", range(30))
def test_the_one_change_of_a_drawn_pair_is_named_and_the_step_where_the_curves_part_is_right(
    tmp_path: Path, number: int
) -> None:
    kind, other, name, has_store, apart = drawn(number)
    first, second = Store(str(tmp_path / "a")), Store(str(tmp_path / ("b" if has_store else "a")))
    Made().write(first, "20260101-000001-aaaaaa")
    other.write(second, "20260101-000002-bbbbbb")
    found = difference(Sides(first).side("20260101-000001"), Sides(second).side("bbbbbb"))
    sections = {key: json.dumps(found[key]) for key in ("configuration", "data", "code", "environment")}
    sections |= {key: json.dumps(found[key]) for key in ("layout", "artifacts")}
    assert all(name in sections[place] for place in PLACES[kind] if kind != "version")
    assert kind != "version" or any(name in sections[place] for place in PLACES[kind])
    empty = {"configuration", "data", "code", "environment", "layout"} - {*PLACES[kind]}
    assert all(found[section] == [] for section in empty)
    (curve,) = found["curves"]
    assert curve["step"] == curve["loss_step"] == apart and curve["common"] == STEPS
    assert curve["tolerance"] == (1e-5 if kind == "layout" else 0.0) and found["unknown"] == []


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    store = Store(str(tmp_path))
    Made().write(store, "20260101-000001-aaaaaa")
    replace(Made(), seed=2, apart=7, shift=1e-3).write(store, "20260101-000002-bbbbbb")
    return tmp_path


def test_the_text_names_the_change_and_the_step(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", "aaaaaa", "bbbbbb"]) == 0
    text = capsys.readouterr().out
    assert "train.seed  1      2" in text and "data: the same" in text and "code: the same" in text
    assert "train: part at step 7 (loss " in text and text.rstrip().endswith("compared exactly")


def test_a_run_beside_a_model_stands_for_its_model(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fingerprint = next(r.fingerprint for r in Store(str(root)).records("model"))
    assert run(["diff", "aaaaaa", fingerprint, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["first"]["what"] == found["second"]["what"] == "model" and found["unknown"] == []


def test_code_of_a_record_that_no_longer_exists_is_unknown_and_not_equal(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(str(root))
    gone = next(row for row in Sides(store).runs[1].tasks if row.kind == "model")
    shutil.rmtree(store.address("model", gone.fingerprint))
    assert run(["diff", "aaaaaa", "bbbbbb"]) == 0
    text = capsys.readouterr().out
    line = "code, environment and scores of train of run 20260101-000002-bbbbbb: its record no longer exists"
    assert line in text and "train: part at step 7" in text
    assert run(["diff", "aaaaaa", gone.fingerprint]) == 2
    assert "no artifact called" in capsys.readouterr().err


def test_a_curve_whose_files_are_gone_is_unknown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(root / "trajectory")
    assert run(["diff", "aaaaaa", "bbbbbb"]) == 0
    assert "its training has no metrics in the store" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("aaaaaa nobody", "no run has this id, and no artifact called 'nobody'"),
        ("2026 aaaaaa", "3 runs are called 2026"),
        ("model text", "share no task and no kind of artifact"),
        ("aaaaaa 20260101-000003-cccccc", "share no task and no kind of artifact"),
        ("20260101-000003-cccccc model", "has no model (it has none of kind model)"),
    ],
)
def test_a_diff_of_things_that_share_nothing_or_are_not_there_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str], words: str, problem: str
) -> None:
    row = Row(fingerprint="c" * 64, name="score", kind="scores")
    write_manifest(Store(str(root)), RunManifest(id="20260101-000003-cccccc", flow="score", tasks=(row,)))
    assert run(["diff", *words.split()]) == 2
    assert problem in capsys.readouterr().err
