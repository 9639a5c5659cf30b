"""Calibrate a pool on this machine: run short trainings of a few shapes and fit the pool's facts to them."""

import hashlib
import math
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from io import BytesIO
from itertools import product
from pathlib import Path
from types import MappingProxyType
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
from atelier.engine.plan.estimate import Setting
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
GPU_SHAPES = {
    "small": (512, 4, 512, 8),
    "wide": (4096, 2, 2048, 4),
    "head": (512, 1, 2048, 16),
    "middle": (1536, 8, 1024, 8),
    "broad": (2560, 6, 2048, 4),
}
ALL_SHAPES, LARGE_SHAPES = tuple(SHAPES), ("middle", "wide")
SENT_SHAPES = ("small", *LARGE_SHAPES)  # messages bound by latency, by both, by bandwidth
MOST = 8  # gangs at once: each takes 0.5 GB
FACTS = ("peak_tflops", "memory_gbps", "launch_us")  # per core, from gangs of one rank
GPU_FACTS = ("matmul", "memory_gbps", "launch_us")  # per GPU: the peak is the vendor's
CROWD = ("crowded",)  # from gangs of one rank and one thread, several at once
THREADS = ("threaded",)  # from one rank of several threads
LINKS = ("node_gbps", "latency_us")  # from gangs of several ranks
GRID, STARTS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0), 6
ROUNDS = 200
WIDEST, FINEST = 2.0, 1.002


@dataclass(frozen=True)
class Probe:
    """A short training with the median seconds of its steps; `beside`: number of trainings that ran at the
    same time.
    """

    name: str
    role: Role
    train: Train
    parallel: Parallel
    step_s: float = 0.0
    beside: int = 0

    @cached_property
    def setting(self) -> Setting:
        """Its setting on any pool: what a model needs is computed once."""
        return Setting.of(self.role, self.train, Pool(), vocab=0)


def calibrate(
    root: str,
    pool: Pool,
    cores: int,
    scratch: Path,
    say: Callable[[str], None],
    env: Mapping[str, str] = MappingProxyType({}),
) -> Pool:
    """Train the shapes for some steps each: on CPUs with one thread, several gangs at once, all cores as
    threads, two ranks; on GPUs with one and, if there are more, two of them. Store the pool facts that fit
    their step times best; measurements of earlier trainings are deleted, since they were relative to other
    facts. `env`: of the processes, which names their GPUs.
    """
    pool, tokens = with_half(pool), random_tokens(scratch / "tokens")
    layouts = _on_cpus(cores) if pool.is_cpu else _on_gpus(pool.gpus)
    layouts *= 2  # twice, because a machine's speed varies within half a minute
    probes: list[Probe] = []
    for number, (name, layout, shapes, gangs) in enumerate(layouts):
        say(f"measuring: {name}")
        each = [replace(_probe_of(pool, shape, layout), beside=gangs - 1) for shape in shapes]
        folders = [scratch / str(number) / str(gang) for gang in range(gangs)]
        with ThreadPoolExecutor(gangs) as at_once:
            probing = partial(run_probes, gpu="" if pool.is_cpu else pool.gpu, env=env)
            runs = [at_once.submit(probing, root, folder, tokens, layout, each) for folder in folders]
            probes += [measured for run in runs for measured, _ in run.result()]
    names = (*GPU_FACTS, *LINKS)
    if pool.is_cpu:
        pool, names = (
            pool.model_copy(update={"peak_tflops": "auto"}),
            (*FACTS, *CROWD, *THREADS, *LINKS, "matmul"),
        )
    found = fit(pool, probes)
    keep_facts(root, pool, {name: round(getattr(found, name), 6) for name in names})
    return facts(root, pool)


Layouts = list[tuple[str, Parallel, tuple[str, ...], int]]  # name, layout, shapes, gangs at once


def _on_cpus(cores: int) -> Layouts:
    one, crowd = Parallel(shard=1, threads=1, compile="none", device="cpu"), min(cores, MOST)
    found: Layouts = [("one thread", one, ALL_SHAPES, 1)]
    if cores > 1:
        threads, two = one.model_copy(update={"threads": cores}), one.model_copy(update={"shard": 2})
        found.append((f"{crowd} gangs at once", one, LARGE_SHAPES, crowd))
        found.append((f"{cores} threads", threads, LARGE_SHAPES, 1))
        found.append(("two ranks, shard", two, SENT_SHAPES, 1))
    return found


def _on_gpus(gpus: int) -> Layouts:
    one = Parallel(shard=1, threads=1, compile="block", device="cuda")  # as long trainings are
    found: Layouts = [("one GPU", one, ALL_SHAPES, 1)]
    if gpus > 1:
        found.append(("two GPUs, shard", one.model_copy(update={"shard": 2}), SENT_SHAPES, 1))
    return found


def _probe_of(pool: Pool, shape: str, layout: Parallel) -> Probe:
    if pool.is_cpu:
        return probe(shape, layout, *SHAPES[shape])
    hidden, *rest = GPU_SHAPES[shape]
    return probe(shape, layout, hidden, *rest, num_heads=hidden // 128)


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
    root: str,
    scratch: Path,
    tokens: str,
    layout: Parallel,
    probes: list[Probe],
    *,
    gpu: str = "",
    env: Mapping[str, str] = MappingProxyType({}),
) -> list[tuple[Probe, MeasuredSteps]]:
    """Train the probes one after another in one gang; returns them with step times, and the measurements."""
    trainings = [_training(one, scratch / "trajectory" / one.name) for one in probes]
    work = scratch / "work"
    work.mkdir(parents=True)
    run = RunFile(
        task="calibrate", version=1, config={"trainings": [one.model_dump(mode="json") for one in trainings]},
        inputs={"tokens": tokens}, outputs={}, scratch=str(work), layout=layout, gpu=gpu,
    )  # fmt: skip
    threads = layout.threads if isinstance(layout.threads, int) else 1
    orders = Orders(
        name="calibrate", module="atelier.engine.train", run=run, root=root, scratch=scratch,
        ranks=layout.ranks, threads=threads, env=compile_cache(root) | dict(env),
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


def fit(pool: Pool, probes: Sequence[Probe]) -> Pool:
    """The pool with the figures that minimise the sum of squared log errors of the probes' steps: coordinate
    descent with shrinking factors from several starts. Slowdown by other cores is measured separately.
    """
    one = GPU_FACTS if not pool.is_cpu else FACTS
    shared = [probe for probe in probes if probe.parallel.ranks > 1]
    lone = [probe for probe in probes if probe.parallel.ranks == 1 and not probe.beside]
    wide = [probe for probe in lone if probe.parallel.threads != 1]
    lone = [probe for probe in lone if probe not in wide]
    start = {name: getattr(pool.device, name) for name in (*one, *LINKS)}
    if pool.is_cpu:
        crowded = _crowded(lone, [probe for probe in probes if probe.beside])
        start |= {"matmul": 1.0, "crowded": crowded, "threaded": 1.0}
    found = pool.model_copy(update=start)
    for names, some, loss in ((one, lone, error), (THREADS, wide, error), (LINKS, shared, _links_error)):
        if some:
            found = _search(found, names, partial(loss, probes=some))
    return found


def _crowded(alone: Sequence[Probe], beside: Sequence[Probe]) -> float:
    """The share of its speed that a core keeps while others compute: the median over probes measured both
    ways.
    """
    paces: dict[str, list[float]] = {}
    for probe in alone:
        paces.setdefault(probe.name, []).append(1 / probe.step_s)
    ratios = [1 / probe.step_s / statistics.mean(paces[probe.name]) for probe in beside]
    return min(1.0, statistics.median(ratios)) if ratios else 1.0


def error(pool: Pool, probes: Sequence[Probe]) -> float:
    """Sum of squared logarithms of planned / measured time; infinite for products above the peak."""
    if not pool.is_cpu and pool.device.matmul > 1:
        return math.inf
    return sum(math.log(planned(pool, probe) / probe.step_s) ** 2 for probe in probes)


def _links_error(pool: Pool, probes: Sequence[Probe]) -> float:
    """The error; infinite for links faster than the memory through which processes of one machine
    communicate.
    """
    if pool.device.node_gbps > pool.device.memory_gbps:
        return math.inf
    return error(pool, probes)


def planned(pool: Pool, probe: Probe) -> float:
    setting = replace(probe.setting, pool=pool, device=pool.device)
    return setting.estimate(probe.train, probe.parallel, steps=1).step_s


def _search(pool: Pool, names: Sequence[str], loss: Callable[[Pool], float]) -> Pool:
    """The best pool reached from the best points of a coarse grid around the pool's figures."""
    grid = [
        pool.model_copy(
            update={name: getattr(pool, name) * size for name, size in zip(names, sizes, strict=True)}
        )
        for sizes in product(GRID, repeat=len(names))
    ]
    starts = sorted(grid, key=loss)[:STARTS]
    return min((_descend(start, names, loss) for start in starts), key=loss)


def _descend(pool: Pool, names: Sequence[str], loss: Callable[[Pool], float]) -> Pool:
    factor, best = WIDEST, loss(pool)
    for _ in range(ROUNDS):
        before = best
        for name in names:
            for change in (factor, 1 / factor):
                other = pool.model_copy(update={name: getattr(pool, name) * change})
                if (now := loss(other)) < best:
                    pool, best = other, now
        if best == before:
            factor = math.sqrt(factor)
            if factor < FINEST:
                break
    return pool
