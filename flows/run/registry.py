"""The registry of flows: flows/<name>.py with a function of that name, and conf/<name>.yaml."""

import importlib
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import cache

from atelier.engine.config.link import OF_ROLES, OF_ROWS
from atelier.engine.io.survey import Survey

# keys of shared sections that do nothing in a flow, by flow; `*` stands for any name
_OF_LABELS = ("score.max_examples", "score.shots")
_SHARES = ("data.weight", "data.blend.*.weight", "data.phases", "data.phases.*")
_OF_TITAN = ("score.controls", "score.rows")


def _of_link(section: str, keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{section}.link.{key}{below}" for key in keys for below in ("", ".*"))


_APART = _of_link("train", ("roles", *OF_ROLES))
IDLE: dict[str, tuple[str, ...]] = {
    "corpus": _SHARES,
    "pretrain": (*_OF_LABELS, *_OF_TITAN, *_APART),
    "titan": _APART,
    "distill": (*_OF_LABELS, "score.rows"),
    "score": (*_OF_LABELS, *_OF_TITAN),
    "convert": (*_OF_LABELS, *_OF_TITAN),
    "instruct": ("tokenizer", "tokenizer.*", *_APART),
    "semoe": (*_OF_LABELS, "score.rows", "convert.num_experts", *_APART),
    "nebula": (*_OF_LABELS, "score.rows", *_APART, *_of_link("tune", ("rows", *OF_ROWS))),
    "cpm2": (*_SHARES, "score.controls", "score.rows", "score.shots", *_APART),
    "finetune": (
        *("train.steps", "train.tokens", "train.global_batch", "train.sequence"),
        *("train.link", "train.link.*"),
        *("score.max_tokens", "score.sequence", "score.sample", "score.baselines"),
        *("score.shots", *_OF_TITAN),
    ),
}


def is_idle(flow: str, key: str) -> bool:
    """Whether a key of the flow's configuration does nothing there."""
    return any(fnmatchcase(key, pattern) for pattern in IDLE.get(flow, ()))


@cache
def body(name: str) -> Callable[..., None]:
    """The plain function that is the DAG of flow `name`."""
    return getattr(importlib.import_module(f"atelier.flows.{name}"), name)


@cache
def survey(name: str) -> Callable[..., Survey] | None:
    """The function `survey` of a flow's file, if it has one: what of a source from outside comes in."""
    return getattr(importlib.import_module(f"atelier.flows.{name}"), "survey", None)
