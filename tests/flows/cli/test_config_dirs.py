"""Folders of settings that a command line adds, in plans, sweeps and Hydra's answers."""

import json
from pathlib import Path

import pytest

from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError
from atelier.flows.cli.config_dirs import take_config_dirs
from atelier.flows.cli.main import run
from atelier.flows.run import catalog
from atelier.flows.run.compose import compose

WIDE = "# atelier pretrain model=wide    3 layers\nkind: gpt\nnum_layers: 3\nhidden: 32\nnum_heads: 2\n"
TINY = ("model=wide", "experiment=tiny")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the option model=wide and a group of its own."""
    monkeypatch.setenv(catalog.SETTINGS, "")
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
    folder = tmp_path / "settings"
    for name, text in (("model/wide", WIDE), ("house/small", "# @package _global_\ntrain: {steps: 7}\n")):
        (folder / name).parent.mkdir(parents=True)
        (folder / f"{name}.yaml").write_text(text)
    return folder


@pytest.mark.parametrize(
    "form", ["--config-dir={}", "--config-dir {}", "-cd {}", "hydra.searchpath=[file://{}]"]
)
def test_an_added_folder_has_options_and_groups(settings: Path, form: str) -> None:
    words = form.format(settings).split(" ")
    assert take_config_dirs([*words, *TINY]) == [*TINY]
    assert "wide" in catalog.options("model") and "house" in catalog.groups()
    frozen = compose("pretrain", [*TINY, "+house=small"])
    assert section_of(frozen.document["model"])["num_layers"] == 3
    assert section_of(frozen.document["train"])["steps"] == 7


def test_a_plan_reads_it_and_hydra_shows_it(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "pretrain", *TINY, "--config-dir", str(settings), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["totals"]["run"] > 0
    assert run(["pretrain", "model=wide", f"--config-dir={settings}", "--cfg", "job"]) == 0
    assert "num_layers: 3" in capsys.readouterr().out


def test_a_sweep_reads_it_and_writes_hydras_files_where_it_is_told(settings: Path, tmp_path: Path) -> None:
    words = ["-m", "model=wide,gpt_nano", "experiment=tiny", f"hydra.sweep.dir={tmp_path}/hydra", "--dry-run"]
    assert run(["pretrain", f"--config-dir={settings}", *words]) == 0
    assert (tmp_path / "hydra" / "multirun.yaml").exists()


def test_a_name_that_exists_is_refused_with_both_places(settings: Path) -> None:
    (settings / "model" / "gpt_nano.yaml").write_text(WIDE)
    with pytest.raises(ConfigError, match=r"/model/gpt_nano\.yaml: .*conf/model/gpt_nano\.yaml"):
        take_config_dirs([f"--config-dir={settings}"])
        catalog.options("model")
