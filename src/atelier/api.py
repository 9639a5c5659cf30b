"""Atelier from Python: the commands as functions that return their results.

from atelier.api import plan, run

result = run("distill", experiment="tiny", train={"steps": 20})
result.models["student_a"].summary["eval_loss"]

Overrides are words of the command line ("train.steps=20"), mappings ({"train.steps": 20}) or keyword values,
in this order; flows/run/python_values.py has the rules for values. The store is $ATELIER_ROOT, or .atelier in
the working directory. Mistakes raise ConfigError (place, problem, way_out), failures another AtelierError.
Nothing is printed unless requested. `import atelier.api` is fast: the functions import what they need.
"""

import shlex
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast, overload

from atelier.engine.config.error import AtelierError, ConfigError, DamageError, DataError, StoppedError

if TYPE_CHECKING:
    import os

    from atelier.engine.config.base import Json
    from atelier.flows.run.export import Exported
    from atelier.flows.run.planned import PlanResult
    from atelier.flows.run.python_values import Value
    from atelier.infra.report.lineage_graph import Edge, Graph, LineageNode
    from atelier.infra.report.listing import ModelRow, RunRow
    from atelier.infra.store.run_manifest import RunManifest
    from atelier.infra.store.store import Store

__all__ = [
    "Artifact",
    "AtelierError",
    "ConfigError",
    "DamageError",
    "DataError",
    "Lineage",
    "RunResult",
    "StoppedError",
    "export",
    "generate",
    "lineage",
    "models",
    "plan",
    "run",
    "runs",
    "tracking_uri",
]


@dataclass(frozen=True)
class Artifact:
    """An artifact that a run made or reused. `name` is its readable name, `url` the folder or fsspec URL of
    its files, `summary` its record's numbers (losses in nats a token). `parents` maps the part of each parent
    to its fingerprint; a model's `trajectory` is the tag `atelier.trajectory` of the MLflow run with its
    curves.
    """

    name: str
    kind: str
    fingerprint: str
    url: str
    summary: "Mapping[str, Json]"
    parents: dict[str, str]
    is_reused: bool


@dataclass(frozen=True)
class RunResult:
    """A successful run. `artifacts` are keyed as in the plan (curate, train.student_a ...); `links` are pages
    about the run, by name, if there is a server; `untracked` is the data that MLflow does not have yet.
    """

    id: str
    flow: str
    status: str
    artifacts: dict[str, Artifact]
    manifest: "RunManifest"
    links: dict[str, str]
    untracked: list[str]

    @cached_property
    def models(self) -> dict[str, Artifact]:
        """The models among the artifacts, by their own names."""
        return {one.name: one for one in self.artifacts.values() if one.kind == "model"}


@dataclass(frozen=True)
class Lineage:
    """Ancestors and descendants of an artifact; `print` shows a tree, a notebook a picture."""

    graph: "Graph"

    @property
    def focus(self) -> "LineageNode":
        """The requested artifact or run."""
        return self.graph.nodes[self.graph.focus]

    @property
    def nodes(self) -> "list[LineageNode]":
        """The focus with its ancestors and descendants, parents first."""
        return [self.graph.nodes[fingerprint] for fingerprint in self.graph.order()]

    @property
    def edges(self) -> "tuple[Edge, ...]":
        """From parent to child, by fingerprint, with the parent's part."""
        return self.graph.edges

    def document(self) -> "Mapping[str, Json]":
        """The output of `atelier lineage` with `--json`."""
        from atelier.infra.report.lineage_text import to_json

        return to_json(self.graph)

    def html(self) -> str:
        """The page that `atelier lineage` writes with `--html`."""
        from atelier.infra.report.lineage_text import to_html

        return to_html(self.graph)

    def __str__(self) -> str:
        from atelier.infra.report.lineage_text import to_text

        return to_text(self.graph).rstrip()

    def _repr_svg_(self) -> str:
        from atelier.infra.report.lineage_svg import to_svg

        return to_svg(self.graph)


def plan(
    flow: str,
    /,
    *overrides: "str | Mapping[str, Value]",
    search: bool = False,
    accept_code: bool = False,
    fresh: Sequence[str] = (),
    **values: "Value",
) -> "PlanResult":
    """The tasks that a run would run or reuse, with reasons, memory and time: `atelier plan`. Runs nothing,
    and imports neither torch nor MLflow. `search` adds other layouts.

    Raises ConfigError for an unknown flow and invalid overrides, and if code changed since this process read
    it; other refusals are in `refused`.

    >>> for row in plan("distill", experiment="tiny").tasks:
    ...     print(row["name"], row["state"], row["memory_gb"])
    """
    from atelier.flows.run.planned import planned
    from atelier.flows.run.store_check import open_store
    from atelier.infra.code.code_map import check_unread_changes

    check_unread_changes()
    return planned(flow, _words(overrides, values, accept_code, fresh), open_store(), search=search)


def run(
    flow: str,
    /,
    *overrides: "str | Mapping[str, Value]",
    progress: bool = False,
    accept_code: bool = False,
    fresh: Sequence[str] = (),
    **values: "Value",
) -> RunResult:
    """Run a flow, or continue it: `atelier <flow>`. It runs in a child process, also from a notebook or a
    thread; `progress` prints the command line's progress. KeyboardInterrupt stops it at a checkpoint, like
    Ctrl-C, and is raised again.

    Raises ConfigError when it is refused, the task's AtelierError when a task fails, StoppedError when it was
    stopped from outside. Finished tasks are kept; the same call continues.

    >>> result = run("distill", experiment="tiny", tracker="none")
    >>> result.models["student_a"].summary["eval_loss"]
    """
    from atelier.flows.deployments.run_process import run_in_process
    from atelier.flows.run.catalog import check_flow
    from atelier.flows.run.store_check import open_store

    check_flow(flow, "run")
    words = _words(overrides, values, accept_code, fresh)
    command = shlex.join(["atelier", flow, *words])
    ending = run_in_process(flow, words, command, print if progress else None)
    return _result(ending["run"], ending["untracked"], open_store())


def runs() -> "list[RunRow]":
    """The runs with their end and their artifacts, the oldest first: `atelier runs`. Warns of runs with
    unreadable manifests.

    >>> [one["id"] for one in runs() if one["status"] == "finished"]
    """
    from atelier.flows.run.store_check import open_store
    from atelier.infra.report.listing import run_rows

    found, damaged = run_rows(open_store())
    for damage in damaged:
        warnings.warn(f"{damage}; {damage.way_out}", stacklevel=2)
    return found


def models() -> "list[ModelRow]":
    """The trained models of the store, the oldest first: `atelier models`.

    >>> min(models(), key=lambda one: one["eval_loss"])["name"]
    """
    from atelier.flows.run.store_check import open_store
    from atelier.infra.report.listing import model_rows

    return model_rows(open_store())


def lineage(what: str) -> Lineage:
    """Ancestors and descendants of an artifact, by its name, alias or fingerprint, or of a run, by its id:
    `atelier lineage`. Raises AtelierError if there is none.

        >>> print(lineage("student_a"))
    """
    from atelier.flows.run.store_check import open_store
    from atelier.infra.report import lineage as reading

    return Lineage(reading.lineage(open_store(), what))


@overload
def generate(
    model: str, prompt: str = "", *, max_tokens: int = ..., temperature: float = ..., top_p: float = ...,
    seed: int = ..., best_of: int = ..., memory: str | float = ..., genre: str = ..., topic: str = ...,
    keywords: Sequence[str] = ..., sentiment: str = ..., length: int = ..., split: str = ...,
) -> str: ...  # fmt: skip
@overload
def generate(
    model: str, prompt: Sequence[str], *, max_tokens: int = ..., temperature: float = ..., top_p: float = ...,
    seed: int = ..., best_of: int = ..., memory: str | float = ..., genre: str = ..., topic: str = ...,
    keywords: Sequence[str] = ..., sentiment: str = ..., length: int = ..., split: str = ...,
) -> list[str]: ...  # fmt: skip
def generate(
    model: str,
    prompt: str | Sequence[str] = "",
    *,
    max_tokens: int = 128,
    temperature: float = 0.8,
    top_p: float = 1.0,
    seed: int = 0,
    best_of: int = 1,
    memory: str | float = 0.0,
    genre: str = "",
    topic: str = "",
    keywords: Sequence[str] = (),
    sentiment: str = "",
    length: int = 0,
    split: str = "",
) -> str | list[str]:
    """The continuation of a text, without the text itself, or of several: `atelier generate`, with its
    options. `model` is a name, name@alias or digits of a fingerprint; `memory` limits the weights in memory
    ("2GB" or a number of GB; 0 = all); `split` is its layout over ranks of this machine ("tensor=2").

    Raises ConfigError for an unknown model and invalid settings.

    >>> generate("student_a", "def main(", max_tokens=40, temperature=0)
    """
    from atelier.engine.config.parallel import split_of
    from atelier.flows.run.generate import continuations, generation_of, model_called
    from atelier.flows.run.store_check import open_store

    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    given: dict[str, Json] = {
        "max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed,
        "best_of": best_of, "memory": str(memory) if memory else None, "genre": genre, "topic": topic,
        "keywords": list(keywords), "sentiment": sentiment, "length": length,
    }  # fmt: skip
    generation, store = generation_of(prompts, given), open_store()
    texts = [""] * len(prompts)
    if prompts:
        record, layout = model_called(model, store), split_of(split, "split")
        with closing(continuations(record, generation, store, layout)) as pieces:
            for piece in pieces:
                texts[piece.get("prompt", 0)] += piece.get("text", "")
    return texts[0] if isinstance(prompt, str) else texts


def export(
    model: str, url: "str | os.PathLike[str]", *, format: str = "hf", family: str = "", dtype: str = ""
) -> "Exported":
    """Write a model for transformers, or an adapter for peft, into a new folder or an fsspec URL: `atelier
    export`. Raises ConfigError for an unknown model, DataError for one that no family can represent.

    >>> export("student_a", "exported/student_a", dtype="bfloat16").family
    """
    from os import fspath

    from atelier.flows.run import export as exporting
    from atelier.flows.run.store_check import open_store

    return exporting.export(model, fspath(url), open_store(), format=format, family=family, dtype=dtype)


def tracking_uri() -> str:
    """The MLflow address for runs of this store: $MLFLOW_TRACKING_URI, the server of a running `atelier up`,
    or a database in the store's folder. Puts the credential of that server, and no other, into this process's
    environment for MLflow's client.

    >>> mlflow.set_tracking_uri(tracking_uri())
    >>> mlflow.search_runs(experiment_names=["distill"])
    """
    from atelier.flows.run.store_check import open_store
    from atelier.infra.tracking.address import tracking_address

    return tracking_address("", open_store())


def _words(
    overrides: "Sequence[str | Mapping[str, Value]]",
    values: "Mapping[str, Value]",
    accept_code: bool,
    fresh: Sequence[str],
) -> list[str]:
    from atelier.flows.run.overrides import resume_overrides
    from atelier.flows.run.python_values import as_words

    tasks = [fresh] if isinstance(fresh, str) else list(fresh)
    return [*as_words(overrides, values), *resume_overrides(accept_code, tasks)]


def _result(run_id: str, untracked: list[str], store: "Store") -> RunResult:
    from atelier.infra.store.run_manifest import read_manifest

    manifest = read_manifest(store, run_id)
    artifacts: dict[str, Artifact] = {}
    for row in manifest.tasks:
        record = store.find(row.kind, row.fingerprint)
        if record is not None:
            artifacts[row.name] = Artifact(
                name=record.name,
                kind=record.kind,
                fingerprint=record.fingerprint,
                url=store.address(record.kind, record.fingerprint),
                summary=cast("dict[str, Json]", record.summary),
                parents=record.parents,
                is_reused=record.provenance.get("run") != run_id,
            )
    return RunResult(
        id=run_id,
        flow=manifest.flow,
        status=manifest.status,
        artifacts=artifacts,
        manifest=manifest,
        links=manifest.links,
        untracked=untracked,
    )
