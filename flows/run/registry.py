"""The registry of flows: flows/<name>.py with a function of that name, and conf/<name>.yaml."""

import importlib
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from types import ModuleType

from atelier.engine.config.extensions import kinds_of
from atelier.engine.config.kind_files import section_class
from atelier.engine.config.sections import extensions_of
from atelier.engine.io.survey import Survey
from atelier.infra.dag import Node

# keys of shared sections that do nothing in a flow, by flow; `*` stands for any name
_OF_LABELS = ("score.max_examples", "score.shots")
_SHARES = ("data.weight", "data.blend.*.weight", "data.phases", "data.phases.*")
_OF_TITAN = ("score.controls", "score.rows")


IDLE: dict[str, tuple[str, ...]] = {
    "corpus": _SHARES,
    "pretrain": (*_OF_LABELS, *_OF_TITAN),
    "distill": (*_OF_LABELS, "score.rows"),
    "score": (*_OF_LABELS, *_OF_TITAN),
    "convert": (*_OF_LABELS, *_OF_TITAN),
    "instruct": ("tokenizer", "tokenizer.*"),
    "semoe": (*_OF_LABELS, "score.rows", "convert.num_experts"),
    "nebula": (*_OF_LABELS, "score.rows"),
    "cpm2": (*_SHARES, "score.controls", "score.rows", "score.shots"),
    "finetune": (
        *("train.steps", "train.tokens", "train.global_batch", "train.sequence"),
        *("train.link", "train.link.*"),
        *("score.max_tokens", "score.sequence", "score.sample", "score.baselines"),
        *("score.shots", *_OF_TITAN),
    ),
}


# parts of an extension's section (Section.PARTS) that do nothing in a flow: section, part, flows
IDLE_PARTS = (
    ("train", "roles", ("pretrain", "titan", "instruct", "semoe", "nebula", "cpm2")),
    ("tune", "rows", ("nebula",)),
)


def is_idle(flow: str, key: str) -> bool:
    """Whether a key of the flow's configuration does nothing there."""
    return any(fnmatchcase(key, pattern) for pattern in (*IDLE.get(flow, ()), *_idle_parts(flow)))


@cache
def _idle_parts(flow: str) -> tuple[str, ...]:
    found: list[str] = []
    for section, part, flows in IDLE_PARTS:
        for name in kinds_of(f"config/{section}") if flow in flows else ():
            fields = section_class(section, name).PARTS.get(part)
            keys = (part, *fields) if fields else ()
            found += [f"{section}.{name}.{key}{below}" for key in keys for below in ("", ".*")]
    return tuple(found)


@cache
def body(name: str) -> Callable[..., None]:
    """The plain function that is the DAG of flow `name`."""
    return getattr(importlib.import_module(f"atelier.flows.{name}"), name)


@cache
def survey(name: str) -> Callable[..., Survey] | None:
    """The function `survey` of a flow's file, if it has one: what of a source from outside comes in."""
    return getattr(importlib.import_module(f"atelier.flows.{name}"), "survey", None)


def parts_of_extensions(nodes: Iterable[Node], name: str) -> list[ModuleType]:
    """The files flows/<extension>/<name>.py of extensions that trainings among the nodes use."""
    used = extensions_of(*(node.training.train for node in nodes if node.task == "train"))
    found = [f"atelier.flows.{extension}" for extension in sorted(used)]
    return [
        importlib.import_module(f"{package}.{name}")
        for package in found
        if find_spec(package) and find_spec(f"{package}.{name}")
    ]
