"""Estimate the wall-clock time of a run: its nodes on the pool's slots in DAG order, with process starts. A
training takes its planned steps; another task the time of the nearest finished run, else the time on two
laptop cores at default sizes.
"""

import heapq
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from atelier.engine.config.pool import Pool
from atelier.flows.run.disk_fit import bytes_of
from atelier.infra.code.code_map import TRAINED
from atelier.infra.dag import Node
from atelier.infra.launch.slots import num_slots
from atelier.infra.store.run_manifest import Row
from atelier.infra.store.store import Store

Place = tuple[str, ...]
RUN_S = 6.0  # Prefect's server and flow
GANG_S = 3.0  # processes of a training: imports, rendezvous, last checkpoint
ROLE_S = 5.0  # each network: compiled kernels, evaluations, publication
COPIED = 150e6  # bytes a second to read, hash and write
TASK_S = {  # tasks without training
    "curate": 2.0,
    "collect": 1.5,
    "filter_documents": 1.5,
    "deduplicate": 1.5,
    "decontaminate": 1.5,
    "assemble": 1.5,
    "learn_quality": 3.0,
    "learn_tokenizer": 3.0,
    "encode": 3.0,
    "extract": 3.0,
    "describe": 2.0,
    "index_words": 2.0,
    "label": 1.0,
    "render": 3.0,
    "imitate": 10.0,
    "write": 20.0,  # for a corpus without a known number of documents
    "convert": 6.0,
    "adopt": 3.0,
    "adopt_adapter": 10.0,
    "score": 20.0,
    "report": 1.0,
}


def seconds_of(node: Node, trained_s: float, before: Iterable[Row], store: Store) -> float:
    """Seconds of one node with artifacts to make. `trained_s`: time of its steps or its writing; `before`:
    rows of its products in the nearest finished run.
    """
    if node.task in TRAINED:
        num_networks = len(node.products) if node.task == "train" else 1  # draws share one
        return GANG_S + ROLE_S * num_networks + trained_s
    if node.task == "write" and trained_s:  # an earlier run wrote other amounts
        return GANG_S + ROLE_S + trained_s
    for row in before:
        record = store.find(row.kind, row.fingerprint)
        if record is not None and "ended" in record.provenance and "started" in record.provenance:
            return float(record.provenance["ended"]) - float(record.provenance["started"])
    return TASK_S.get(node.task, 0.0) + bytes_of(node) / COPIED


def wall_clock(
    nodes: list[Node],
    seconds: dict[str, float],
    pool: Pool,
    others: Mapping[str, Pool] = MappingProxyType({}),
) -> float:
    """Seconds until the last node ends. Each node starts when its inputs are ready and its pool has slots,
    earlier nodes first, as infra/launch/slots.py queues them. Nodes without `seconds` are reused. `others`:
    the pools of tasks that `pool` does not run.
    """
    pools = {_slots_of(one): one for one in (pool, *others.values())}
    totals = {place: max(num_slots(one), one.gpus * bool(one.gpus_per_node)) for place, one in pools.items()}
    free, now = dict(totals), 0.0
    to_come = set(seconds)
    waiting = [node for node in nodes if node.name in seconds]
    running: list[tuple[float, int, str, int, Place]] = []  # end, number, name, slots
    while waiting or running:
        full = set[Place]()
        for number, node in enumerate(list(waiting)):
            mine = others.get(node.task, pool)
            place = _slots_of(mine)
            needs = min(totals[place], node.ranks * (node.threads if mine.is_cpu else 1))
            if place in full or not to_come.isdisjoint(node.waits):
                continue
            if needs > free[place]:
                full.add(place)  # nothing overtakes a node that waits for slots
                continue
            waiting.remove(node)
            free[place] -= needs
            heapq.heappush(running, (now + seconds[node.name], number, node.name, needs, place))
        now, _, name, freed, place = heapq.heappop(running)
        to_come.remove(name)
        free[place] += freed
    return now


def _slots_of(pool: Pool) -> Place:
    """Where the pool's slots are; pools of the flow's own process share the cores of its machine."""
    return (pool.name, *pool.members, pool.launcher, str(pool.is_cpu))
