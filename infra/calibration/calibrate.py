"""Calibrate a pool on this machine: run short trainings of a few shapes and fit the pool's facts to them."""

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import cast

import numpy as np

from atelier.engine.config.base import parse
from atelier.engine.config.mixture import Stream
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.record import FileEntry, Record, Summary, identify
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Member, RunFile, SegmentAddress, Training
from atelier.engine.config.train import Train
from atelier.engine.plan.fit import CROWD, LINKS, THREADS, Probe, fit
from atelier.engine.plan.fit import FACTS as FITTED
from atelier.infra.calibration.history import MeasuredSteps, facts, keep_facts, measure, with_half
from atelier.infra.launch.gang import Orders, compile_cache, start_gang

VOCAB = 4096
STEPS = 12
NUM_TOKENS = 200_000
# hidden, blocks, tokens per sequence, sequences: small and large matmuls, a head larger than the blocks
SHAPES = {
    "small": (64, 4, 64, 8),
    "wide": (512, 2, 256, 4),
    "head": (64, 1, 256, 8),
    "middle": (192, 4, 256, 8),
    "broad": (320, 4, 256, 4),
}
ALL_SHAPES, LARGE_SHAPES = tuple(SHAPES), ("middle", "wide")
SENT_SHAPES = ("small", *LARGE_SHAPES)  # messages bound by latency, by both, by bandwidth
MOST = 8  # gangs at once: each takes 0.5 GB


def calibrate(root: str, pool: Pool, cores: int, scratch: Path, say: Callable[[str], None]) -> Pool:
    """Train the shapes for some steps each: one thread, several gangs at once, all cores as threads, two
    ranks. Store the pool facts that fit their step times best; measurements of earlier trainings are deleted,
    since they were relative to other facts.
    """
    pool, tokens = with_half(pool), random_tokens(scratch / "tokens")
    one = Parallel(shard=1, threads=1, compile="none", device="cpu")
    crowd = min(cores, MOST)
    layouts: list[tuple[str, Parallel, tuple[str, ...], int]] = [("one thread", one, ALL_SHAPES, 1)]
    if cores > 1:
        threads, two = one.model_copy(update={"threads": cores}), one.model_copy(update={"shard": 2})
        layouts.append((f"{crowd} gangs at once", one, LARGE_SHAPES, crowd))
        layouts.append((f"{cores} threads", threads, LARGE_SHAPES, 1))
        layouts.append(("two ranks, shard", two, SENT_SHAPES, 1))
    layouts *= 2  # twice, because a machine's speed varies within half a minute
    probes: list[Probe] = []
    for number, (name, layout, shapes, gangs) in enumerate(layouts):
        say(f"measuring: {name}")
        each = [replace(probe(shape, layout, *SHAPES[shape]), beside=gangs - 1) for shape in shapes]
        folders = [scratch / str(number) / str(gang) for gang in range(gangs)]
        with ThreadPoolExecutor(gangs) as at_once:
            runs = [at_once.submit(run_probes, root, folder, tokens, layout, each) for folder in folders]
            probes += [measured for run in runs for measured, _ in run.result()]
    found = fit(pool.model_copy(update={"peak_tflops": "auto"}), probes)
    names = (*FITTED, *CROWD, *THREADS, *LINKS, "matmul")
    keep_facts(root, pool, {name: round(getattr(found, name), 6) for name in names})
    return facts(root, pool)


def probe(
    name: str, layout: Parallel, hidden: int, blocks: int, sequence: int, rows: int, **more: str | int
) -> Probe:
    """A probe: a training of STEPS steps of a decoder of this shape; `more` are fields of the model."""
    shape = {"kind": "gpt", "hidden": hidden, "num_layers": blocks, "num_heads": max(1, hidden // 32)}
    optim = {"kind": "adamw", "lr": 1e-3, "schedule": {"kind": "constant"}}
    model = shape | {"vocab": VOCAB} | more
    role = parse(Role, {"model": model, "objective": {"lm": {"kind": "lm"}}, "optim": optim}, name)
    train = Train(
        steps=STEPS, global_batch=rows, sequence=sequence, checkpoint_every=10**6, keep=0, eval_every=10**6
    )
    return Probe(name, role, train, layout)


def run_probes(
    root: str, scratch: Path, tokens: str, layout: Parallel, probes: list[Probe]
) -> list[tuple[Probe, MeasuredSteps]]:
    """Train the probes one after another in one gang; returns them with step times, and the measurements."""
    trainings = [_training(one, scratch / "trajectory" / one.name) for one in probes]
    work = scratch / "work"
    work.mkdir(parents=True)
    run = RunFile(
        task="calibrate", version=1, config={"trainings": [one.model_dump(mode="json") for one in trainings]},
        inputs={"tokens": tokens}, outputs={}, scratch=str(work), layout=layout,
    )  # fmt: skip
    threads = layout.threads if isinstance(layout.threads, int) else 1
    orders = Orders(
        name="calibrate", module="atelier.engine.train", run=run, root=root, scratch=scratch,
        ranks=layout.ranks, threads=threads, env=compile_cache(root),
    )  # fmt: skip
    start_gang(orders, lambda message: None, threading.Event())
    found = []
    for one in probes:
        seen = measure([str(scratch / "trajectory" / one.name)])
        if seen is not None:
            found.append((replace(one, step_s=seen.step_s), seen))
    return found


def _training(one: Probe, url: Path) -> Training:
    fingerprint = hashlib.sha256(str(url).encode()).hexdigest()
    segment = SegmentAddress(fingerprint=fingerprint, url=str(url), start=0, end=STEPS)
    member = Member(role=one.role, segments=(segment,))
    return Training(members={"model": member}, streams=(Stream(input="tokens"),), train=one.train)


def random_tokens(folder: Path) -> str:
    """Write an artifact of random tokens. Returns its address."""
    generator, files = np.random.default_rng(1), {}
    for split, size in (("train", NUM_TOKENS), ("held_out", NUM_TOKENS // 20)):
        files[f"{split}.bin"] = generator.integers(0, VOCAB, size=size).astype("<u2").tobytes()
        buffer = BytesIO()
        np.save(buffer, np.arange(1000, size + 1, 1000).astype("<i8"), allow_pickle=False)
        files[f"{split}.ends.npy"] = buffer.getvalue()
    entries = []
    for name, data in files.items():
        place = folder / "payload" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        entries.append(FileEntry(path=f"payload/{name}", bytes=len(data), sha256=digest))
    identity = {"files": [entry.sha256 for entry in entries]}
    record = Record(
        kind="tokens", name="random", fingerprint=identify("tokens", 1, identity, {}), version=1,
        identity=identity, parents={}, files=tuple(entries), summary=cast(Summary, {"vocab": VOCAB}),
    ).sealed()  # fmt: skip
    (folder / "record.json").write_text(record.text())
    return str(folder)
