"""The flows there are: flows/<name>.py with a function of that name, and conf/<name>.yaml. The folder is the
registry.
"""

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from pydantic import create_model

from engine.spec.base import Spec


@cache
def body(name: str) -> Callable[..., Any]:
    """The plain function that is the DAG of flow `name`."""
    return getattr(importlib.import_module(f"flows.{name}"), name)


@cache
def parameters(name: str) -> type[Spec]:
    """The flow's parameters as one spec, from the signature of its body: unknown keys and wrong types are
    refused there.
    """
    fields: dict[str, Any] = {}
    for key, parameter in inspect.signature(body(name)).parameters.items():
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[key] = (parameter.annotation, default)
    return create_model(name, __base__=Spec, **fields)
