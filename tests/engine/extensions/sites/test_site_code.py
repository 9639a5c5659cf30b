"""The code of the sites extension is in a training's code map only where it is part of its identity."""

from collections.abc import Mapping

import pytest

from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.config.trajectory import Feed, segments_of
from atelier.infra.code.code_map import Map, maps_of
from atelier.infra.dag import Node
from tests.engine.extensions.detection.detection import detector, generator
from tests.engine.trainings import role, student, train

MAIL = {"site": "a", "mailbox": "/mail"}
ROWS = {"rows": {"a": 2, "b": 2}, "every": 2} | MAIL
HOOK = "engine/extensions/sites/hook.py"


def apart(*roles: str) -> dict[str, object]:
    """A link whose first role is at another site than the others."""
    return {"roles": {"a": [roles[0]], "b": [*roles[1:]]}} | MAIL


def maps(roles: Mapping[str, Role], how: Train) -> dict[str, Map]:
    config = {
        "train": how.model_dump(mode="json"),
        "roles": {name: each.model_dump(mode="json") for name, each in roles.items()},
    }
    return maps_of(Node(name="train", task="train", products={}, config=config))


def fingerprints(roles: Mapping[str, Role], how: Train) -> dict[str, str]:
    found = segments_of(roles, how, Feed(parents={}, identity={}), {})
    return {name: segments[-1].fingerprint for name, segments in found.items()}


@pytest.mark.parametrize(
    "roles",
    [
        {"teacher": role(), "student": student()},
        {"generator": generator(), "d": detector()},
        {"teacher": role(), "middle": student(), "last": student().model_copy(update={"teacher": "middle"})},
    ],
)
def test_a_training_of_one_fingerprint_has_one_code_map(roles: dict[str, Role]) -> None:
    """Else one that was begun alone could not go on with a student at another site."""
    alone, linked = train(8), train(8, link=apart(*roles))
    before, after = fingerprints(roles, alone), fingerprints(roles, linked)
    same = {name for name in roles if before[name] == after[name]}
    assert next(iter(roles)) in same  # a teacher is the same whoever learns from it
    for name in same:
        assert maps(roles, alone)[name] == maps(roles, linked)[name], name
    for name, each in roles.items():
        learns_answers = each.teacher == next(iter(roles)) and each.lesson == "answers"
        assert (HOOK in maps(roles, linked)[name]) == learns_answers, name


def test_sites_that_train_one_model_have_their_code_in_its_map() -> None:
    roles = {"m": role()}
    assert HOOK in maps(roles, train(8, link=ROWS))["m"]
    assert HOOK not in maps(roles, train(8))["m"]
