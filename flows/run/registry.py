"""The registry of flows: flows/<name>.py with a function of that name, and conf/<name>.yaml."""

import importlib
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import cache
from types import ModuleType

from atelier import PROJECT
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.extensions import kinds_of
from atelier.engine.config.kind_files import section_class, where_and_why
from atelier.engine.config.project_roots import module_of
from atelier.engine.config.sections import extensions_of
from atelier.engine.io.survey import Survey
from atelier.flows.run.catalog import flow_file
from atelier.infra.dag import Node

# keys of shared sections without effect in a flow, by flow; `*` is any name
_OF_LABELS = ("score.max_examples", "score.shots")
_SHARES = (
    *("data.weight", "data.blend.*.weight", "data.phases", "data.phases.*"),
    *("data.epochs", "data.blend.*.epochs", "data.assignment"),
)
_OF_TEXT = ("data.units", "data.units.*", "data.attributes", "data.attributes.*")
_OF_TITAN = ("score.controls", "score.rows")


IDLE: dict[str, tuple[str, ...]] = {
    "corpus": (*_SHARES, "data.attributes", "data.attributes.*"),
    "pretrain": (*_OF_LABELS, *_OF_TITAN),
    "distill": (*_OF_LABELS, "score.rows"),
    "score": (*_OF_LABELS, *_OF_TITAN),
    "convert": (*_OF_LABELS, *_OF_TITAN),
    "instruct": ("tokenizer", "tokenizer.*"),
    "semoe": (*_OF_LABELS, "score.rows", "convert.num_experts"),
    "nebula": (*_OF_LABELS, "score.rows"),
    "cpm2": (*_SHARES, *_OF_TEXT, "score.controls", "score.rows", "score.shots"),
    "finetune": (
        *("train.steps", "train.tokens", "train.global_batch", "train.sequence"),
        *("train.link", "train.link.*"),
        *("score.max_tokens", "score.sequence", "score.sample", "score.baselines"),
        *("score.shots", *_OF_TITAN),
    ),
}


# parts of an extension's section (Section.NEEDS) without effect in a flow: section, part, flows
IDLE_PARTS = (
    ("train", "roles", ("pretrain", "titan", "instruct", "semoe", "nebula", "cpm2")),
    ("detect", "rows", ("nebula",)),
    ("tune", "rows", ("nebula",)),
)


def is_idle(flow: str, key: str) -> bool:
    """Whether a key of the flow's configuration has no effect."""
    return any(fnmatchcase(key, pattern) for pattern in IDLE.get(flow, ())) or _is_idle_part(flow, key)


def _is_idle_part(flow: str, key: str) -> bool:
    section, name, field = (*key.split("."), "", "", "")[:3]
    parts = [part for at, part, flows in IDLE_PARTS if at == section and flow in flows]
    if not parts or name not in kinds_of(f"config/{section}"):
        return False
    needs = section_class(section, name).NEEDS
    return any(field in (part, *needs[part]) for part in parts if part in needs)


@cache
def body(name: str) -> Callable[..., None]:
    """The plain function that is the DAG of flow `name`."""
    module = _module(name)
    if not hasattr(module, name):
        way_out = "the flow is the function with the file's name"
        raise ConfigError(flow_file(name), f"has no function {name}", way_out)
    return getattr(module, name)


def _module(name: str) -> ModuleType:
    """The module of a flow. Raises ConfigError, with file and line, if its import fails."""
    file = flow_file(name)
    try:
        return importlib.import_module(module_of(file))
    except AtelierError:
        raise
    except Exception as error:  # an import may raise anything
        raise ConfigError(f"flow {name}", where_and_why(error, file), "correct it") from error


@cache
def survey(name: str) -> Callable[..., Survey] | None:
    """The function `survey` of a flow's file, if it has one. It lists the importable parts of a source."""
    return getattr(_module(name), "survey", None)


def parts_of_extensions(nodes: Iterable[Node], name: str) -> list[ModuleType]:
    """The modules flows/<extension>/<name>.py of extensions that the nodes' trainings use."""
    used = sorted(extensions_of(*(node.training.train for node in nodes if node.task == "train")))
    found = [each for each in used if (PROJECT / "flows" / each / f"{name}.py").exists()]
    return [importlib.import_module(f"atelier.flows.{each}.{name}") for each in found]
