"""Fingerprints do not depend on the order of keys in a configuration, so no computation may."""

import contextvars
import json
import random
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.base import fingerprint, parse
from atelier.engine.config.mixture import row_specs, streams
from atelier.engine.config.pool import Pool
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Member, Training
from atelier.engine.config.train import Train
from atelier.flows.run.catalog import parameters
from atelier.flows.run.compose import compose, resolved
from atelier.flows.run.draw import NodeCollector
from atelier.flows.run.registry import body
from atelier.infra.dag import Node, Reference, scheduling
from atelier.infra.store.existing_model import Existing, looking_in
from atelier.infra.store.store import Store, default_root
from tests.chat_templates import write_talks
from tests.stored_models import store_with

BLEND = ("data.blend.a.source=stdlib:csv", "data.blend.z.source=stdlib:xml", "data.blend.a.weight=0.3")
PHASES = ("data.phases.y.begin=0.5", "data.phases.y.weights={z:2,a:1}", "data.phases.b.begin=0.2")
PHASES = (*PHASES, "data.phases.b.weights.main=0.5", "data.blend.z.weight=0")
FLOWS = {
    "corpus": BLEND[:2],
    "pretrain": (*BLEND, *PHASES, "model=ernie_tiny", "objective=ernie"),
    "distill": (
        *BLEND,
        "+role@roles.student_b=student_mini",
        "parallel.tensor=2",
        "parallel.roles.student_b.shard=2",
    ),
    "finetune": ("init=parent",),
    "instruct": ("init=parent", "chats.source=talks.jsonl"),
    "score": ("models=[parent]",),
    "convert": ("init=parent", "convert=upcycle"),
    "semoe": BLEND,
    "nebula": (*BLEND, *PHASES, "sites=[]"),
    "titan": (*BLEND, *PHASES),
}
SHUFFLES = 3


def shuffled(document: Any, draw: random.Random) -> Any:
    """The same with the items of every mapping in another order."""
    if isinstance(document, list):
        return [shuffled(item, draw) for item in document]
    if not isinstance(document, dict):
        return document
    names = list(document)
    draw.shuffle(names)
    return {name: shuffled(document[name], draw) for name in names}


def nodes(flow: str, document: dict[str, Any]) -> dict[str, Node]:
    arguments = resolved(parse(parameters(flow), document, ""), Pool())
    drawing = NodeCollector()

    def inside() -> None:
        scheduling(drawing)
        looking_in(Store(default_root()))
        body(flow)(**{key: getattr(arguments, key) for key in type(arguments).model_fields})

    contextvars.copy_context().run(inside)
    return {node.name: node for node in drawing.nodes}


def told(node: Node) -> Any:
    """All that a node's gang is told, in the order in which that matters; nothing where there is no gang."""
    if not node.ranks:
        return None
    if node.task != "train":
        return node.model_dump(mode="json")
    roles = {name: Role.model_validate(role) for name, role in node.config["roles"].items()}
    training = Training(
        members={name: Member(role=role) for name, role in roles.items()},
        streams=streams(row_specs(roles), node.training.weights, node.training.later),
        phases=tuple(shares.begin for shares in node.training.later),
        train=Train.model_validate(node.config["train"]),
    )
    sums = {name: list(role.objective) for name, role in roles.items()}
    return [node.model_dump(mode="json"), training.model_dump(mode="json"), training.parts, sums]


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A finished model of which flows are told, and conversations."""
    spec = compose("pretrain", ["experiment=tiny"]).arguments.model  # type: ignore[attr-defined]
    store_with(tmp_path, spec.resolved(512), "parent")
    write_talks(tmp_path / "talks.jsonl", 8)
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def reference(kind: str, name: str = "") -> Reference:
        return Reference(kind=kind, fingerprint=fingerprint([kind, name]), name=name or kind, node="")

    def found(word: str, place: str) -> Existing:
        text = reference("tokens"), 64
        return Existing(
            reference=reference("model", word),
            spec=spec,
            tokenizer=reference("tokenizer"),
            text=text,
            place=place,
        )

    def begun(roles: dict[str, Role], tokenizer: Reference, place: str = "") -> dict[str, Reference]:
        return {name: reference("model", role.init) for name, role in roles.items() if role.init}

    for flow in ("corpus", "pretrain", "adopt", "finetune", "instruct", "score", "convert"):
        monkeypatch.setattr(f"atelier.flows.{flow}.existing_model", found)
    monkeypatch.setattr("atelier.tasks.learn_tokenizer.existing_model", found)
    for flow in ("pretrain", "instruct", "distill", "titan", "semoe"):
        monkeypatch.setattr(f"atelier.flows.{flow}.beginnings", begun)


@pytest.mark.usefixtures("parent")
@pytest.mark.parametrize("flow", FLOWS)
def test_no_order_of_names_moves_a_fingerprint_or_what_a_gang_is_told(flow: str) -> None:
    document, draw = compose(flow, ["experiment=tiny", *FLOWS[flow]]).document, random.Random(flow)
    expected = nodes(flow, document)
    assert expected
    for _ in range(SHUFFLES):
        found = nodes(flow, shuffled(document, draw))
        assert found.keys() == expected.keys()
        for name, node in found.items():
            mine = {key: product.fingerprint for key, product in node.products.items()}
            assert mine == {key: product.fingerprint for key, product in expected[name].products.items()}, (
                name
            )
            assert json.dumps(told(node), sort_keys=True) == json.dumps(
                told(expected[name]), sort_keys=True
            ), name
