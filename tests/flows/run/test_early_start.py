"""Nodes that start while Prefect starts: in the DAG's order, each once, and none after the end."""

import threading

import pytest

from atelier.engine.config.error import AtelierError
from atelier.flows.run.outcome import EarlyStart
from atelier.infra.dag import Node

PATIENCE_S = 10.0


class Run:
    """A node may end when its event is set; `began` has the nodes that were made, in order."""

    def __init__(self, **waits: str) -> None:
        self.nodes = [
            Node(name=name, task="curate", products={}, waits=tuple(each)) for name, each in waits.items()
        ]
        self.began, self.changed = list[str](), threading.Condition()
        self.may_end = {name: threading.Event() for name in waits}
        self.broken = set[str]()

    def make(self, node: Node) -> dict[str, str]:
        with self.changed:
            self.began.append(node.name)
            self.changed.notify_all()
        assert self.may_end[node.name].wait(PATIENCE_S)
        if node.name in self.broken:
            raise AtelierError(f"{node.name} is broken")
        return {"corpus": node.name}

    def has_begun(self, *names: str) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: {*names} <= {*self.began}, PATIENCE_S)


def test_a_node_starts_when_those_before_it_have_ended_and_prefects_task_gets_its_result() -> None:
    run = Run(a="", b="a", c="b", d="")
    early = EarlyStart(run.nodes, run.make, 16)
    with early.running(threading.Event()):
        assert run.has_begun("a", "d") and "b" not in run.began
        run.may_end["a"].set()
        assert run.has_begun("b")
        early.end()
        for name in "bcd":
            run.may_end[name].set()
        assert [early.make(node) for node in run.nodes] == [{"corpus": name} for name in "abcd"]
    assert sorted(run.began) == ["a", "b", "c", "d"]  # c by its Prefect task


def test_no_more_start_than_may_run_at_once() -> None:
    run = Run(a="", b="", c="")
    early = EarlyStart(run.nodes, run.make, 2)
    with early.running(threading.Event()):
        assert run.has_begun("a", "b")
        run.may_end["b"].set()
        assert run.has_begun("c") and len(run.began) == 3
        for name in "ac":
            run.may_end[name].set()


def test_the_error_of_a_node_is_its_prefect_tasks_and_nothing_after_it_starts() -> None:
    run = Run(a="", b="a")
    run.broken.add("a")
    early = EarlyStart(run.nodes, run.make, 16)
    with early.running(threading.Event()):
        run.may_end["a"].set()
        with pytest.raises(AtelierError, match="a is broken"):
            early.make(run.nodes[0])
    assert run.began == ["a"]


def test_where_prefect_does_not_start_the_nodes_are_stopped_and_waited_for() -> None:
    run, stop = Run(a="", b="a"), threading.Event()
    early = EarlyStart(run.nodes, run.make, 16)

    def end_when_stopped() -> None:
        assert stop.wait(PATIENCE_S)
        run.may_end["a"].set()

    threading.Thread(target=end_when_stopped).start()
    with pytest.raises(AtelierError, match="did not start"), early.running(stop):
        raise AtelierError("Prefect's server did not start")
    assert run.began == ["a"]


def test_without_prefect_every_node_runs_but_those_after_a_failure() -> None:
    run = Run(a="", b="a", c="b", d="", e="d")
    run.broken.add("d")
    early = EarlyStart(run.nodes, run.make, 16)
    for event in run.may_end.values():
        event.set()
    with early.running(threading.Event()):
        early.finish()
        assert sorted(run.began) == ["a", "b", "c", "d"]
