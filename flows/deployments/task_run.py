"""`work`, the generic flow on every pool: run one node for its parent run."""

import threading

from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Crashed, Failed

from atelier.engine.config.base import JsonObject
from atelier.engine.config.error import AtelierError, StoppedError
from atelier.flows.deployments.cancellation import present, watching_worker
from atelier.flows.deployments.task_page import TaskPage
from atelier.flows.deployments.task_request import TaskRequest
from atelier.flows.run.execute import stopping
from atelier.flows.run.pools import site_of
from atelier.flows.run.work import work
from atelier.infra.launch.gang import DiedError
from atelier.infra.launch.slots import core_slots
from atelier.infra.run.context import RunContext
from atelier.infra.store.local_folders import scratch_of
from atelier.infra.store.store import Store, default_root
from atelier.infra.tracking.factory import open_tracker


def run(_: str, parameters: JsonObject) -> State:
    """Run the node of `parameters`. Returns the final state."""
    request = TaskRequest.model_validate(parameters)
    node, about, pool = request.node, request.run, request.run.pool
    store = Store(default_root())
    tracker = open_tracker(
        about.tracker,
        store,
        flow=about.flow,
        command=about.command,
        run_id=about.id,
        config={},
        is_part=True,
    )
    tracker.link(**about.links)
    with TaskPage(store.root, about.id, node) as task_page:
        context = RunContext(
            store=store,
            slots=core_slots(pool, store, request.gang),
            # for this run alone: several nodes may share a disk
            scratch=scratch_of(store, about.id) / str(flow_run.id)[:13],
            pool=pool,
            site=site_of(pool),
            run_id=about.id,
            flow=about.flow,
            command=about.command,
            listener=task_page.on_message,
            tracker=tracker,
            links=dict(about.links),
            resume=about.resume,
            place=request.gang,
        )
        orphaned = threading.Event()
        status = "failed"
        try:
            with stopping(context.stop), present(context.stop), watching_worker(context.stop, orphaned):
                if context.place is not None and not context.place.is_first:
                    context.follow(node, "atelier.engine.train", node.ranks, node.threads)
                    return Completed(message=f"node {context.place.index} of {context.place.size} is done")
                work(node, context, {}, {})
            status = "finished"
            return Completed(
                message=", ".join(f"{p.name} {p.fingerprint[:8]}" for p in node.products.values())
            )
        except StoppedError as error:
            status = "stopped"
            if orphaned.is_set():
                return Crashed(message="its worker died; it stopped at a checkpoint")
            return Cancelled(message=str(error))
        except DiedError as error:
            return Crashed(message=str(error))
        except AtelierError as error:
            return Failed(message=str(error))
        finally:
            tracker.close(status)
