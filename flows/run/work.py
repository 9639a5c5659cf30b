"""Run one node: reuse finished products, else call the task's `run` (by default, start ranks of its MODULE),
and record how it ended.
"""

import importlib
import traceback
from contextlib import suppress
from types import ModuleType

from atelier.engine.config.error import AtelierError, StoppedError, of_system
from atelier.engine.config.project_roots import file_of_root, module_of
from atelier.infra.dag import Node
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest
from atelier.tasks.train import is_asked


def work(
    node: Node, context: RunContext, states: dict[str, str], errors: dict[str, Exception]
) -> dict[str, str]:
    """Make the node's missing products, and record state and error under its name.

    Returns the fingerprints (plain JSON: nothing else passes through Prefect). Raises AtelierError when the
    node fails, StoppedError when it was stopped.
    """
    states[node.name] = "running"
    is_reused = not context.missing(node) and not (node.task == "train" and is_asked(node))
    handle = context.tracker.start_task(node, is_reused)
    try:
        task = _module(node.task)
        if is_reused:
            mend([node], context)
        if is_reused and hasattr(task, "reuse"):  # side effects besides the artifact
            task.reuse(node, context)
        if not is_reused:
            if hasattr(task, "run"):
                task.run(node, context)
            else:
                asked = GangRequest(node=node, module=task.MODULE, outputs=context.missing(node))
                context.gang(asked)
            left = context.missing(node)
            if left:
                raise AtelierError(f"{node.name}: ended without {', '.join(left)}")
        states[node.name] = "reused" if is_reused else "done"
        context.tracker.end_task(handle, "FINISHED")
        for product in node.products.values():
            context.tracker.record(context.record(product.kind, product.fingerprint))
    except Exception as problem:
        error = _told(problem, node, context)
        errors[node.name] = error
        states[node.name] = "stopped" if isinstance(error, StoppedError) else "failed"
        context.tracker.end_task(handle, "KILLED" if isinstance(error, StoppedError) else "FAILED")
        if states[node.name] == "failed":
            context.say(node, error=str(error))
        raise error from problem.__cause__
    finally:
        context.say(node, state=states[node.name], detail=_detail(node))
    return {key: product.fingerprint for key, product in node.products.items()}


def mend(nodes: list[Node], context: RunContext) -> None:
    """Repair damage beside the finished products of these nodes."""
    for node in nodes:
        task = _module(node.task)
        if hasattr(task, "mend"):
            task.mend(node, context)


def _module(task: str) -> ModuleType:
    """The module of a task, in whichever root has it."""
    return importlib.import_module(module_of(file_of_root(f"tasks/{task}.py")))


def _told(error: Exception, node: Node, context: RunContext) -> AtelierError:
    """The error to show: one line; a bug's traceback is written beside the run."""
    if isinstance(error, AtelierError):
        return error
    if isinstance(error, OSError):
        return of_system(error)
    trace = context.scratch / f"{node.name.replace('/', '-')}.trace"
    with suppress(OSError):  # without a file, the line must do
        trace.write_text("".join(traceback.format_exception(error)))
    return AtelierError(f"{type(error).__name__}: {error} (trace: {trace})")


def _detail(node: Node) -> str:
    names = [f"{p.name} {p.fingerprint[:8]}" for p in node.products.values()]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
