"""Deploy every flow with its form, and every pool of conf/, on the Prefect server.

For a server that `atelier up` did not start: `python -m atelier.flows.deployments.deploy`.
"""

import sys
import time
from dataclasses import dataclass, field
from typing import cast

from atelier.engine.config.base import Json, JsonObject
from atelier.engine.config.device import AUTO
from atelier.engine.config.error import AtelierError
from atelier.engine.config.pool import Pool
from atelier.flows.deployments.forms import form
from atelier.flows.deployments.rerun_form import RERUN, RERUN_ABOUT, RERUN_FORM
from atelier.flows.run.catalog import FlowShape, flow_names, flow_text
from atelier.flows.run.pools import LIGHT_LIMIT, gangs_at_once, served_pools
from atelier.infra.stack import prefect_api
from atelier.infra.stack.deployments import (
    WORK,
    Deployed,
    put_deployment,
    put_pool,
    put_queues,
    put_zombie_automation,
)
from atelier.infra.stack.stack import LIGHT

WORKER_S = 60.0


@dataclass
class Done:
    """The deployed flows and pools."""

    pools: dict[str, Pool] = field(default_factory=dict)
    flows: dict[str, str] = field(default_factory=dict)
    light: int = LIGHT_LIMIT

    def wait_for_workers(self, pools: list[str]) -> None:
        """Wait until each pool has a worker. Raises AtelierError after a timeout."""
        deadline = time.monotonic() + WORKER_S
        while True:
            with prefect_api.server() as client:
                missing = [pool for pool in pools if not prefect_api.workers(client, pool)]
            if not missing:
                return
            if time.monotonic() > deadline:
                raise AtelierError(
                    f"no worker has started for {', '.join(missing)}; see its log (atelier status)"
                )
            time.sleep(0.3)


def deploy() -> Done:
    """Create or update pools, queues, flow deployments, `work` for each pool, and the automation."""
    done = Done(pools=served_pools())
    with prefect_api.server() as client:
        put_pool(client, LIGHT, "parent flows: they plan and wait, they do not compute", LIGHT_LIMIT)
        for name, pool in done.pools.items():
            about = f"gangs; {pool.gpus or 'no'} {pool.gpu if pool.gpus else 'GPU'}"
            about = "gangs; the GPUs of its worker's machine" if pool.gpu == AUTO else about
            put_pool(client, name, about, gangs_at_once(pool))
            put_queues(client, name)
            work = Deployed(flow=WORK, name=name, pool=name, entry=WORK, about=WORK_ABOUT, form=WORK_FORM)
            done.flows[f"{WORK}/{name}"] = put_deployment(client, work)
        for flow in flow_names():
            text = f"{flow_text(flow)[0]}.\n\nThe same on the command line: `{example(flow)}`"
            deployed = Deployed(flow=flow, about=text, pool=LIGHT, form=cast(JsonObject, form(flow)))
            done.flows[flow] = put_deployment(client, deployed)
        again = Deployed(flow=RERUN, about=RERUN_ABOUT, pool=LIGHT, form=cast(JsonObject, RERUN_FORM))
        done.flows[RERUN] = put_deployment(client, again)
        put_zombie_automation(client)
    return done


def example(flow: str) -> str:
    """An example command of the flow on a pool. On a pool a flow runs at one site."""
    one_site = ["sites=[]"] if "sites" in FlowShape(flow).document else []
    return " ".join([flow_text(flow)[1], *one_site, "pool=local"])


WORK_ABOUT = "One task of a flow. Flows start it; do not fill in this form."
WORK_FORM: dict[str, Json] = {
    "title": "Parameters",
    "type": "object",
    "properties": {
        "node": {"type": "object", "title": "node", "position": 0},
        "run": {"type": "object", "title": "run", "position": 1},
        "code": {"type": "string", "title": "code", "position": 2},
        "gang": {"type": "object", "title": "gang", "position": 3},
    },
    "required": ["node", "run", "code"],
}


if __name__ == "__main__":
    try:
        print(f"deployed: {', '.join(sorted(deploy().flows))}")
    except AtelierError as error:
        sys.exit(str(error))
