"""The context of a task's `run`."""

import threading
from pathlib import Path

from atelier.engine.config.pool import Pool
from atelier.infra.dag import Node, Product
from atelier.infra.launch.slots import Slots
from atelier.infra.run.context import RunContext, computes_on
from atelier.infra.run.gang_request import GangRequest
from atelier.infra.store.store import Store

RANK = {"who": 0, "gains": False, "deaths": 0, "hangs": False, "code": 0}


def context(root: Path) -> RunContext:
    return RunContext(
        store=Store(str(root / "store")),
        slots=Slots(2, root / "slots"),
        scratch=root / "scratch",
        run_id="run-1",
        flow="demo",
        command="atelier demo",
        listener=lambda node, message: None,
    )


def product(seed: int) -> Product:
    return Product(kind="score", name="s", version=1, identity={"seed": seed}, parents={})


def test_equal_outputs_under_two_names_are_made_once(tmp_path: Path) -> None:
    """As a score of two models that are one: it had waited for its own lease."""
    home = context(tmp_path)
    node = Node(name="score", task="score", products={"a": product(1), "b": product(1), "c": product(2)})
    asked: list[dict[str, int]] = []
    done = threading.Event()

    def config(fences: dict[str, int]) -> dict[str, object]:
        asked.append(fences)
        return RANK | {"trajectory": ""}

    def work() -> None:
        outputs = home.missing(node)
        home.gang(GangRequest(node=node, module="tests.infra.launch.rank", config=config, outputs=outputs))
        done.set()

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    ended = done.wait(60)
    home.stop.set()  # what still waits for a lease ends
    worker.join(30)
    assert ended
    assert [len(fences) for fences in asked] == [2]
    assert home.missing(node) == {}
    records = [home.record(one.kind, one.fingerprint) for one in node.products.values()]
    assert len({record.fingerprint for record in records}) == 2


def test_gangs_of_a_gpu_pool_compute_on_gpus_and_those_of_cpus_on_none() -> None:
    for pool, asked, device, gpu in (
        (Pool(gpu="h100", gpus=1), "auto", "cuda", "h100"),
        (Pool(gpu="h100", gpus=1), "cpu", "cpu", ""),
        (Pool(), "auto", "cpu", ""),
        (Pool(), "cuda", "cuda", ""),
    ):
        assert computes_on(pool, "atelier.engine.train", {"device": asked}) == (device, gpu)
    assert computes_on(Pool(gpu="h100"), "atelier.engine.prepare", {}) == ("cpu", "")
