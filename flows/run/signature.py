"""The parameters of a flow, read from the source text of its file. Only specs, typing and collections.abc are
imported, so that help needs no file of a task.
"""

import ast
import importlib
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import resolve_name
from typing import Any

from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.project_roots import file_of_module, located, module_of

PLAIN = ("typing", "collections.abc")  # modules whose names may stand in annotations
WAY_OUT = "use a plain type, a literal default, or a spec imported from engine/config/"


def parameters_of(flow: str, file: str) -> dict[str, Any]:
    """Name -> (type, default or ...) of each parameter of the function `flow` in `file`. Raises ConfigError,
    with file and line, for a file that is not Python or has no such function, and for a type or default that
    cannot be read.
    """
    tree = _tree(file)
    bodies = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == flow]
    if not bodies:
        raise ConfigError(file, f"has no function {flow}", "the flow is the function with the file's name")
    known = _known(tree, file)

    def value(node: ast.expr, name: str) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and name.endswith(":"):
            node = ast.parse(node.value, mode="eval").body  # an annotation in quotes
        return eval(ast.unparse(node), dict(known))  # of the flow's own file, as an import would do

    fields: dict[str, Any] = {}
    for argument, default in _arguments(bodies[0].args, f"{file}:{bodies[0].lineno}"):
        try:
            kind = value(argument.annotation or ast.Name("str"), f"{argument.arg}:")
            fields[argument.arg] = (kind, ... if default is None else value(default, argument.arg))
        except Exception as error:  # it may raise anything
            problem = (
                f"the parameter {ast.unparse(argument)} cannot be read ({type(error).__name__}: {error})"
            )
            raise ConfigError(f"{file}:{argument.lineno}", problem, WAY_OUT) from None
    return fields


def _tree(file: str) -> ast.Module:
    try:
        return ast.parse(located(file).read_bytes())
    except SyntaxError as error:
        raise ConfigError(f"{file}:{error.lineno or 1}", error.msg, "correct it") from None
    except ValueError as error:  # before Python 3.12: a null byte
        raise ConfigError(f"{file}:1", str(error), "correct it") from None


def _arguments(given: ast.arguments, place: str) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """Each parameter with its default; None = it has none."""
    hidden = [one for one in (*given.args, *given.kwonlyargs) if one.arg.startswith("_")]
    if hidden or given.posonlyargs or given.vararg or given.kwarg:
        problem = f"the parameters ({ast.unparse(given)}) are not all keys with names"
        raise ConfigError(
            place, problem, "a flow has no /, no *args, no **kwargs and no name that begins with _"
        )
    required = [None] * (len(given.args) - len(given.defaults))
    yield from zip(given.args, [*required, *given.defaults], strict=True)
    yield from zip(given.kwonlyargs, given.kw_defaults, strict=True)


def _known(tree: ast.Module, file: str) -> dict[str, Any]:
    """The names of specs, of typing and of constants and types that the file itself defines."""
    known: dict[str, Any] = {}
    package = module_of(file).rpartition(".")[0]
    for node in tree.body:
        if isinstance(node, ast.Import):
            for name in (one for one in node.names if one.name in PLAIN):
                module = importlib.import_module(name.name if name.asname else name.name.partition(".")[0])
                known[name.asname or module.__name__] = module
        elif isinstance(node, ast.ImportFrom):
            known |= _imported(node, package, file)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            with suppress(Exception):  # where it is needed, it is told as a name that is not defined
                known |= {
                    one.id: _constant(node.value, known) for one in targets if isinstance(one, ast.Name)
                }
    return known


def _imported(node: ast.ImportFrom, package: str, file: str) -> dict[str, Any]:
    """Names from a spec file, typing or collections.abc; nothing of other modules."""
    try:
        module = resolve_name("." * node.level + (node.module or ""), package)
        if module not in PLAIN and not _is_spec_file(module):
            return {}
        found = importlib.import_module(module)
        return {name.asname or name.name: getattr(found, name.name) for name in node.names}
    except AtelierError:
        raise
    except Exception as error:  # an import may raise anything
        from atelier.engine.config.kind_files import where_and_why  # late: pydantic, 0.1 s

        below = error.__traceback__.tb_next if error.__traceback__ else None  # without the frame of this file
        problem = f"{ast.unparse(node)} fails ({where_and_why(error.with_traceback(below))})"
        raise ConfigError(f"{file}:{node.lineno}", problem, "correct it") from error


def _constant(node: ast.expr, known: dict[str, Any]) -> Any:
    """A literal, or a type made of known names, such as Literal["a", "b"]."""
    if isinstance(node, ast.Subscript | ast.BinOp):
        return eval(ast.unparse(node), dict(known))
    return ast.literal_eval(node)


def _is_spec_file(module: str) -> bool:
    """Whether a module is of engine/config in a root."""
    _, _, rest = file_of_module(module).partition("/")
    return module.startswith("atelier.engine.config.") or rest.startswith("engine/config/")
