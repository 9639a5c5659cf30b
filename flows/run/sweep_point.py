"""The points of a sweep, each with the configuration of its own run. Points that differ only in their
students train these together with one teacher.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from atelier.engine.config.base import Json, canonical, fingerprint
from atelier.engine.config.document import section_of
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.evaluation import held_out_name
from atelier.engine.config.role import Role
from atelier.flows.run.compose import RunConfig, compose
from atelier.infra.dag import Node
from atelier.infra.store.run_manifest import Row, described, measured
from atelier.infra.store.store import Store

SEPARATOR = "~"
FORCED = re.compile(r"^\+\+")  # prefix that `prepared` adds for Hydra


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep. `number` counts its points from 0 and is never reused. `nodes` is its DAG, without
    companions.
    """

    number: int
    words: tuple[str, ...]
    frozen: RunConfig
    nodes: list[Node]
    store: Store

    def is_finished(self) -> bool:
        made = (p for node in self.nodes for p in node.products.values())
        return all(self.store.find(p.kind, p.fingerprint) is not None for p in made)

    @cached_property
    def rows(self) -> list[Row]:
        """The point's artifacts, as rows of a run's manifest."""
        return [row for node in self.nodes for row in described(node)]

    def value(self, metric: str) -> float | None:
        """`<name>.<key>` of the point's summaries (infra.store.run_manifest.measured); None if there is none
        yet.
        """
        found = measured(self.store, self.rows, metric)
        return found[0] if found else None

    @cached_property
    def looked_at(self) -> str:
        """The held-out windows that measure its trainings, as text; '' without trainings."""
        for node in self.nodes:
            if node.task == "train":
                train = node.training.train
                tokens = {fp: 1 for role, (_, fp) in node.inputs.items() if role.startswith("tokens")}
                of = held_out_name(tokens, train.sequence).rpartition(" windows ")[2]
                return f"{train.eval_sequences} windows {of}"
        return ""


def point_fingerprint(nodes: Sequence[Node]) -> str:
    """Fingerprint of all artifacts that a DAG makes, without layout: points with the same artifacts are one
    point.
    """
    made = sorted(product.fingerprint for node in nodes for product in node.products.values())
    return fingerprint({"made": made})


def words_of(job: Sequence[str]) -> tuple[str, ...]:
    """The overrides of a job as a user writes them."""
    return tuple(FORCED.sub("", word) for word in job)


def composed(flow: str, jobs: Sequence[Sequence[str]]) -> list[RunConfig]:
    """The configurations of all jobs, all validated before the first one runs. Raises ConfigError with number
    and words of the point.
    """
    found = []
    for number, words in enumerate(jobs):
        try:
            found.append(compose(flow, list(words)))
        except AtelierError as error:
            raise ConfigError(f"point {number} ({' '.join(words)})", str(error)) from None
    return found


def companions_of(frozen: RunConfig, others: Sequence[RunConfig]) -> dict[str, Role]:
    """The students of `others` that can train with the teacher of `frozen`: those of configurations that
    differ from it only in their students.
    """
    roles = frozen.roles
    if not roles:
        return {}
    known = {canonical(_named(name, role)) for name, role in roles.items()}
    companions: dict[str, Role] = {}
    for other in others:
        if _frame(other) != _frame(frozen):
            continue
        for name, role in other.roles.items():
            teaches = roles.get(role.teacher)
            mark = canonical(_named(name, role))
            if teaches is None or teaches.teacher or mark in known:
                continue
            known.add(mark)
            key = f"{name}{SEPARATOR}{len(companions) + 1}"
            companions[key] = role.model_copy(update={"seed_name": role.seed_name or name})
    return companions


def with_companions(frozen: RunConfig, companions: Mapping[str, Role]) -> RunConfig:
    return replace(frozen, companions=dict(companions))


def _named(name: str, role: Role) -> dict[str, Json]:
    return role.model_dump(mode="json") | {"seed_name": role.seed_name or name}


def _frame(point: RunConfig) -> bytes:
    """The configuration without its students."""
    sections = section_of(point.document.get("roles"))
    roles = {name: role for name, role in sections.items() if not section_of(role)["teacher"]}
    return canonical({**point.document, "roles": roles, "companions": {}})
