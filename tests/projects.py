"""Projects outside the checkout, in this process."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atelier.engine.config import own_code, project_roots, registry
from atelier.engine.config.project_roots import HERE
from atelier.flows.deployments import form_fields
from atelier.flows.run import catalog
from atelier.flows.run import registry as flow_registry
from atelier.flows.run.new_files import write_new

Make = Callable[[str], Path]
CACHED = (
    project_roots._found,
    project_roots._files,
    registry._kinds,
    registry.spec_class,
    own_code._reached,
    own_code._source,
    catalog.parameters,
    flow_registry.body,
    flow_registry.survey,
    form_fields.fields_of,
)


@pytest.fixture
def make_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a project of a name, which is then the one at hand."""
    monkeypatch.setattr(project_roots, "_used", [])
    monkeypatch.setenv(HERE, "")
    monkeypatch.chdir(tmp_path)
    made: list[str] = []

    def clear() -> None:
        for cached in CACHED:
            cached.cache_clear()
        own_code._read.clear()
        for name in [name for name in sys.modules if name.partition(".")[0] in made]:
            del sys.modules[name]

    def make(name: str) -> Path:
        write_new("project", name)
        monkeypatch.setenv(HERE, str(tmp_path / name))
        made.append(name)
        clear()
        return tmp_path / name

    yield make
    clear()


def edit(path: Path, old: str, new: str) -> None:
    """Replace the first `old` in a file that has it."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
