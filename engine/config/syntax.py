"""Imports of a source file, and digests of its functions and classes by syntax: without docstrings, comments,
the order of imports, error messages and descriptions of fields.
"""

import ast
import hashlib
from collections.abc import Sequence
from types import EllipsisType
from typing import TypeAlias

# a node of a syntax tree, or the value of its field
TreePart: TypeAlias = (
    "ast.AST | Sequence[TreePart] | str | bytes | int | float | complex | bool | EllipsisType | None"
)

PACKAGE = "atelier."
WORDS = ("description", "title")  # keywords of pydantic fields that are only documentation


def imports_of(tree: ast.AST) -> set[str]:
    """The modules that a file may import, without Atelier's control plane: those of its engine
    (engine.model), relative ones (.blocks), those of other packages. `from a import b` names a and a.b.
    """
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            inside = module if module.endswith(".") else f"{module}."
            names |= {module, *(f"{inside}{alias.name}" for alias in node.names)}
    own = f"{PACKAGE}engine."
    return {name.removeprefix(PACKAGE) for name in names if name.startswith(own) or not _is_ours(name)}


def _is_ours(name: str) -> bool:
    return f"{name}.".startswith((PACKAGE, "engine."))


def parts_of(tree: ast.Module) -> dict[str, str]:
    """Digests of functions, methods and classes by qualified name; '' = module level code."""
    result: dict[str, str] = {}

    def visit(body: list[ast.stmt], prefix: str) -> str:
        rest: list[str] = []
        imports: list[str] = []
        for node in _without_docstring(body):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports.append(_text(node))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{prefix}{node.name}"  # definitions of one name (overloads, setters) are combined
                result[name] = digest(result.get(name, "") + _text(node))
            elif isinstance(node, ast.ClassDef):
                head = [_text(part) for part in (*node.bases, *node.keywords, *node.decorator_list)]
                result[f"{prefix}{node.name}"] = digest(
                    "|".join(head) + visit(node.body, f"{prefix}{node.name}.")
                )
            else:
                rest.append(_text(node))
        return "|".join([*sorted(imports), *rest])

    result[""] = digest(visit(tree.body, ""))
    return result


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements without those that are only a string."""
    return [node for node in body if not (isinstance(node, ast.Expr) and _is_string(node.value))]


def _is_string(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _text(node: TreePart) -> str:
    """A syntax tree as text that is the same for all Python versions: names of nodes and non-empty fields."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and _name(node.exc).endswith("Error"):
        return f"Raise({_text(node.exc.func)})"  # the error's type, not its message
    if isinstance(node, ast.Call) and _name(node) == "Field":
        node = ast.Call(node.func, node.args, [one for one in node.keywords if one.arg not in WORDS])
    if isinstance(node, ast.AST):
        fields = []
        for name, value in ast.iter_fields(node):
            if name in ("ctx", "type_comment", "kind") or value is None or value == []:
                continue
            if name == "body" and isinstance(value, list):
                value = _without_docstring(value)
            fields.append(f"{name}={_text(value)}")
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list):
        return f"[{','.join(map(_text, node))}]"
    return repr(node)


def _name(call: ast.Call) -> str:
    """Name of the called function, without its prefix."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def source_digest(content: bytes) -> str:
    """The digest for comparing source files: 16 digits of sha256."""
    return hashlib.sha256(content).hexdigest()[:16]
