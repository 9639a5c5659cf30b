"""What an extension adds to plans and runs: files of flows/<extension>/, imported where a task uses it."""

import importlib
from collections.abc import Iterable
from importlib.util import find_spec
from types import ModuleType

from atelier.engine.config.sections import extensions_of
from atelier.infra.dag import Node


def parts(nodes: Iterable[Node], name: str) -> list[ModuleType]:
    """The files of this name of the extensions that trainings among the nodes use, sorted by extension."""
    used = extensions_of(*(node.training.train for node in nodes if node.task == "train"))
    found = [f"atelier.flows.{extension}" for extension in sorted(used)]
    return [
        importlib.import_module(f"{package}.{name}")
        for package in found
        if find_spec(package) and find_spec(f"{package}.{name}")
    ]
