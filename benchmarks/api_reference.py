"""Write docs/reference/api.md from signatures and docstrings: python benchmarks/api_reference.py"""

import ast
import inspect
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PAGE = TOP / "docs/reference/api.md"
HEAD = """# API reference

`python benchmarks/api_reference.py` writes this page from the docstrings; `tests/test_docs.py` compares them.
Guides: [Atelier from Python](../run/python.md), [adding a model](../extend/adding-a-model.md) and
[extensions](../extend/extensions.md).
"""
PARTS = {  # heading -> files, each with the names that are shown; () = its __all__
    "Python API": {"src/atelier/api.py": ()},
    "Models": {"engine/model/contract.py": ("Output", "Model")},
    "Extensions": {"engine/config/section.py": ("Section",), "engine/loop/hooks.py": ("HookContext", "Hook")},
}


def page() -> str:
    """The page's text."""
    lines = [HEAD]
    for heading, files in PARTS.items():
        lines.append(f"## {heading}")
        for file, names in files.items():
            tree = _Unquoted().visit(ast.parse((TOP / file).read_text()))
            found = {
                node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)
            }
            chosen = [found[name] for name in names or _exported(tree) if name in found]
            chosen.sort(key=lambda node: isinstance(node, ast.ClassDef) and not names)  # functions first
            module = file.removeprefix("src/atelier/").removesuffix(".py").replace("/", ".")
            lines += [f"### `atelier.{module}`", *(text for node in chosen for text in _entry(node))]
    return "\n\n".join(lines) + "\n"


def _exported(tree: ast.Module) -> list[str]:
    """The names of __all__."""
    [names] = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return ast.literal_eval(names)


def _entry(node: ast.ClassDef | ast.FunctionDef) -> list[str]:
    """A function; or a class with its fields and public methods."""
    if isinstance(node, ast.FunctionDef):
        return [f"```text\n{_signature(node)}\n```", _doc(node)]
    bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
    fields = [f"    {ast.unparse(each)}" for each in node.body if isinstance(each, ast.AnnAssign)]
    found = ["```text\n" + "\n".join([f"class {node.name}{bases}", *fields]) + "\n```", _doc(node)]
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name[0] != "_"]
    rows = [f"| `{_short(each)}` | {' '.join(_doc(each).split())} |" for each in methods if _doc(each)]
    return found + (["\n".join(["| method | |", "|---|---|", *rows])] if rows else [])


def _signature(node: ast.FunctionDef) -> str:
    """A parameter a line, where it has several."""
    arguments, returns = ast.unparse(node.args), ast.unparse(node.returns) if node.returns else "None"
    whole = f"{node.name}({arguments}) -> {returns}"
    if len(whole) <= 100:
        return whole
    depth, parts = 0, [""]
    for letter in arguments:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return "\n".join([f"{node.name}(", *(f"    {part.strip()}," for part in parts), f") -> {returns}"])


class _Unquoted(ast.NodeTransformer):
    """Annotations without their quotes."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = self._plain(node.returns)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = self._plain(node.annotation)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = self._plain(node.annotation) or node.annotation
        return node

    def _plain(self, node: ast.expr | None) -> ast.expr | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return ast.parse(node.value, mode="eval").body
        return node


def _short(node: ast.FunctionDef) -> str:
    """Name and parameters of a method; a property has none."""
    if any(ast.unparse(each).endswith("property") for each in node.decorator_list):
        return node.name
    names = [each.arg for each in (*node.args.args, *node.args.kwonlyargs) if each.arg not in ("self", "cls")]
    return f"{node.name}({', '.join(names)})"


def _doc(node: ast.ClassDef | ast.FunctionDef) -> str:
    """The docstring; its examples as code."""
    text = inspect.cleandoc(ast.get_docstring(node) or "")
    words, code = [], []
    for line in text.splitlines():
        (code if line.lstrip().startswith((">>>", "...")) else words).append(line.strip())
    plain = "\n".join(words).strip().replace("|", "\\|")
    return plain + ("\n\n```text\n" + "\n".join(code) + "\n```" if code else "")


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
