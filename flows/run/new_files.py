"""Write the files of a new project, or of a new part of one, from flows/run/templates: small working examples
with their tests. `atelier new` calls it.
"""

import ast
import importlib.util
import keyword
import os
from contextlib import suppress
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
from atelier.flows.run.catalog import conf_file

TEMPLATES = PROJECT / "flows" / "run" / "templates"
ENDING = ".txt"  # of a template, so that no tool takes it for code of Atelier
FOLDER = "project"
WORDS = (FOLDER, *sorted(path.name for path in TEMPLATES.glob("*") if path.name != FOLDER))
GROUPS = {"model": "model", "objective": "objective"}  # what -> the group of kinds that it adds to
FOLDERS = {"flow": "flows", "task": "tasks"}  # what -> the folder of its file
PLACE = "atelier new"
ANOTHER = "choose another name"
STANDING_IN = "stands_in"  # a name that no template uses


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
        _check_importable(name)
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
        _check_names(part, root, name)
    texts = {path: text for part in parts for path, text in _texts(part, root, name).items()}
    there = next((path for file in texts for path in _taken_by(file, folder) if path.exists()), None)
    if there is not None:
        raise ConfigError(f"{PLACE} {what}", f"{there} exists already", ANOTHER)
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
            raise ConfigError(f"{PLACE} {part}", f"{there} exists already", ANOTHER)
        command = PROJECT / "flows" / "cli" / "commands" / f"{name}.py"
        if part == "flow" and (name == "help" or command.exists()):
            raise ConfigError(f"{PLACE} {part}", f"{name} is a command", ANOTHER)
    if part in GROUPS:
        from atelier.engine.config.registry import kinds  # late: pydantic, 0.1 s

        if name in kinds(GROUPS[part]):
            raise ConfigError(f"{PLACE} {part}", f"a {part} of kind {name} exists already", ANOTHER)


def _check_importable(name: str) -> None:
    """Raise ConfigError for the name of a project that Python imports as another package."""
    spec = None
    with suppress(ValueError):  # a root of this name was imported
        spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin:  # none of a folder without __init__.py
        raise ConfigError(f"{PLACE} {FOLDER}", f"{spec.origin} is imported as {name}", ANOTHER)


def _check_names(part: str, root: str, name: str) -> None:
    """Raise ConfigError if a template uses `name`, or a class named after it, for something else."""
    for file, text in _texts(part, root, STANDING_IN).items():
        if not file.endswith(".py"):
            continue
        used = _names_in(ast.parse(text))
        new = {one.replace(class_name(STANDING_IN), class_name(name)).replace(STANDING_IN, name)
               for one in used if STANDING_IN in one or class_name(STANDING_IN) in one}  # fmt: skip
        if clash := sorted(new & used):
            place = file.replace(STANDING_IN, name)
            problem = f"{place} would have two meanings of the name {clash[0]}"
            raise ConfigError(f"{PLACE} {part}", problem, ANOTHER)


def _names_in(tree: ast.AST) -> set[str]:
    """The names that a module defines, imports or uses; not those of attributes and keywords."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add(other or name.partition(".")[0])
            case _:
                pass
    return found


def _taken_by(file: str, folder: Path) -> list[Path]:
    """The paths that must not exist before `file` is written below `folder`. Settings have their name alone
    among all roots.
    """
    top, _, rest = file.partition("/")
    return [folder / file, *([conf_file(rest.removesuffix(".yaml"))] if top == "conf" else [])]


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
