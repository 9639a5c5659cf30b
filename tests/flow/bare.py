"""A flow's nodes up to its models, one after another in this process and without Prefect: `python -m
tests.flow.bare <flow> <words>`. The same as a command, in a fraction of its time.
"""

import sys

from atelier.engine.config.error import AtelierError
from atelier.flows.run.compose import compose
from atelier.flows.run.contexts import new_run_id, open_context
from atelier.flows.run.overrides import resuming
from atelier.flows.run.plan import make_plan
from atelier.flows.run.work import work
from atelier.infra.store.store import Store, default_root


def main(flow: str, words: list[str]) -> int:
    store = Store(default_root())
    try:
        frozen = compose(flow, [*resuming(words), "tracker=none"])
        plan = make_plan(frozen, store)
        plan.check()
        context = open_context(frozen, store, "bare", new_run_id(), lambda node, message: None)
        for node in plan.nodes:
            if node.task not in ("score", "report", "register"):
                work(node, context, {}, {})
    except AtelierError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
