"""Texts of the standard library besides source files: pydoc topics, docs of built-in modules, docstrings with
their owners.
"""

import ast
import importlib
import inspect
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, MethodDescriptorType

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def topics(source: str) -> list[tuple[str, str]]:
    """(topic, text) of pydoc_data/topics.py, sorted; the file is parsed, never run."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if names == ["topics"]:
                return sorted(ast.literal_eval(node.value).items())
    return []


def builtin_docs() -> list[tuple[str, str]]:
    """(module, text) for each module compiled into this interpreter: its docstring, then signature and
    docstring of all its members.
    """
    found = []
    for name in sorted(sys.builtin_module_names):
        parts = [part for part in _module_docs(name) if part]
        if parts:
            found.append((name, "\n\n\n".join(parts) + "\n"))
    return found


def _module_docs(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    yield f"module {name}\n\n{inspect.getdoc(module) or ''}".strip()
    for key, value in sorted(vars(module).items()):
        if inspect.isclass(value) and value.__module__ == name and value.__name__ == key:
            yield _documented("class", key, value)
            for member, method in sorted(vars(value).items()):
                if inspect.ismethoddescriptor(method) and not member.startswith("_"):
                    yield _documented("def", f"{key}.{member}", method)
        elif inspect.isbuiltin(value) and not key.startswith("__"):
            yield _documented("def", key, value)


def _documented(word: str, name: str, value: type | MethodDescriptorType | BuiltinFunctionType) -> str:
    """Signature and docstring; '' without docstring. Addresses in defaults are removed, because they differ
    between processes.
    """
    doc = inspect.getdoc(value)
    if not doc:
        return ""
    try:
        signature = _ADDRESS.sub("", str(inspect.signature(value)))
    except (ValueError, TypeError):
        signature = "(...)"
    lines = "\n".join(f"    {line}".rstrip() for line in doc.splitlines())
    return f"{word} {name}{signature}\n{lines}"


@dataclass(frozen=True, kw_only=True)
class Docstring:
    """A docstring and the thing that it documents."""

    text: str
    kind: str  # module, class, method or function
    name: str = ""
    signature: str = ""  # for methods and functions


def docstrings(source: str, path: str) -> list[Docstring]:
    """Every docstring of a source file, in order, without indentation; [] if it is not valid Python for this
    version.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ignore odd escapes in foreign sources
            tree = ast.parse(source, path)
    except (SyntaxError, ValueError):
        return []
    found: list[Docstring] = []
    _add(tree, "module", found)
    _collect(tree, False, found)
    return found


def prose(source: str, path: str) -> str:
    """The docstrings of a source file, separated by empty lines."""
    return "\n\n".join(found.text for found in docstrings(source, path)) + "\n"


def code(source: str, path: str) -> str:
    """A source file without its docstrings; '' if it is not valid Python for this version."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source, path)
    except (SyntaxError, ValueError):
        return ""
    left_out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and ast.get_docstring(node, clean=False) is not None:
                left_out |= set(range(first.lineno - 1, first.end_lineno or first.lineno))
    lines = source.splitlines(keepends=True)
    return "".join(line for number, line in enumerate(lines) if number not in left_out)


def _collect(node: ast.AST, in_class: bool, found: list[Docstring]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            _add(child, "class", found)
            _collect(child, True, found)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            _add(child, "method" if in_class else "function", found)
            _collect(child, False, found)
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            _collect(child, in_class, found)


def _add(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
    kind: str,
    found: list[Docstring],
) -> None:
    text = (ast.get_docstring(node) or "").strip()
    if text:
        name = "" if isinstance(node, ast.Module) else node.name
        found.append(Docstring(text=text, kind=kind, name=name, signature=_signature(node)))


def _signature(node: ast.AST) -> str:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"def {node.name}({ast.unparse(node.args)}){returned}"
