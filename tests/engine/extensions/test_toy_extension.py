"""An extension that the core does not know: one folder, and no changed line elsewhere."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import atelier.engine.extensions
from atelier.engine.config import extensions, registry
from atelier.engine.config.base import FieldPlace, Spec, parse
from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import ObjectiveSpec, spec_class
from atelier.engine.config.role import Role
from atelier.engine.config.sections import extensions_of, with_sections
from atelier.engine.plan.checks import check_layout
from atelier.infra.code.code_map import training_map
from tests.checkout import TOP
from tests.engine.extensions.detection.detection import detector, generator
from tests.engine.trainings import ONE, TrainingSetup, role, train

KIND = """
from typing import ClassVar, Literal
from atelier.engine.config.registry import ObjectiveSpec

class Toy(ObjectiveSpec):
    term: ClassVar[str] = "lm"
    kind: Literal["toy"] = "toy"
"""
KEY = """
from atelier.engine.config.section import Section

class Toys(Section):
    \"\"\"How many toys there are. More text.\"\"\"
    number: int = 0

    @property
    def is_on(self):
        return self.number > 0
"""
CHECKS = """
from atelier.engine.config.error import ConfigError

def check(layout, roles, train, *, prefix, section):
    if train.precision == "fp64":
        raise ConfigError("train.precision", "fp64, and a toy is not built for it", "fp32")
"""
HOOK = """
from atelier.engine.loop.attachments import Tap
from atelier.engine.loop.hooks import Hook

class Count(Tap):
    name = lesson = "toy"
    is_asked = True

    def __init__(self):
        self.tokens = 0

    def add(self, batch, clock, hidden_BTD, head_weight_VD):
        self.tokens += hidden_BTD.shape[0] * hidden_BTD.shape[1]

    def state(self):
        return {"tokens": self.tokens}

    def restore(self, state, step):
        self.tokens = state.get("tokens", 0)

class Extension(Hook):
    seen = []

    def __init__(self, context):
        super().__init__(context)
        self.taps = []
        for member in context.members.values():
            if "toy" in member.role.extensions:
                self.taps.append(Count())
                member.attach(self.taps[-1])

    def after_step(self, groups, clock, data, counts):
        self.seen.append((clock, [tap.tokens for tap in self.taps]))
        return super().after_step(groups, clock, data, counts)
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "extensions"
    place = folder / "toy"
    (place / "config" / "objective").mkdir(parents=True)
    (place / "config" / "objective" / "toy.py").write_text(KIND)
    (place / "checks.py").write_text(CHECKS)
    (place / "hook.py").write_text(HOOK)
    caches = (extensions.names, extensions.kinds_of, registry._kinds, registry.spec_class)
    monkeypatch.setattr(extensions, "FOLDER", folder)
    monkeypatch.setattr(atelier.engine.extensions, "__path__", [str(folder)])
    for cached in caches:
        cached.cache_clear()
    yield place
    monkeypatch.undo()
    for cached in caches:
        cached.cache_clear()
    for name in [name for name in sys.modules if name.startswith("atelier.engine.extensions.toy")]:
        del sys.modules[name]


def objective() -> ObjectiveSpec:
    found = spec_class("objective", "toy")()
    assert isinstance(found, ObjectiveSpec)
    return found


def roles() -> dict[str, Role]:
    return {"m": role(objective={"toy": objective()}), "plain": role()}


def test_its_hook_is_called_in_each_step_and_its_state_goes_on_after_a_stop(
    toy: Path, tmp_path: Path
) -> None:
    setup = TrainingSetup(tmp_path / "run")
    assert setup.train_in_pieces(setup.training(roles(), train(8)), 3) >= 2
    hook: Any = sys.modules["atelier.engine.extensions.toy.hook"]
    tokens = 4 * 16  # rows, tokens of a step
    assert hook.Extension.seen == [(clock, [tokens * (clock + 1)]) for clock in range(8)]


def test_its_checks_are_asked_where_a_role_uses_it(toy: Path) -> None:
    exact = train(2, precision="fp64")
    check_layout(ONE, {"plain": role()}, exact)
    with pytest.raises(ConfigError, match=r"train\.precision: fp64, and a toy is not built for it; fp32"):
        check_layout(ONE, roles(), exact)


def test_a_training_that_does_not_use_it_imports_none_of_its_files(toy: Path, tmp_path: Path) -> None:
    setup = TrainingSetup(tmp_path / "run")
    setup.train(setup.training({"plain": role()}, train(2)))
    assert not [name for name in sys.modules if name.startswith("atelier.engine.extensions.toy")]


UNUSED = """
import json, sys
from atelier.engine.config.parallel import Parallel
from atelier.engine.train import main
assert main(sys.argv[1:]) == 0
found = [name for name in sys.modules if name.startswith("atelier.engine.extensions.")]
Parallel.model_validate({"assignment": "static"})
late = [name for name in sys.modules if name.startswith("atelier.engine.extensions.")]
print(json.dumps([found, late]))
"""


def test_a_training_with_none_of_their_keys_imports_no_extension(tmp_path: Path) -> None:
    setup = TrainingSetup(tmp_path)
    path = tmp_path / "run.json"
    path.write_text(
        setup.run_file(setup.training({"plain": role()}, train(2))).model_dump_json(by_alias=True)
    )
    done = subprocess.run(
        [sys.executable, "-c", UNUSED, str(path)], cwd=TOP, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found, late = json.loads(done.stdout.splitlines()[-1])
    assert not found and "atelier.engine.extensions.assignment.config.parallel.assignment" in late


def test_without_its_folder_its_kind_is_refused_by_name(toy: Path, tmp_path: Path) -> None:
    toy.rename(tmp_path / "away")
    for cached in (extensions.names, extensions.kinds_of, registry._kinds, registry.spec_class):
        cached.cache_clear()
    with pytest.raises(ValueError, match="no objective of kind 'toy'"):
        spec_class("objective", "toy")


def test_its_key_is_a_field_of_the_section_and_identity_where_it_asks_for_something(toy: Path) -> None:
    (toy / "config" / "train").mkdir()
    (toy / "config" / "train" / "toys.py").write_text(KEY)
    extensions.kinds_of.cache_clear()

    @with_sections("train")
    class Own(Spec):
        steps: int = 1

    assert Own().as_identity() == parse(Own, {"toys": {"number": 0}}, "train").as_identity() == {"steps": 1}
    asked = parse(Own, {"toys": {"number": 2}}, "train")
    assert asked.as_identity() == {"steps": 1, "toys": {"number": 2}}
    assert extensions_of(asked) == {"toy"} and not extensions_of(Own())
    place = FieldPlace("train", Own, {}).down("toys")
    assert place is not None and place.about == "how many toys there are"
    assert [each.name for each in place.below()] == ["train.toys.number"]
    with pytest.raises(ConfigError, match=r"train.toys.nmber: no such key; did you mean number\?"):
        parse(Own, {"toys": {"nmber": 2}}, "train")
    with pytest.raises(ConfigError, match=r"train.toys: must be a section"):
        parse(Own, {"toys": 2}, "train")


def test_a_key_that_the_core_has_is_refused_by_its_file(toy: Path) -> None:
    (toy / "config" / "train").mkdir()
    (toy / "config" / "train" / "steps.py").write_text(KEY)
    extensions.kinds_of.cache_clear()

    class Own(Spec):
        steps: int = 1

    with pytest.raises(ConfigError, match=r"extensions/toy/config/train/steps\.py: train\.steps is a key of"):
        with_sections("train")(Own)


@pytest.mark.parametrize("name", ["last", "counts"])
def test_a_name_that_the_checkpoint_has_is_refused(toy: Path, tmp_path: Path, name: str) -> None:
    (toy / "hook.py").write_text(HOOK.replace('name = lesson = "toy"', f'name, lesson = "{name}", "toy"'))
    setup = TrainingSetup(tmp_path / "run")
    with pytest.raises(ConfigError, match=f"roles.m: {name} is already stored in"):
        setup.train(setup.training(roles(), train(2)))


@pytest.mark.parametrize("group", ["config/objective", "objective"])
def test_a_kind_that_the_core_has_is_refused_by_its_file(toy: Path, group: str) -> None:
    (toy / group).mkdir(exist_ok=True)
    (toy / group / "lm.py").write_text(KIND)
    extensions.kinds_of.cache_clear()
    with pytest.raises(
        ConfigError, match=f"extensions/toy/{group}/lm.py: the core has a file of the same name"
    ):
        extensions.kinds_of(group)


@pytest.mark.parametrize(
    ("text", "problem"), [("def (", "checks.py:1: invalid syntax"), ("", "has no function check")]
)
def test_a_mistake_in_its_checks_is_named_by_its_file(toy: Path, text: str, problem: str) -> None:
    (toy / "checks.py").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        check_layout(ONE, roles(), train(2))


def test_the_code_of_a_role_has_the_hooks_of_its_extensions() -> None:
    every = {"generator": generator(), "detector": detector(), "plain": role()}
    of = {
        name: {file for file in training_map("train", every, name) if "extensions/" in file} for name in every
    }
    assert "engine/extensions/detection/hook.py" in of["detector"]
    assert "engine/extensions/detection/objective/replaced.py" in of["detector"]
    assert not of["generator"] and not of["plain"]
    late = training_map("train", every | {"late": detector(2)}, "generator")
    assert "engine/extensions/detection/drawn.py" in late  # its checkpoints keep what that draws
