"""Every key of every flow has an effect: another value changes a fingerprint, is layout, or is refused by
name.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from atelier.engine.config.base import FieldPlace
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.flows.run.catalog import parameters
from atelier.flows.run.compose import compose
from atelier.flows.run.registry import is_idle
from tests.flows.run.test_order import nodes, parent
from tests.marks import quick

__all__ = ["parent"]
BLEND = ("data.blend.a.source=stdlib:csv", "data.blend.a.weight=0.3")
PHASE = ("data.phases.late.begin=0.5", "data.phases.late.weights.a=2")
FLOWS = {
    "corpus": BLEND[:1],
    "pretrain": (*BLEND, *PHASE),
    "distill": (*BLEND, *PHASE, "roles.student_a.trainable.kind=lora"),
    "finetune": ("init=parent",),
    "instruct": ("init=parent", "chats.source=talks.jsonl", "trainable.kind=lora"),
    "score": ("models=[parent]",),
    "convert": ("init=parent", "convert=upcycle"),
    "semoe": (*BLEND, *PHASE),
    "nebula": (*BLEND, *PHASE, "sites=[]", "tune.chats.source=talks.jsonl"),
    "titan": (*BLEND, *PHASE, "~roles.student_b"),
}


def leaves(place: FieldPlace) -> Iterator[FieldPlace]:
    if place.value is None and place.field is not None and not place.field.is_required():
        place = replace(place, value=place.field.get_default(call_default_factory=True))
    below = list(place.below())
    if not below:
        yield place
    for inner in below:
        yield from leaves(inner)


def is_layout(place: FieldPlace) -> bool:
    extra = place.field.json_schema_extra if place.field else None
    return isinstance(extra, Mapping) and bool(extra.get("layout"))


def others(place: FieldPlace) -> list[Any]:
    """Other values, some of which a spec may refuse."""
    value = place.value
    if isinstance(value, bool):
        return [not value]
    words: list[Any] = [word for word in place.choices() if word != value]
    if isinstance(value, int | float):
        return [*words, value + 1, value * 2, value / 2, value + 4, value - 1, 0.4]
    if isinstance(value, list):
        return [value + value[:1], value[:1], value[1:], [*value, "other"], [0.7]]
    return [*words, "other", 2, 4, 0.5, {"other": 1}]


def changed(document: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    result = json.loads(json.dumps(document))
    *path, last = name.split(".")
    at = result
    for part in path:
        if at.get(part) is None:  # a key that an extension adds, of which nothing is given
            at[part] = {}
        at = at[part]
    at[last] = value
    return result


def acts(flow: str, document: dict[str, Any], before: dict[str, Any], place: FieldPlace) -> bool:
    """Whether a value that the specs take moves a fingerprint, or none is taken."""
    is_taken = False
    for value in [other for other in others(place) if other != place.value]:
        try:
            found = fingerprints(flow, changed(document, place.name, value))
        except AtelierError:
            continue
        if found != before:
            return True
        is_taken = True
    return not is_taken


def fingerprints(flow: str, document: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [product.fingerprint for product in node.products.values()]
        for name, node in nodes(flow, document).items()
    }


@pytest.mark.usefixtures("parent")
@pytest.mark.parametrize("flow", quick(sorted(FLOWS, key=lambda flow: flow not in ("titan", "finetune")), 2))
def test_another_value_of_a_key_moves_a_fingerprint_or_is_layout_or_is_refused(flow: str) -> None:
    document = compose(flow, ["experiment=tiny", *FLOWS[flow]]).document
    before, spec = fingerprints(flow, document), parameters(flow)
    seen: set[tuple[Any, ...]] = set()
    ignored = []
    for place in leaves(FieldPlace("", spec, document)):
        first, last = place.name.split(".")[0], place.name.split(".")[-1]
        kind = (first, last, place.about, repr(place.value))  # of roles alike one is enough
        if kind in seen:
            continue
        seen.add(kind)
        idle = is_idle(flow, place.name)
        if idle:
            with pytest.raises(ConfigError, match=f"{place.name}: does nothing in the flow {flow}"):
                compose(flow, ["experiment=tiny", *FLOWS[flow], f"{place.name}={place.value}"])
        elif first != "parallel" and not is_layout(place) and not acts(flow, document, before, place):
            ignored.append(place.name)
    assert not ignored
