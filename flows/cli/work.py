"""Run one node wherever its flow runs: reuse what is finished, else call the task's `run`, and hear how it
ended.
"""

import importlib
import traceback
from typing import Any

from engine.spec.error import AtelierError, StoppedError
from infra.dag import Node
from infra.house import House


def work(node: Node, house: House, states: dict[str, str], errors: dict[str, Exception]) -> dict[str, Any]:
    """Make the node's missing products; its state and error are noted by its name.

    Returns the fingerprints (plain JSON: nothing else passes through Prefect).
    """
    states[node.name] = "running"
    is_reused = not house.missing(node)
    handle = house.tracker.start_task(node, is_reused)
    try:
        if not is_reused:
            importlib.import_module(f"tasks.{node.task}").run(node, house)
            left = house.missing(node)
            if left:
                raise AtelierError(f"{node.name}: ended without {', '.join(left)}")
        states[node.name] = "reused" if is_reused else "done"
        house.tracker.end_task(handle, "FINISHED")
        for product in node.products.values():
            house.tracker.record(house.record(product.kind, product.fingerprint))
    except StoppedError as error:
        errors[node.name] = error
        states[node.name] = "stopped"
        house.tracker.end_task(handle, "KILLED")
        raise
    except AtelierError as error:
        errors[node.name] = error
        states[node.name] = "failed"
        house.tracker.end_task(handle, "FAILED")
        raise
    except Exception as error:  # a fault of ours: keep the trace beside the run, show one line
        states[node.name] = "failed"
        house.tracker.end_task(handle, "FAILED")
        trace = house.scratch / f"{node.name.replace('/', '-')}.trace"
        trace.write_text(traceback.format_exc())
        errors[node.name] = AtelierError(f"{type(error).__name__}: {error} (trace: {trace})")
        raise errors[node.name] from error
    finally:
        house.say(node, state=states[node.name], detail=_detail(node))
    return {key: product.fingerprint for key, product in node.products.items()}


def _detail(node: Node) -> str:
    names = [f"{p.name} {p.fingerprint[:8]}" for p in node.products.values()]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
