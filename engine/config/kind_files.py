"""Import the files of kinds that a configuration names, and report faults in them by file and line.
Torch-free.
"""

import importlib
import inspect
from functools import cache
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import TypeVar

from atelier.engine.config import extensions
from atelier.engine.config.base import Kind, Spec
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.project_roots import (
    ProjectRoot,
    file_of_module,
    files_in_roots,
    located,
    module_of,
    shown,
)
from atelier.engine.config.section import Section

Base = TypeVar("Base")
MEND = "fix it (docs/extend/adding-a-model.md)"


def kind_module(group: str, kind: str, *offers: str) -> ModuleType:
    """The module engine/<group>/<kind>.py, or that of an extension or another root. Raises ConfigError, with
    file and line, if its import fails or it lacks one of the functions in `offers`.
    """
    file, place = kind_file(group, kind), f"{group.rsplit('/', 1)[-1]}.{kind}"
    if file_of_module(module_of(file)) and not located(file).is_file():
        raise ConfigError(place, f"{file} does not exist", MEND)
    try:
        module = importlib.import_module(module_of(file))
    except AtelierError:
        raise
    except Exception as error:  # an import may raise anything
        raise ConfigError(place, where_and_why(error, file), MEND) from error
    missing = [name for name in offers if not hasattr(module, name)]
    if missing:
        raise ConfigError(place, f"{file} has no function {missing[0]}", MEND)
    return module


def kind_file(group: str, kind: str) -> str:
    """The file of a kind, by its name among the files of all roots (project_roots.py)."""
    extension = extensions.kinds_of(group).get(kind, "")
    file = f"engine/{f'extensions/{extension}/' if extension else ''}{group}/{kind}.py"
    specs = f"config/{group.removeprefix('config/').removeprefix('model/').removeprefix('data/')}"
    of_root = kinds_in_roots(group).get(kind) or kinds_in_roots(specs).get(kind)
    return of_root.file(file) if of_root else file


def kinds_in_roots(group: str) -> dict[str, ProjectRoot]:
    """The kinds of a group (objective, config/objective) in other roots than Atelier, each with its root.
    Raises ConfigError if an extension has a kind of that name.
    """
    found = files_in_roots(f"engine/{group}", ".py")
    for kind in found:
        if extension := extensions.kinds_of(group).get(kind):
            place = str(located(found[kind].file(f"engine/{group}/{kind}.py")))
            raise ConfigError(place, f"the extension {extension} has a kind of that name", "rename this one")
    return found


def extension_part(extension: str, name: str, *offers: str) -> ModuleType | None:
    """A file of an extension, such as checks; None if it has none. Raises ConfigError as `kind_module`."""
    if not (extensions.FOLDER / extension / f"{name}.py").exists():
        return None
    return kind_module(f"extensions/{extension}", name, *offers)


def kind_class(group: str, kind: str, base: type[Kind]) -> type[Kind]:
    """The spec class that engine/config/<group>/<kind>.py defines. Raises ConfigError if there is none or if
    it lacks a required member.
    """
    found = [v for v in _classes(group, kind) if issubclass(v, base) and "kind" in v.model_fields]
    place, file = f"{group}.{kind}", kind_file(f"config/{group}", kind)
    if not found:
        name = base.__name__
        raise ConfigError(place, f"{file} has no {name} with a field `kind: Literal[{kind!r}]`", MEND)
    if inspect.isabstract(found[0]):
        lacks = ", ".join(sorted(found[0].__abstractmethods__))
        raise ConfigError(place, f"{file}: the class {found[0].__name__} lacks {lacks}", MEND)
    return found[0]


def extension_class(extension: str, name: str, base: type[Base]) -> type[Base] | None:
    """The class with this base in a file of an extension, such as hook; None if the file does not exist.
    Raises ConfigError if the file has no such class.
    """
    module = extension_part(extension, name)
    if module is None:
        return None
    found = [v for v in _own(module) if issubclass(v, base)]
    if not found:
        raise ConfigError(
            f"{extension}.{name}",
            f"engine/extensions/{extension}/{name}.py has no class of the base {base.__name__}",
            MEND,
        )
    return found[-1]


@cache
def section_class(section: str, key: str) -> type[Section]:
    """The class that an extension's config/<section>/<key>.py defines for this key. Raises ConfigError if
    there is none.
    """
    found = [v for v in _classes(section, key) if issubclass(v, Section)]
    if not found:
        file = kind_file(f"config/{section}", key)
        raise ConfigError(f"{section}.{key}", f"{file} has no class of the base Section", MEND)
    return found[-1]


def _classes(group: str, name: str) -> list[type[Spec]]:
    """The specs that engine/config/<group>/<name>.py, of the core or an extension, defines."""
    return [v for v in _own(kind_module(f"config/{group}", name)) if issubclass(v, Spec)]


def _own(module: ModuleType) -> list[type]:
    """The classes that a module itself defines."""
    return [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]


def where_and_why(error: Exception, file: str = "") -> str:
    """Place and reason of an error: the last running line of a root's files, kinds included; else the first
    line of `file`.
    """
    if isinstance(error, SyntaxError) and error.filename:
        at, line, why = Path(error.filename), error.lineno, error.msg
    else:
        frames = [one for one in extract_tb(error.__traceback__) if shown(Path(one.filename)) is not None]
        at, line = (Path(frames[-1].filename), frames[-1].lineno) if frames else (located(file), 1)
        why = " ".join(f"{type(error).__name__}: {error}".split())
        if not frames and not file:
            return why
    return f"{shown(at) or at}:{line}: {why}"
