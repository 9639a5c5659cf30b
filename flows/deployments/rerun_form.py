"""The deployment `rerun`: its form (a past run, the first task to change, new settings) and its flow."""

from collections.abc import Mapping

from prefect.client.schemas.objects import State

from atelier.engine.config.base import Json, JsonObject
from atelier.engine.config.error import ConfigError, nearest
from atelier.flows.deployments.flow_run import carried_out
from atelier.flows.deployments.form_fields import CODE, FieldSchema, FormSchema
from atelier.flows.deployments.forms import to_overrides
from atelier.flows.run.compose import RunConfig, run_of
from atelier.flows.run.overrides import shown
from atelier.flows.run.pools import POOL_WHEN_BLANK
from atelier.flows.run.rerun import past_run, rerun
from atelier.infra.store.store import Store

RERUN = "rerun"
RERUN_ABOUT = (
    "Run a past run again with changed settings: what they change is made, the rest reused.\n\n"
    "The same on the command line: `atelier rerun <run> --from <task> key=value`"
)
FIELDS: dict[str, FieldSchema] = {
    "run": {
        "type": "string",
        "description": "the past run: its id, which ends its name on the page of runs, or that name",
    },
    "from_task": {
        "type": "string",
        "description": "the first task that may change, such as score; blank = any. A setting that changes"
        " a task before it is refused",
    },
    "overrides": {
        "type": "array",
        "items": {"type": "string"},
        "description": "new settings, one override each, such as train.seed=2, in place of the run's own;"
        " none = finish what is missing",
    },
    "code": CODE,
}
RERUN_FORM: FormSchema = {
    "title": "Parameters",
    "type": "object",
    "properties": {
        name: {"title": name, **schema, "position": number}
        for number, (name, schema) in enumerate(FIELDS.items())
    },
    "required": ["run"],
}


def rerun_of_form(parameters: Mapping[str, Json], store: Store) -> RunConfig:
    """The configuration of a filled form. Raises ConfigError as flows.run.rerun.rerun does, for an unknown
    field, and for words that forms refuse; the past run's own words are held to the same rules.
    """
    for name in parameters:
        if name not in FIELDS:
            near = nearest(str(name), FIELDS)
            advice = f"did you mean {near}? " if near else ""
            raise ConfigError(
                shown(name), "the form has no such field", f"{advice}it has: {', '.join(FIELDS)}"
            )
    texts = {name: parameters.get(name) or "" for name in ("run", "from_task")}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise ConfigError(name, f"must be a text (given: {shown(value)})", FIELDS[name]["description"])
    run, task = (str(value).strip() for value in texts.values())
    if not run:
        raise ConfigError("run", "is needed", FIELDS["run"]["description"])
    past = past_run(store, run_of(run))
    given = parameters.get("overrides") or []
    words = to_overrides(past.flow, {"overrides": given, "code": parameters.get("code")})
    to_overrides(past.flow, {"overrides": list(past.overrides)})
    return rerun(store, past.id, words, task, default_pool=POOL_WHEN_BLANK, from_form=True).frozen


def run(_: str, parameters: JsonObject) -> State:
    """Run the filled form. Returns the final state of its Prefect run."""
    return carried_out(lambda store: rerun_of_form(parameters, store), str(parameters.get("code") or ""))
