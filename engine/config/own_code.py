"""The code of kinds of other project roots, which is part of their identity: file -> function -> digest, for
the kind's files and what they import from roots other than Atelier. Comments and docstrings do not count.
Torch-free.
"""

import ast
import hashlib
import json
from functools import cache

from atelier.engine.config.error import ConfigError
from atelier.engine.config.project_roots import file_of_module, file_of_root, located
from atelier.engine.config.syntax import imports_of, parts_of

Code = dict[str, dict[str, str]]
SPECS = "engine/config/"
COMPUTED_IN = ("engine/", "engine/model/", "engine/data/")  # above the folder of a group


def code_of(kind: type) -> Code:
    """The code of a kind's spec class; {} for a kind of Atelier. Raises ConfigError, with file and line, for
    a file that is not Python.
    """
    file = file_of_module(kind.__module__)
    if not file:
        return {}
    root, _, rest = file.partition("/")
    group, _, name = rest.removeprefix(SPECS).rpartition("/")
    starts = [file, *(f"{root}/{above}{group}/{name}" for above in COMPUTED_IN)]
    if term := getattr(kind, "term", ""):
        starts.append(f"{root}/engine/objective/{term}.py")
    if reads := getattr(kind, "reads", ""):
        starts.append(f"{root}/engine/data/datasets/{reads}.py")
    return _reached(tuple(starts))


def code_of_task(task: str) -> Code:
    """The code of a task of another root: its file in tasks/ and, if it has one, that in engine/data/tasks.
    {} for a task of Atelier. Raises ConfigError as `code_of`.
    """
    file = file_of_root(f"tasks/{task}.py")
    root, _, rest = file.partition("/")
    return {} if root == "tasks" else _reached((file, f"{root}/engine/data/{rest}"))


def code_digest(kind: type) -> str:
    """Digest of a kind's code, 16 digits; '' for a kind of Atelier."""
    code = code_of(kind)
    return hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()[:16] if code else ""


def file_imported(module: str, file: str) -> str:
    """The file of another root that `file` imports as `module`; '' if it is none, or a name in a module."""
    dots = len(module) - len(module.lstrip("."))
    above = file.removesuffix(".py").split("/")[:-dots] if dots else []
    found = file_of_module(".".join([*above, *filter(None, [module[dots:]])]))
    both = (found, f"{found.removesuffix('.py')}/__init__.py") if found else ()
    return next((each for each in both if located(each).is_file()), "")


@cache
def _reached(starts: tuple[str, ...]) -> Code:
    waiting, found = [file for file in starts if located(file).is_file()], Code()
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        imports, found[file] = _source(file)
        waiting += filter(None, (file_imported(module, file) for module in imports))
    return dict(sorted(found.items()))


@cache
def _source(file: str) -> tuple[frozenset[str], dict[str, str]]:
    """What a file imports, and its parts, as this process first read it."""
    try:
        tree = ast.parse(located(file).read_bytes())
    except SyntaxError as error:
        raise ConfigError(f"{file}:{error.lineno}", error.msg, "correct it") from None
    return frozenset(imports_of(tree)), parts_of(tree)
