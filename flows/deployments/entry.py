"""Entry points of Prefect's deployments: `atelier.flows.deployments.entry.<flow>` for every flow, and `rerun`
and `work` of the same file.

A worker imports this file from the code that it was started with. A run brings its own code, frozen when it
was submitted. So no other module of the project may stay imported before that code is in place.
"""

import importlib
import sys
from functools import cache
from inspect import Parameter, Signature
from typing import Any

import prefect
from prefect.client.schemas.objects import State
from prefect.states import Failed

WORK_PARAMETERS = ("node", "run", "code", "gang")
RERUN_PARAMETERS = ("run", "from_task", "overrides", "code")


def __getattr__(name: str) -> prefect.Flow:
    if name.startswith("_"):
        raise AttributeError(name)
    return _made(name)


@cache
def _made(name: str) -> prefect.Flow:
    """The Prefect flow called `name`: the form's fields are its optional parameters."""
    if name == "work":
        return _flow("work", WORK_PARAMETERS, "atelier.flows.deployments.task_run")
    if name == "rerun":
        return _flow(name, RERUN_PARAMETERS, "atelier.flows.deployments.rerun_form")
    from atelier.flows.deployments.forms import (
        parameter_names,  # from the installed code, which made the deployment
    )

    return _flow(name, parameter_names(name), "atelier.flows.deployments.flow_run")


def _flow(name: str, parameters: tuple[str, ...], module: str) -> prefect.Flow:
    def run(**given: object) -> State:  # values of the form; the module checks them
        refused = use_code(str(given.get("code") or ""))
        if refused:
            return Failed(message=refused)
        filled = {key: value for key, value in given.items() if value is not None}
        return importlib.import_module(module).run(name, filled)

    named: Any = run  # functions declare no settable signature
    named.__signature__ = Signature(
        [Parameter(key, Parameter.KEYWORD_ONLY, default=None) for key in parameters]
    )
    named.__name__ = named.__qualname__ = name
    return prefect.flow(name=name, validate_parameters=False, persist_result=False)(named)


def use_code(digest: str) -> str:
    """Import the project from the frozen code of `digest` from now on ('' = from the installation). Returns
    the reason if that is impossible, else ''.
    """
    if not digest:
        return ""
    from atelier.engine.config.error import AtelierError  # of the installed code, only to find the frozen one
    from atelier.engine.config.project_roots import other_roots  # as above
    from atelier.engine.io.user_folders import own_folder  # as above
    from atelier.infra.code.frozen import installed, put_first, thaw, use_roots_of  # as above
    from atelier.infra.store.store import default_root  # as above

    if installed() == digest:
        return ""
    try:
        folder = thaw(default_root(), digest, own_folder() / "code")
    except AtelierError as error:
        return str(error)
    owned = {"atelier", *(root.name for root in other_roots())}
    for module in [name for name in sys.modules if name.split(".")[0] in owned and name != __name__]:
        del sys.modules[module]
    sys.path.insert(0, str(folder))
    put_first(str(folder))  # for gangs and their supervisors
    use_roots_of(folder)
    importlib.invalidate_caches()
    return ""
