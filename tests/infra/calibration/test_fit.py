"""Constants of a machine from measured steps."""

from dataclasses import replace

import pytest

from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.plan.estimate import estimate
from atelier.infra.calibration.calibrate import (
    LARGE_SHAPES,
    SENT_SHAPES,
    SHAPES,
    Probe,
    _on_gpus,
    _probe_of,
    error,
    fit,
    planned,
    probe,
)
from atelier.infra.calibration.history import Measurement, factor, facts, keep_facts, record_measurement
from atelier.infra.store.store import Store

TRUE = Pool(peak_tflops=0.11, matmul=1.0, memory_gbps=6.0, launch_us=9.0, node_gbps=0.8, latency_us=350.0)
ALONE, TWO = Parallel(shard=1, threads=1), Parallel(shard=2, threads=1)


def true_s(one: Probe) -> float:
    return estimate(one.role, one.train, one.parallel, TRUE, vocab=0, steps=1).step_s


def test_facts_are_found_again_from_the_steps_that_follow_from_them() -> None:
    probes = [probe(name, where, *SHAPES[name]) for where in (ALONE, TWO) for name in SENT_SHAPES]
    probes = [replace(one, step_s=true_s(one)) for one in probes]
    found = fit(Pool(), probes)
    assert error(found, probes) < 1e-3
    other = probe("other", TWO, 320, 3, 128, 4)
    assert planned(found, other) == pytest.approx(true_s(other), rel=0.05)


def test_a_gpu_keeps_its_vendors_peak_and_gets_the_share_that_products_reach() -> None:
    vendors = Pool(gpu="h200", gpus=2, gpus_per_node=2)
    true = vendors.model_copy(update={"matmul": 0.55, "memory_gbps": 3600.0, "launch_us": 6.0})
    probes = [_probe_of(true, shape, layout) for _, layout, shapes, _ in _on_gpus(2) for shape in shapes]
    probes = [replace(one, step_s=planned(true, one)) for one in probes]
    assert {one.parallel.ranks for one in probes} == {1, 2} and {one.parallel.device for one in probes} == {
        "cuda"
    }
    found = fit(vendors, probes)
    assert error(found, probes) < 1e-3 and found.device.matmul == pytest.approx(0.55, rel=0.1)
    assert found.device.peak_tflops == vendors.device.peak_tflops
    fast = [replace(one, step_s=one.step_s / 10) for one in probes]
    assert fit(vendors, fast).device.matmul <= 1


@pytest.mark.slow
def test_what_a_core_loses_beside_others_is_not_taken_for_what_threads_lose() -> None:
    alone = [probe(name, ALONE, *shape) for name, shape in SHAPES.items()]
    threads = [probe(name, ALONE.model_copy(update={"threads": 2}), *SHAPES[name]) for name in LARGE_SHAPES]
    probes = [replace(one, step_s=planned(TRUE, one)) for one in alone]
    probes += [replace(one, step_s=one.step_s / 0.9, beside=1) for one in probes if one.name in LARGE_SHAPES]
    slow = TRUE.model_copy(update={"crowded": 0.9, "threaded": 0.7})
    found = fit(Pool(), probes + [replace(one, step_s=planned(slow, one)) for one in threads])
    assert found.crowded == pytest.approx(0.9) and found.threaded == pytest.approx(0.7, rel=0.02)
    ranks = probe("ranks", ALONE.model_copy(update={"pipeline": 2}), 320, 4, 128, 4)
    assert planned(found, ranks) == pytest.approx(planned(slow, ranks), rel=0.02)


@pytest.mark.slow
def test_links_are_never_faster_than_memory_however_short_the_steps_of_two_ranks_were() -> None:
    probes = [probe(name, where, *shape) for where in (ALONE, TWO) for name, shape in SHAPES.items()]
    probes = [
        replace(one, step_s=planned(TRUE, one) * (0.5 if one.parallel.ranks > 1 else 1)) for one in probes
    ]
    found = fit(Pool(), probes)
    assert isinstance(found.node_gbps, float) and found.node_gbps <= found.device.memory_gbps


def test_facts_are_those_of_the_type_of_gpu_that_was_measured(tmp_path) -> None:
    mine, other = Pool(gpu="h200", gpus=1), Pool(gpu="h100", gpus=1)
    keep_facts(str(tmp_path), mine, {"matmul": 0.5})
    assert facts(str(tmp_path), mine).device.matmul == 0.5
    assert facts(str(tmp_path), other).device.matmul == other.device.matmul != 0.5
    assert facts(str(tmp_path), Pool(half=True)) == Pool(half=True)


def test_kept_facts_fill_in_what_is_auto_and_what_was_learned_beside_others_is_forgotten(tmp_path) -> None:
    store, pool = Store(str(tmp_path)), Pool(launch_us=3.0, half=True)
    record_measurement(store, "", "a" * 64, Measurement("train", planned_s=1.0, measured_s=1.5, ended=1.0))
    assert factor(store, pool) == 1.5 and facts(store.root, pool) == pool
    keep_facts(store.root, pool, {"peak_tflops": 0.3, "launch_us": 9.0})
    known = facts(store.root, pool)
    assert (known.peak_tflops, known.launch_us) == (0.3, 3.0) and factor(store, pool) == 1.0
    (tmp_path / "pools" / "here.json").write_text("{")
    assert facts(store.root, pool) == pool
