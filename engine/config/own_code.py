"""The code of kinds and tasks of other project roots, which is part of their identity: file -> function ->
digest, for their files and what these import from roots other than Atelier. Comments and docstrings do not
count. Torch-free.
"""

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache

from atelier.engine.config.error import ConfigError
from atelier.engine.config.project_roots import SOURCES, file_of_module, file_of_root, located
from atelier.engine.config.syntax import imports_of, parts_of, source_digest

Code = dict[str, dict[str, str]]
SPECS = "engine/config/"
COMPUTED_IN = ("engine/", "engine/model/", "engine/data/")  # above the folder of a group
KEY = "code"  # of the code in identities

_read: dict[str, str] = {}  # digests of files, as this process first read them


def code_of(kind: type) -> Code:
    """The code of a kind's spec class; {} for a kind of Atelier. Raises ConfigError, with file and line, for
    a file that is not Python or does not travel with its root.
    """
    file = file_of_module(kind.__module__)
    if not file:
        return {}
    group, _, name = file.partition("/")[2].removeprefix(SPECS).rpartition("/")
    named = [f"{above}{group}/{name}" for above in COMPUTED_IN]
    if term := getattr(kind, "term", ""):
        named.append(f"engine/objective/{term}.py")
    if reads := getattr(kind, "reads", ""):
        named.append(f"engine/data/datasets/{reads}.py")
    found = (file_of_root(each) for each in named)  # perhaps in another root than the spec
    return _reached((file, *(each for each in found if not each.startswith("engine/"))))


def code_of_task(task: str) -> Code:
    """The code of a task of another root: its file in tasks/ and, if it has one, that in engine/data/tasks.
    {} for a task of Atelier. Raises ConfigError as `code_of`.
    """
    file = file_of_root(f"tasks/{task}.py")
    root, _, rest = file.partition("/")
    return {} if root == "tasks" else _reached((file, f"{root}/engine/data/{rest}"))


def files_of_code() -> dict[str, str]:
    """Digests of the contents of all files that were read for identities, as this process first read them."""
    return dict(_read)


def codes_in(identity: object, place: str = "") -> Iterator[tuple[str, object]]:
    """All code in an identity, that of kinds within kinds too, each with its place."""
    if isinstance(identity, Mapping):
        for key, value in identity.items():
            if key == KEY:
                yield place, value
            else:
                yield from codes_in(value, f"{place}.{key}")
    elif isinstance(identity, list | tuple):
        for number, value in enumerate(identity):
            yield from codes_in(value, f"{place}.{number}")


def without_codes(identity: object) -> object:
    """An identity without the code of its kinds."""
    if isinstance(identity, Mapping):
        return {key: without_codes(value) for key, value in identity.items() if key != KEY}
    return [*map(without_codes, identity)] if isinstance(identity, list | tuple) else identity


def code_digest(identity: object) -> str:
    """Digest of all code in a spec's identity, 16 digits; '' if there is none."""
    found = dict(codes_in(identity))
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16] if found else ""


def files_in(identity: object) -> str:
    """The files with the code in an identity, for messages."""
    files = {file for _, code in codes_in(identity) if isinstance(code, Mapping) for file in code}
    return ", ".join(sorted(files))


def files_imported(module: str, file: str) -> list[str]:
    """The files of another root that run when `file` imports `module`: the packages above it, and its own;
    [] if it is none, or a name in a module.
    """
    dots = len(module) - len(module.lstrip("."))
    above = file.removesuffix(".py").split("/")[:-dots] if dots else []
    found = file_of_module(".".join([*above, *filter(None, [module[dots:]])]))
    if not found:
        return []
    parts = found.removesuffix(".py").split("/")
    own = (f"{'/'.join(parts)}/__init__.py", found)  # a package comes before a module of its name
    return [*_packages(parts[:-1]), *[each for each in own if located(each).is_file()][:1]]


def _packages(parts: list[str]) -> list[str]:
    """The files __init__.py of the folders, without the root itself, which is no package."""
    names = [f"{'/'.join(parts[:number])}/__init__.py" for number in range(2, len(parts) + 1)]
    return [name for name in names if located(name).is_file()]


@cache
def _reached(starts: tuple[str, ...]) -> Code:
    waiting = [file for file in starts if located(file).is_file()]
    waiting += [package for file in waiting for package in _packages(file.split("/")[:-1])]
    found = Code()
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        root, top, *_ = file.split("/")
        if top not in SOURCES:
            way_out = f"move it below engine/: of a root only {', '.join(SOURCES)} are sent to other machines"
            raise ConfigError(file, f"is imported, but not in a folder that {root} is read from", way_out)
        imports, found[file] = _source(file)
        waiting += [each for module in imports for each in files_imported(module, file)]
    return dict(sorted(found.items()))


@cache
def _source(file: str) -> tuple[frozenset[str], dict[str, str]]:
    """The imports of a file, and its functions and classes with their digests. A file is read once."""
    content = located(file).read_bytes()
    try:
        tree = ast.parse(content)
    except SyntaxError as error:
        raise ConfigError(f"{file}:{error.lineno or 1}", error.msg, "correct it") from None
    _read[file] = source_digest(content)
    return frozenset(imports_of(tree)), parts_of(tree)
