"""Write the files of a new project, or of a new part of one, from flows/run/templates: small working examples
with their tests. `atelier new` calls it.
"""

import keyword
import os
from pathlib import Path

from atelier import PROJECT
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.project_roots import (
    HERE,
    TOML,
    check_name,
    file_of_root,
    located,
    project_at_hand,
    read_toml,
)

TEMPLATES = PROJECT / "flows" / "run" / "templates"
ENDING = ".txt"  # of a template, so that no tool takes it for code of Atelier
FOLDER = "project"
WORDS = (FOLDER, *sorted(path.name for path in TEMPLATES.glob("*") if path.name != FOLDER))
GROUPS = {"model": "model", "objective": "objective"}  # what -> the group of kinds that it adds to
FOLDERS = {"flow": "flows", "task": "tasks"}  # what -> the folder of its file
PLACE = "atelier new"


def write_new(what: str, name: str) -> list[Path]:
    """Write the files of a new `what` called `name`; returns their paths, relative to the working folder.
    Raises ConfigError if a file exists, before any is written.
    """
    if what not in WORDS:
        near = nearest(what, WORDS)
        way_out = (f"did you mean {near}? " if near else "") + f"there are: {', '.join(WORDS)}"
        raise ConfigError(PLACE, f"nothing is called {what!r}", way_out)
    check_name(name, f"{PLACE} {what}")
    if what == FOLDER:
        folder, root = Path(name).absolute(), name
        parts = [FOLDER, "model"]
    else:
        found = project_at_hand()
        if found is None:
            way_out = f"`{PLACE} project <name>` begins one; or set {HERE}"
            raise ConfigError(f"{PLACE} {what}", f"no {TOML} in this folder or above", way_out)
        folder, root, parts = found, read_toml(found / TOML), [what]
    for part in parts:
        _check_free(part, name)
    texts = {path: text for part in parts for path, text in _texts(part, root, name).items()}
    there = next((folder / path for path in texts if (folder / path).exists()), None)
    if there is not None:
        raise ConfigError(f"{PLACE} {what}", f"{there} exists already", "choose another name")
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    here = Path.cwd()
    return [Path(os.path.relpath(folder / path, here)) for path in texts]


def _check_free(part: str, name: str) -> None:
    """Raise ConfigError if a kind, flow or task of this name exists."""
    if part in FOLDERS:
        file = f"{FOLDERS[part]}/{name}.py"
        there = located(file_of_root(file))
        if there.exists():
            raise ConfigError(f"{PLACE} {part}", f"{there} exists already", "choose another name")
        if part == "flow" and (PROJECT / "flows" / "cli" / "commands" / f"{name}.py").exists():
            raise ConfigError(f"{PLACE} {part}", f"{name} is a command", "choose another name")
    if part in GROUPS:
        from atelier.engine.config.registry import kinds  # late: pydantic, 0.1 s

        if name in kinds(GROUPS[part]):
            raise ConfigError(
                f"{PLACE} {part}", f"a {part} of kind {name} exists already", "choose another name"
            )


def _texts(part: str, root: str, name: str) -> dict[str, str]:
    """Path -> text of a template's files, filled in."""
    words = {"root": root, "name": name, "Name": class_name(name)}
    found: dict[str, str] = {}
    for path in sorted((TEMPLATES / part).rglob(f"*{ENDING}")):
        text = path.read_text()
        for word, value in words.items():
            text = text.replace("{{" + word + "}}", value)
        place = path.relative_to(TEMPLATES / part).as_posix().removesuffix(ENDING)
        found[place.replace("NAME", name)] = text
    return found


def class_name(name: str) -> str:
    """The class of a kind: my_net is MyNet."""
    found = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    return f"{found}Kind" if keyword.iskeyword(found) else found
