"""Collect the nodes of a flow without running them: its body runs with a collecting scheduler."""

import contextvars

from atelier import PROJECT
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.project_roots import file_of_root, files_in_roots, located
from atelier.flows.run.compose import RunConfig
from atelier.flows.run.over_sites import Placement, place
from atelier.flows.run.registry import body
from atelier.infra.dag import Node, Reference, scheduling
from atelier.infra.store.existing_model import looking_in
from atelier.infra.store.store import Store


class NodeCollector:
    """A scheduler that only collects nodes. It refuses a task that no root has a file of."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def declare(self, node: Node, after: list[Reference]) -> None:
        _check_task(node)
        self.nodes.append(node)


def _check_task(node: Node) -> None:
    """Raise ConfigError for a node whose task has no file in tasks/ of any root."""
    file = f"tasks/{node.task}.py"
    if located(file_of_root(file)).is_file():
        return
    own = (path.stem for path in (PROJECT / "tasks").glob("[!_]*.py"))
    near = nearest(node.task, [*own, *files_in_roots("tasks", ".py")])
    way_out = f"did you mean {near}? " if near else ""
    raise ConfigError(node.name, f"no root has a file {file}", f"{way_out}a task's name is its file's")


def collect_nodes(frozen: RunConfig, store: Store) -> list[Node]:
    """The flow's nodes that run here, each with the fingerprints of its products."""
    return placed_nodes(frozen, store).here


def placed_nodes(frozen: RunConfig, store: Store) -> Placement:
    """The flow's nodes by site. Raises ConfigError as `place` does."""
    drawing = NodeCollector()

    def inside() -> None:
        looking_in(store)
        scheduling(drawing)
        body(frozen.flow)(**frozen.call())

    contextvars.copy_context().run(inside)
    if frozen.ordered is not None:
        return Placement([node for node in drawing.nodes if node.name in frozen.ordered])
    return place(drawing.nodes, frozen.sites, frozen.here)
