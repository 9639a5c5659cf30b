"""The wheel holds what the pages tell to use, one package besides Hydra's plugin folder, and its commit."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from atelier.flows.cli.main import run
from atelier.infra.code.frozen import FOLDERS
from atelier.infra.code.provenance import NOTE, code_provenance
from tests.checkout import TOP
from tests.environments import built, wheel
from tests.test_docs import FILE, PAGES, spelled_out

MOST_MB = 4.0  # of the wheel
CHECKOUT = ("tests/", "benchmarks/", "docs/")  # folders of a checkout alone
FOR_DEVELOPERS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "LICENSE", "prefect.yaml")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(wheel(tmp_path_factory.mktemp("wheel"))) as opened:
        yield opened


def test_it_brings_one_package_besides_the_folder_of_hydras_plugins(archive: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"atelier", "hydra_plugins"}
    assert [name for name in archive.namelist() if name.startswith("hydra_plugins")] == [
        "hydra_plugins/atelier.py"
    ]
    inside = {name.split("/")[1] for name in archive.namelist() if name.startswith("atelier/")}
    assert {one for one in inside if "." not in one} == {*FOLDERS}
    assert sum(one.compress_size for one in archive.infolist()) < MOST_MB * 1e6


def named_files() -> set[str]:
    """Files of the project that pages for users name: paths, and files at the top."""
    text = "\n".join(page.read_text() for page in PAGES if page.name not in FOR_DEVELOPERS[1:])
    paths = {path for found in FILE.findall(text) for name in spelled_out(found) for path in TOP.glob(name)}
    at_top = {path for path in TOP.iterdir() if re.search(rf"(?<![\w/.-]){re.escape(path.name)}(?!\w)", text)}
    files = {path.relative_to(TOP).as_posix() for path in paths | at_top if path.is_file()}
    return {name for name in files if not name.startswith(CHECKOUT) and name not in FOR_DEVELOPERS}


def test_every_file_that_a_page_tells_to_use_is_in_it(archive: zipfile.ZipFile) -> None:
    named = named_files()
    assert {"docker-compose.yml", "constraints.txt", "infra/k8s/atelier.yaml", "infra/docker/backup"} <= named
    there = {*archive.namelist()}
    at = {
        name: f"hydra_plugins{name.removeprefix('src/hydra_plugins')}" for name in named if "plugins" in name
    }
    places = {name: at.get(name, f"atelier/{name.removeprefix('src/atelier/')}") for name in named}
    assert [name for name, place in sorted(places.items()) if place not in there] == []


def test_it_has_the_commit_and_the_changes_that_its_checkout_names(archive: zipfile.ZipFile) -> None:
    about = code_provenance()
    assert json.loads(archive.read(f"atelier/{NOTE}")) == {key: about[key] for key in ("commit", "diff")}


def test_files_writes_a_folder_in_which_the_scripts_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cluster"
    assert run(["files", str(folder), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"docker-compose.yml", "infra/docker/backup", "infra/k8s/atelier.yaml"} <= {*listed["files"]}
    assert all((Path(listed["folder"]) / name).is_file() for name in listed["files"])
    (folder / "infra/docker/secrets").chmod(0o644)  # as an installer may leave it
    subprocess.run(["sh", "infra/docker/secrets"], cwd=folder, check=True, capture_output=True)
    secrets = folder / ".env"
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    words = dict(re.findall(r"(?m)^([A-Z_]+)=(.*)$", secrets.read_text()))
    assert words["COMMIT"] == code_provenance()["commit"] and len(words["ATELIER_PASSWORD"]) >= 32
    wanted = re.findall(r"(?m)^COPY (?!--from)(\S+) ", (folder / "infra/docker/Dockerfile").read_text())
    assert wanted and all((folder / name).exists() for name in wanted)
    program = [sys.executable, "-c", "import atelier; print(atelier.PROJECT)"]
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    said = subprocess.run(program, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    assert said.stdout.strip() == str(folder)
    assert run(["files", str(folder)]) == 2
    assert "is not an empty folder" in capsys.readouterr().err


@pytest.mark.slow
def test_wheels_of_one_commit_are_equal_bytes(tmp_path: Path) -> None:
    """From two clones with other paths, times and rights, and by way of an sdist; changes show."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C"]
    for name in ("a", "elsewhere/b"):
        subprocess.run(["git", "clone", "--quiet", TOP, tmp_path / name], check=True)
    other = tmp_path / "elsewhere/b"
    for path in other.rglob("*.py"):
        os.utime(path, (1e9, 1e9))
        path.chmod(0o600)
    subprocess.run([*git, other, "config", "core.fileMode", "false"], check=True)
    first, second = wheel(tmp_path / "1", tmp_path / "a"), wheel(tmp_path / "2", other)
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(built("sdist", tmp_path / "3", other)) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (sources,) = (tmp_path / "unpacked").iterdir()
    assert wheel(tmp_path / "4", sources).read_bytes() == first.read_bytes()
    with zipfile.ZipFile(first) as archive:
        about = json.loads(archive.read(f"atelier/{NOTE}"))
    head = subprocess.run([*git, TOP, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert about == {"commit": head.stdout.strip(), "diff": ""}
    (other / "flows" / "new.py").write_text("x = 1\n")
    with zipfile.ZipFile(wheel(tmp_path / "5", other)) as archive:
        changed = json.loads(archive.read(f"atelier/{NOTE}"))
    (other / "flows" / "new.py").write_text("x = 2\n")
    with zipfile.ZipFile(wheel(tmp_path / "6", other)) as archive:
        again = json.loads(archive.read(f"atelier/{NOTE}"))
    assert changed["commit"] == about["commit"] and len({about["diff"], changed["diff"], again["diff"]}) == 3
    shutil.rmtree(tmp_path / "elsewhere")
