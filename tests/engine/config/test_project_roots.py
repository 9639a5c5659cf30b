"""Kinds and settings of project roots outside the checkout: which are found, which are refused, and what of
their code is in identity.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from atelier.engine.config import own_code, project_roots, registry
from atelier.engine.config.error import ConfigError
from atelier.engine.config.kind_files import kind_file
from atelier.engine.config.project_roots import (
    ATELIER,
    HERE,
    ProjectRoot,
    check_name,
    other_roots,
    use_roots,
)
from atelier.engine.config.registry import ModelSpec, kinds, model_of, spec_class
from atelier.flows.run import catalog
from tests.checkout import TOP, python_path
from tests.projects import Make, edit

SIZES = {"num_layers": 1, "hidden": 16, "num_heads": 2, "vocab": 320}


def spec_of(kind: str) -> ModelSpec:
    return cast(ModelSpec, spec_class("model", kind).model_validate({"kind": kind, **SIZES}))


def code_now(kind: str) -> own_code.Code:
    """The code of a model's kind as a new process would read it."""
    own_code._reached.cache_clear()
    own_code._source.cache_clear()
    return own_code.code_of(spec_class("model", kind))


def test_a_new_project_has_a_model_an_option_and_files_under_its_name(make_project: Make) -> None:
    folder = make_project("quiet")
    assert [root.name for root in project_roots.project_roots()] == ["atelier", "quiet"]
    assert "quiet" in kinds("model") and "gpt" in kinds("model")
    assert "quiet" in catalog.options("model") and "gpt_nano" in catalog.options("model")
    assert catalog.option_text("model", "quiet")[1] == "atelier pretrain model=quiet experiment=tiny"
    assert kind_file("model", "quiet") == "quiet/engine/model/quiet.py"
    assert kind_file("model", "gpt") == "engine/model/gpt.py"
    spec = spec_of("quiet")
    assert type(spec).__module__ == "quiet.engine.config.model.quiet"
    assert Path(sys.modules[type(spec).__module__].__file__ or "").is_relative_to(folder)


def test_a_kinds_identity_has_its_own_code_and_what_it_imports_from_its_root(make_project: Make) -> None:
    folder = make_project("loud")
    spec = spec_of("loud")
    before = code_now("loud")
    assert set(before) == {"loud/engine/config/model/loud.py", "loud/engine/model/loud.py"}
    assert spec.as_identity()["code"] == before
    assert "code" not in spec_of("gpt").as_identity()

    module = folder / "engine" / "model" / "loud.py"
    edit(module, '"""The forward pass.', '"""Other words.')
    edit(module, "        D = spec.hidden\n", "        D = spec.hidden  # a comment\n")
    (folder / "engine" / "unused.py").write_text("x = 1\n")
    assert code_now("loud") == before

    (folder / "engine" / "scale.py").write_text("SCALE = 1\n")
    edit(module, "Shared = ", "from loud.engine.scale import SCALE\n\nShared = ")
    with_scale = code_now("loud")
    assert set(with_scale) - set(before) == {"loud/engine/scale.py"}
    edit(folder / "engine" / "scale.py", "1", "2")
    after = code_now("loud")
    assert [file for file in after if after[file] != with_scale[file]] == ["loud/engine/scale.py"]


def test_a_model_made_by_other_code_of_its_kind_is_not_opened(make_project: Make) -> None:
    folder = make_project("hasty")
    arguments = spec_of("hasty").arguments()
    assert model_of(arguments, "config.json").kind == "hasty"
    edit(folder / "engine" / "model" / "hasty.py", "F.gelu", "F.relu")
    code_now("hasty")
    with pytest.raises(ConfigError, match=r"config.json: the model was made with other code of kind hasty"):
        model_of(arguments, "config.json")


def test_a_kind_that_shadows_one_of_atelier_or_of_an_extension_is_refused(make_project: Make) -> None:
    folder = make_project("shady")
    place = folder / "engine" / "config" / "model"
    (place / "gpt.py").write_text("")
    with pytest.raises(
        ConfigError, match=r"shady/engine/config/model/gpt\.py: .*engine/config/model/gpt\.py"
    ):
        kinds("model")
    (place / "gpt.py").unlink()
    (folder / "conf" / "model" / "gpt_nano.yaml").write_text("kind: gpt\n")
    with pytest.raises(ConfigError, match=r"gpt_nano\.yaml has the same name; rename this one"):
        catalog.options("model")
    assert "lm" in kinds("objective")  # what needs no model goes on
    (folder / "engine" / "config" / "objective").mkdir()
    (folder / "engine" / "config" / "objective" / "replaced.py").write_text("")
    project_roots._files.cache_clear()
    registry._kinds.cache_clear()
    with pytest.raises(ConfigError, match="the extension detection has a kind of that name"):
        kinds("objective")


def test_a_syntax_error_is_named_by_file_and_line_where_the_kind_is_used(make_project: Make) -> None:
    folder = make_project("broken")
    path = folder / "engine" / "config" / "model" / "broken.py"
    edit(path, "class Broken", "class = Broken")
    assert spec_class("model", "gpt") is not None
    number = path.read_text().split("class = ")[0].count("\n") + 1
    with pytest.raises(ConfigError, match=rf"broken/engine/config/model/broken\.py:{number}: "):
        spec_class("model", "broken")


def test_a_kind_without_spec_or_module_is_refused_by_its_file(make_project: Make) -> None:
    folder = make_project("halves")
    (folder / "engine" / "model" / "halves.py").unlink()
    from atelier.engine.model.load import build

    with pytest.raises(ConfigError, match=r"model.halves: halves/engine/model/halves\.py does not exist"):
        build(spec_of("halves"))
    (folder / "engine" / "config" / "model" / "halves.py").write_text("")
    del sys.modules["halves.engine.config.model.halves"]
    spec_class.cache_clear()
    with pytest.raises(ConfigError, match=r"halves/engine/config/model/halves\.py has no ModelSpec"):
        spec_class("model", "halves")


def test_two_roots_of_one_name_are_refused_with_both_places(make_project: Make, tmp_path: Path) -> None:
    folder = make_project("twin")
    other = tmp_path / "other" / "twin"
    other.mkdir(parents=True)
    with pytest.raises(ConfigError, match=f"two roots have the name twin: {folder} and {other}"):
        use_roots([("twin", str(folder)), ("twin", str(other))])


def test_a_root_that_is_not_on_the_machine_is_refused(make_project: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"roots: the root gone is at /nowhere/gone, which is not on this"):
        use_roots([("gone", "/nowhere/gone")])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name = 'mine'\nnmae = 1", r"atelier\.toml: nmae: no such key; did you mean name\?"),
        ("", r"atelier\.toml: name: a value is required"),
        ("name = ", r"atelier\.toml: is not TOML"),
        ("name = 'Mine'", r"'Mine' is not a name"),
        ("name = 'json'", "json is the name of a Python package already"),
        ("name = 'engine'", "engine is the name of a Python package already"),
        ("name = 'numpy'", "numpy/__init__.py is imported by that name; rename the root"),
    ],
)
def test_a_fault_in_atelier_toml_is_named(make_project: Make, tmp_path: Path, text: str, told: str) -> None:
    folder = make_project("faulty")
    (folder / "atelier.toml").write_text(text)
    with pytest.raises(ConfigError, match=told):
        other_roots()


def test_another_users_project_is_not_taken_from_a_folder_above(
    make_project: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_project("theirs")
    monkeypatch.delenv(HERE)
    monkeypatch.chdir(folder / "conf" / "model")
    assert [root.name for root in other_roots()] == ["theirs"] and os.environ[HERE] == str(folder)
    monkeypatch.delenv(HERE)
    project_roots._found.cache_clear()
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    monkeypatch.setattr(project_roots, "ROOT", 4243)
    with pytest.raises(ConfigError, match="belongs to another user"):
        other_roots()


def test_installed_distributions_come_before_the_project_at_hand(
    make_project: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_project("nearby")
    site = tmp_path / "site"
    about = site / "shared_models-1.0.dist-info"
    (site / "shared_models").mkdir(parents=True)
    about.mkdir()
    (about / "entry_points.txt").write_text("[atelier.project]\nshared_models = shared_models\n")
    monkeypatch.syspath_prepend(str(site))
    assert other_roots() == (
        ProjectRoot("shared_models", site / "shared_models"),
        ProjectRoot("nearby", tmp_path / "nearby"),
    )
    assert project_roots.project_roots()[0] == ATELIER


def test_an_installed_wheel_of_the_project_at_hand_is_refused_with_both_ways_out(
    make_project: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_project("worn")
    about = tmp_path / "site" / "worn-0.1.0.dist-info"
    about.mkdir(parents=True)
    (tmp_path / "site" / "worn").mkdir()
    (about / "entry_points.txt").write_text("[atelier.project]\nworn = worn\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(ConfigError, match=rf"`pip install --editable {folder}`, or ATELIER_PROJECT= for"):
        other_roots()
    monkeypatch.setenv(HERE, "")
    assert other_roots() == (ProjectRoot("worn", tmp_path / "site" / "worn"),)


def test_a_wheel_with_a_folder_of_flows_beside_its_package_is_refused(
    make_project: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "site" / "spilled-0.1.0.dist-info"
    about.mkdir(parents=True)
    (tmp_path / "site" / "spilled").mkdir()
    (about / "entry_points.txt").write_text("[atelier.project]\nspilled = spilled\n")
    (about / "RECORD").write_text("spilled/conf/model/a.yaml,,\nflows/mine.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(ConfigError, match=r"its wheel has a folder flows of its own"):
        other_roots()


def test_an_editable_installation_and_the_project_at_hand_are_one_root(
    make_project: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_project("woven")
    about = tmp_path / "site" / "woven-0.1.0.dist-info"
    about.mkdir(parents=True)
    (about / "entry_points.txt").write_text("[atelier.project]\nwoven = woven\n")
    origin = {"url": folder.as_uri(), "dir_info": {"editable": True}}
    (about / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert other_roots() == (ProjectRoot("woven", folder),)


def test_help_and_completion_of_a_project_need_no_pydantic(make_project: Make) -> None:
    folder = make_project("swift")
    check = (
        "import sys, json; from atelier.flows.run import catalog;"
        "print(json.dumps([catalog.options('model'), 'pydantic' in sys.modules, 'torch' in sys.modules]))"
    )
    env = os.environ | {"PYTHONPATH": python_path(TOP), HERE: str(folder)}
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, env=env, check=True)
    options, *loaded = json.loads(done.stdout)
    assert "swift" in options and loaded == [False, False]


def test_names_of_roots() -> None:
    for name in ("mine", "my_nets2"):
        check_name(name, "x")
    for name in ("", "2nd", "my-nets", "class", "flows", "torch.nn"):
        with pytest.raises(ConfigError):
            check_name(name, "x")
