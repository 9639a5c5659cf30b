"""Project roots: the folders whose conf/ and engine/ Atelier reads, in order. The first is Atelier itself;
then come installed distributions with an entry point `atelier.project`, and last the project at hand: the
folder of ATELIER_PROJECT, or the nearest one with an atelier.toml. Torch-free, without pydantic.

A file of another root has its root's name first: mine/engine/model/mine.py is engine/model/mine.py of the
root `mine`, and is imported as mine.engine.model.mine. A file of Atelier has no such part.
"""

import importlib.util
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from configparser import ConfigParser
from configparser import Error as UnreadableError
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from keyword import iskeyword
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

from atelier import PROJECT
from atelier.engine.config.error import ConfigError, nearest

TOML = "atelier.toml"
HERE = "ATELIER_PROJECT"  # environment variable: the folder of the project at hand; empty = none
GIVEN = "ATELIER_ROOTS"  # environment variable of frozen code: all other roots, as JSON [[name, folder], ...]
ENTRY = "atelier.project"  # entry points of distributions: name = package
KEYS = ("name",)  # of atelier.toml
NAME = re.compile(r"[a-z][a-z0-9_]*")
RESERVED = ("atelier", "engine", "flows", "tasks", "infra", "conf", "tests", "src", "hydra_plugins")
FOLDERS = ("conf", "engine", "flows", "infra", "tasks")
SOURCES = ("conf", "engine", "flows", "tasks")  # the folders of a root that are read
SUFFIXES = (".py", ".yaml")
ROOT = 0  # the user whose folders anyone may use


@dataclass(frozen=True)
class ProjectRoot:
    """One root: its name, which its files have in Python and in identity, and its folder."""

    name: str
    folder: Path

    @property
    def conf(self) -> Path:
        return self.folder / "conf"

    def file(self, rest: str) -> str:
        """The name of its file `rest` (engine/model/mine.py) among the files of all roots."""
        return rest if self == ATELIER else f"{self.name}/{rest}"

    def sources(self) -> list[Path]:
        """Its code and configuration, sorted; no hidden file and no other data."""
        return [
            path
            for top in SOURCES
            for path in sorted((self.folder / top).rglob("*"))
            if path.suffix in SUFFIXES and path.is_file() and not _is_hidden(path.relative_to(self.folder))
        ]


ATELIER = ProjectRoot("atelier", PROJECT)
_used: list[tuple[ProjectRoot, ...]] = []  # set by `use_roots`


def project_roots() -> tuple[ProjectRoot, ...]:
    """All roots in order, Atelier first. The project at hand is found once, and named in this process's
    environment for the processes that it starts. Raises ConfigError for a root that cannot be used.
    """
    if _used:
        return _used[-1]
    environment = os.environ.get
    try:
        where = os.getcwd()
    except FileNotFoundError:
        where = "/"
    return _found(environment(GIVEN), environment(HERE), where)


def other_roots() -> tuple[ProjectRoot, ...]:
    """All roots but Atelier."""
    return project_roots()[1:]


def use_roots(places: Iterable[tuple[str, str]]) -> None:
    """Make these (name, folder), after Atelier, the roots of this process. Raises ConfigError for a folder
    that is not on this machine.
    """
    roots = [ProjectRoot(name, Path(folder)) for name, folder in places]
    _used[:] = [_checked(roots, "roots", are_given=True)]


def located(file: str, project: Path = PROJECT) -> Path:
    """The path of a file by its name among the files of all roots. `project`: Atelier's folder."""
    root, rest = _split(file)
    return project / file if root is None else root.folder / rest


def module_of(file: str) -> str:
    """The name by which a file is imported."""
    dotted = file.removesuffix(".py").replace("/", ".")
    return dotted if _split(file)[0] else f"{ATELIER.name}.{dotted}"


def file_of_module(module: str) -> str:
    """The file of a module in another root; '' for any other module."""
    file = f"{module.replace('.', '/')}.py"
    return file if _split(file)[0] else ""


def shown(path: Path) -> str | None:
    """The name of a path among the files of all roots; None for a path in no root."""
    inside = [root for root in project_roots() if path.is_relative_to(root.folder)]
    if not inside:
        return None
    root = max(inside, key=lambda each: len(each.folder.parts))
    return root.file(path.relative_to(root.folder).as_posix())


def files_in_roots(folder: str, ending: str) -> dict[str, ProjectRoot]:
    """The names of files in a folder (engine/config/model) of other roots, without their ending, each with
    its root. Raises ConfigError if two roots, or Atelier and a root, have a file of one name.
    """
    roots = other_roots()
    return _files(folder, ending, roots, tuple(map(_changed_at, (root.folder / folder for root in roots))))


def _changed_at(folder: Path) -> int:
    """When a file was added to a folder, or removed, nanoseconds; 0 = there is none."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def file_of_root(file: str) -> str:
    """The name, among the files of all roots, of such a file (flows/mine.py) in the root that has it; in
    Atelier if no other root does. Raises ConfigError as `files_in_roots`.
    """
    folder, _, last = file.rpartition("/")
    stem, _, ending = last.rpartition(".")
    root = files_in_roots(folder, f".{ending}").get(stem)
    return root.file(file) if root else file


@cache
def _files(
    folder: str, ending: str, roots: tuple[ProjectRoot, ...], changed: tuple[int, ...]
) -> dict[str, ProjectRoot]:
    found: dict[str, ProjectRoot] = {}
    for root in roots:
        for path in sorted((root.folder / folder).glob(f"[!_.]*{ending}")):
            own = ATELIER if (PROJECT / folder / path.name).exists() else None
            other = own or found.get(path.name.removesuffix(ending))
            if other:
                problem = f"{other.folder / folder / path.name} has the same name"
                raise ConfigError(str(path), problem, "rename this one")
            found[path.name.removesuffix(ending)] = root
    return found


def check_name(name: str, place: str) -> None:
    """Raise ConfigError for a name that a root cannot have."""
    if not NAME.fullmatch(name) or iskeyword(name):
        raise ConfigError(place, f"{name!r} is not a name", "use small letters, digits and _, a letter first")
    if name in RESERVED or name in sys.stdlib_module_names:
        raise ConfigError(place, f"{name} is the name of a Python package already", "choose another")


def read_toml(path: Path) -> str:
    """The name of the root with this atelier.toml. Raises ConfigError for a fault in the file."""
    try:
        document = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"is not TOML ({error})", 'write name = "mine"') from None
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read ({error.strerror})", f"see {HERE}") from None
    for key in document:
        if key not in KEYS:
            near = nearest(key, KEYS)
            way_out = (f"did you mean {near}? " if near else "") + f"known here: {', '.join(KEYS)}"
            raise ConfigError(f"{path}: {key}", "no such key", way_out)
    name = document.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"{path}: name", "a value is required", 'write name = "mine"')
    check_name(name, f"{path}: name")
    return name


@cache
def _found(given: str | None, here: str | None, where: str) -> tuple[ProjectRoot, ...]:
    if given:
        places = json.loads(given)
        return _checked([ProjectRoot(name, Path(folder)) for name, folder in places], GIVEN, are_given=True)
    roots = list(_installed())
    folder = _at_hand(here, where)
    if folder is not None:
        project = ProjectRoot(read_toml(folder / TOML), folder.resolve())
        if project.folder not in [root.folder for root in roots]:
            roots.append(project)
        os.environ[HERE] = str(project.folder)  # processes that this one starts have other working folders
    return _checked(roots, HERE)


def project_at_hand() -> Path | None:
    """The folder of the project at hand, if any. Raises ConfigError for another user's."""
    return _at_hand(os.environ.get(HERE), os.getcwd())


def _at_hand(here: str | None, where: str) -> Path | None:
    return _nearest(Path(where)) if here is None else Path(here).absolute() if here else None


def _nearest(folder: Path) -> Path | None:
    """The nearest folder above, or this one, with an atelier.toml. Raises ConfigError for another user's."""
    found = next((one for one in (folder, *folder.parents) if (one / TOML).is_file()), None)
    if found is not None and any(map(_is_anothers, (found, *(found / name for name in (TOML, *SOURCES))))):
        raise ConfigError(
            str(found / TOML),
            "belongs to another user, and its code would run as you",
            f"{HERE}={found} uses it, {HERE}= leaves it out",
        )
    return found


def _is_anothers(path: Path) -> bool:
    """Whether a path that exists, or what it links to, is neither this user's nor the superuser's."""
    with suppress(FileNotFoundError):
        return not {path.lstat().st_uid, path.stat().st_uid} <= {os.getuid(), ROOT}
    return path.is_symlink()


def _installed() -> Iterator[ProjectRoot]:
    """The roots that installed distributions declare, by name. importlib.metadata takes thrice the time."""
    found: dict[str, ProjectRoot] = {}
    for place in dict.fromkeys(sys.path):
        for path in sorted(Path(place or ".").glob("*.dist-info/entry_points.txt")):
            text = ""
            with suppress(OSError, UnicodeDecodeError):
                text = path.read_text()
            if f"[{ENTRY}]" not in text:
                continue
            for name, package in _entries(text, path):
                check_name(name, str(path))
                if package != name:
                    raise ConfigError(str(path), f"{name} = {package}", "give a root its package's name")
                _check_wheel(path.parent)
                root = ProjectRoot(name, _folder_of(path.parent, package).resolve())
                if name in found and found[name] != root:
                    raise _same_name(name, found[name], root)
                found[name] = root
    yield from sorted(found.values(), key=lambda root: root.name)


def _check_wheel(about: Path) -> None:
    """Raise ConfigError if a distribution installs a folder such as flows beside its package, where others
    would import it. `about`: the folder of its metadata.
    """
    lines: list[str] = []
    with suppress(OSError, UnicodeDecodeError):
        lines = (about / "RECORD").read_text().splitlines()
    for line in lines:
        if (top := line.partition("/")[0]) in FOLDERS and "/" in line:
            raise ConfigError(
                str(about), f"its wheel has a folder {top} of its own", "build it with that below the package"
            )


def _folder_of(about: Path, package: str) -> Path:
    """The folder of a distribution's package; of an editable installation the project's. `about`: the folder
    of its metadata.
    """
    folder = about.parent / package
    with suppress(OSError, ValueError, KeyError, TypeError):
        origin = json.loads((about / "direct_url.json").read_bytes())
        if origin["dir_info"]["editable"] and not folder.is_dir():
            return Path(unquote(urlsplit(origin["url"]).path))
    return folder


def _entries(text: str, path: Path) -> list[tuple[str, str]]:
    parser = ConfigParser(delimiters=("=",), interpolation=None)
    try:
        parser.read_string(text)
    except UnreadableError as error:
        raise ConfigError(str(path), f"cannot be read ({error})", "install the distribution again") from None
    return parser.items(ENTRY)


def _checked(roots: list[ProjectRoot], place: str, *, are_given: bool = False) -> tuple[ProjectRoot, ...]:
    """Atelier and these roots, importable. `are_given`: perhaps as a copy, beside their installation."""
    by_name: dict[str, ProjectRoot] = {}
    for root in roots:
        if root.name in by_name:
            raise _same_name(root.name, by_name[root.name], root)
        if not root.folder.is_dir():
            raise ConfigError(
                place, f"the root {root.name} is at {root.folder}, which is not on this machine",
                "install it here, or leave it out",
            )  # fmt: skip
        by_name[root.name] = root
    for root in roots:
        _offer(root, is_given=are_given)
    return (ATELIER, *roots)


def _same_name(name: str, first: ProjectRoot, second: ProjectRoot) -> ConfigError:
    problem = f"two roots have the name {name}: {first.folder} and {second.folder}"
    way_out = (
        f"if one is the other's wheel: `pip install --editable {second.folder}`, or {HERE}= for the "
        f"installed one; else uninstall one, or rename one in its {TOML}"
    )
    return ConfigError(f"root {name}", problem, way_out)


def _offer(root: ProjectRoot, *, is_given: bool) -> None:
    """Make the root importable by its name, without a change of Python's path."""
    there = sys.modules.get(root.name)
    spec = importlib.util.find_spec(root.name) if there is None else there.__spec__
    origin = spec.origin if spec else None  # none of a folder without __init__.py, which anyone may have
    own = root.folder / "__init__.py"
    if origin and not is_given and Path(origin).resolve() != own.resolve():
        problem = f"{origin} is imported by that name"
        raise ConfigError(f"root {root.name}", problem, "rename the root")
    if there is None or getattr(there, "__path__", None) != [str(root.folder)]:
        module = ModuleType(root.name, f"The project root at {root.folder}.")
        module.__path__ = [str(root.folder)]
        sys.modules[root.name] = module


def _split(file: str) -> tuple[ProjectRoot | None, str]:
    first, _, rest = file.partition("/")
    return next((root for root in other_roots() if root.name == first), None), rest


def _is_hidden(path: Path) -> bool:
    return any(part == "__pycache__" or part.startswith(".") for part in path.parts)
