"""Hands the nodes of a flow to Prefect, each to the site that runs it."""

from collections.abc import Callable, Collection, Mapping

from atelier.infra.dag import Future, Node, Reference


class PrefectScheduler:
    """A scheduler that hands every node to Prefect, the futures of the nodes before it as its inputs: those
    named `here` (None = all), and before each the same node of other sites (`there`, by site).
    """

    def __init__(
        self,
        submit: Callable[[Node, list[Future]], Future],
        here: Collection[str] | None = None,
        there: Mapping[str, list[Node]] | None = None,
    ) -> None:
        self._submit, self._here = submit, here
        self._there = [node for nodes in (there or {}).values() for node in nodes]
        self.futures: list[Future] = []
        self.nodes: list[Node] = []

    def declare(self, node: Node, after: list[Reference]) -> Future | None:
        """Returns the future of the node here, or of the last site that runs it in its place."""
        waits = list({id(r.future): r.future for r in after if r.future is not None}.values())
        found = None
        for planned in (each for each in self._there if each.given_name == node.name):
            before = dict(zip((each.name for each in self.nodes), self.futures, strict=True))
            found = self._take(planned, [before[name] for name in planned.waits])
        if self._here is None or node.name in self._here:
            found = self._take(node, waits)
        return found

    def _take(self, node: Node, waits: list[Future]) -> Future:
        future = self._submit(node, waits)
        self.futures.append(future)
        self.nodes.append(node)
        return future
