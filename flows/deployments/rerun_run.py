"""Run a past run again: the flow of the deployment `rerun`."""

from prefect.client.schemas.objects import State

from atelier.engine.config.base import JsonObject
from atelier.flows.deployments.flow_run import carried_out
from atelier.flows.deployments.rerun_form import rerun_of_form


def run(_: str, parameters: JsonObject) -> State:
    """Run the filled form. Returns the final state."""
    return carried_out(lambda store: rerun_of_form(parameters, store), str(parameters.get("code") or ""))
