"""The task `extract`: find triples (head, relation, tail) in a corpus, each with a sentence that states or
documents it. Taggers find them (engine/data/tagger); `triples` here is the usual one.

From Python source: the module that defines a name, the class of a method, base classes, exceptions that a
function raises, each with the first sentence of the head's docstring. From other text: sentences that begin
"X is a Y".
"""

import ast
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from atelier.engine.config.base import Json
from atelier.engine.config.error import DataError
from atelier.engine.config.kind_files import kind_module
from atelier.engine.config.taggers import USUAL, TaggerSpec
from atelier.engine.config.task.prepare import ExtractConfig
from atelier.engine.data.corpus import HELD_OUT, TRAIN, TRIPLES, corpus_lines
from atelier.engine.data.row import Column, text_problem
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.data.units import UnitFinder, names_in
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.process import Progress

DEFINED, METHOD, SUBCLASS, RAISES, IS = "defined in", "method of", "subclass of", "raises", "is a"
MAX_CHARS = 400  # per sentence
MISSED = {  # by kind of tagger: what would have triples
    "rules": 'Python source, or text with sentences like "X is a Y"; for others +language=chinese or german,'
    " or +tagger@data.taggers=chinese, german or listed",
    "sentences": "text with sentences that the pattern matches, or another pattern",
    "listed": f"triples of which a sentence of at most {MAX_CHARS} characters has both names",
}
_END = re.compile(r"(?<!e\.g\.)(?<!i\.e\.)(?<=[.!?])\s+(?=\S)|(?<=[。！？])|\n\s*\n")
_POINTING = r"(?!(?:This|That|It|There|Here|These|Those|What|Which|He|She|They|We|You|I|One)\b)"
_NAME = r"(?:[A-Z][\w.'-]*|[a-z]\w*[._(]\w*\)?)"
_IS = re.compile(
    rf"{_POINTING}(?P<head>(?:(?:The|A|An)\s+)?{_NAME}(?:\s+[A-Z][\w'-]*){{0,3}})\s+(?:is|was)\s+(?:an?|the)\s+"
    r"(?P<tail>[\w-]+(?:\s+(?!which|that|who|of|in|for|to|and|or|with|from|by)[\w-]+){0,3})"
)
_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Triple(NamedTuple):
    """`head` has the `relation` to `tail`; `text` is the sentence that states or documents it."""

    head: str
    relation: str
    tail: str
    text: str


Find = Callable[[str, str], Iterator[Triple]]  # a document's id and text -> its triples
Rows = Callable[[Sequence[Column]], Iterator[dict[str, Json]]]  # columns -> rows of a tagger's file
Warn = Callable[[str], None]  # shows a tagger's user what its file lacks


def extract(
    config: ExtractConfig, corpus: ArtifactInput, output: ArtifactOutput, scratch: Path, progress: Progress
) -> dict[str, Json]:
    """Write triples.jsonl: a line is {"head", "relation", "tail", "text", "split"}. Returns the summary.

    Of equal triples the first is kept, training documents before held-out ones, so that held-out triples were
    not trained on. Warns of a tagger that finds none; raises DataError if there are none at all.
    """
    progress.start(int(corpus.record.summary.get("documents", 0)), "documents")
    taggers = {name: tagger(name, spec, config, progress) for name, spec in config.taggers.items()}
    found: dict[tuple[str, str, str], tuple[Triple, str]] = {}
    without = set(taggers)
    for line in corpus_lines(corpus, scratch):
        for name, find in taggers.items() or [("", triples)]:
            for triple in find(line["id"], line["text"]):
                without.discard(name)
                kept = found.get(triple[:3])
                if kept is None or (kept[1], line["split"]) == (HELD_OUT, TRAIN):
                    found[triple[:3]] = triple, line["split"]
        progress.advance(1)
    if not found:
        kinds = [spec.kind for spec in config.taggers.values()] or [USUAL]
        raise DataError(
            f"{'data.taggers' if config.taggers else 'data.source'}: no triples in"
            f" {corpus.record.summary.get('documents', 'its')} documents of {corpus.record.name}; give"
            f" {' or '.join(dict.fromkeys(MISSED.get(kind, 'other text') for kind in kinds))}"
        )
    for name in sorted(without):
        progress.warn(f"data.taggers.{name} finds no triples in {corpus.record.name}")
    lines: list[dict[str, Any]] = [triple._asdict() | {"split": split} for triple, split in found.values()]
    if not config.marked.units.is_plain:
        units = UnitFinder(config.marked.units, names_in(config.marked, lines, progress), scratch)
        lines = [line | {"units": units.spans(line["text"])} for line in lines]
    text = "".join(json.dumps(line, sort_keys=True, ensure_ascii=False) + "\n" for line in lines)
    output.add_bytes(TRIPLES, text.encode())
    splits = Counter(line["split"] for line in lines)
    relations = Counter(line["relation"] for line in lines)
    return {
        "train": splits[TRAIN],
        "held_out": splits[HELD_OUT],
        "relations": dict(sorted(relations.items())),
    }


def tagger(name: str, spec: TaggerSpec, config: ExtractConfig, progress: Progress) -> Find:
    """The function that finds triples in documents. Raises ConfigError and DataError."""

    def rows(columns: Sequence[Column]) -> Iterator[dict[str, Json]]:
        with SourceReader(on_error="stop", place="", progress=progress) as reader:
            for path, expected in config.files.get(name, ()):
                for _, where, row in reader.rows(path, expected, columns):
                    for column in columns:
                        if problem := text_problem(row, column.names[0]):
                            raise DataError(f"{where}: {problem}; data.taggers.{name} names the fields")
                    yield row

    def warn(what: str) -> None:
        progress.warn(f"data.taggers.{name}: {what}")

    build = cast(
        Callable[[TaggerSpec, Rows, Warn], Find], kind_module("data/tagger", spec.kind, "build").build
    )
    return build(spec, rows, warn)


def triples(name: str, text: str) -> Iterator[Triple]:
    """The triples of one document, in order; `name` is its path if it is a source file."""
    tree = _parsed(text) if name.endswith(".py") else None
    if tree is None:
        yield from _of_prose(text)
    else:
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        yield from _of_body(tree, module, None)


def _parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ignore odd escapes in foreign sources
            return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _of_body(node: ast.AST, module: str, owner: str | None) -> Iterator[Triple]:
    """Definitions at the top level of a module and of its classes, without those inside functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Definition):
            yield from _of_definition(child, module, owner)
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _of_body(child, module, owner)


def _of_definition(node: _Definition, module: str, owner: str | None) -> Iterator[Triple]:
    text = first_sentence(ast.get_docstring(node) or "")
    name = f"{owner}.{node.name}" if owner else node.name
    if text and owner and not isinstance(node, ast.ClassDef):
        yield Triple(node.name, METHOD, owner, text)
    elif text:
        yield Triple(name, DEFINED, module, text)
    if isinstance(node, ast.ClassDef):
        for base in node.bases if text else []:
            if isinstance(base, ast.Name | ast.Attribute):
                yield Triple(name, SUBCLASS, ast.unparse(base), text)
        yield from _of_body(node, module, name)
    elif text:
        for error in _raised(node):
            yield Triple(name, RAISES, error, text)


def _raised(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The exceptions that a function's own body raises by name, each once."""
    names = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.Raise) and inner.exc is not None:
            raised = inner.exc.func if isinstance(inner.exc, ast.Call) else inner.exc
            if isinstance(raised, ast.Name | ast.Attribute) and ast.unparse(raised)[:1].isupper():
                names.append(ast.unparse(raised))
    return list(dict.fromkeys(names))


def first_sentence(text: str) -> str:
    """The text up to the first sentence end or blank line, on one line; '' if it is one word or longer than
    MAX_CHARS.
    """
    words = _END.split(text.strip(), maxsplit=1)[0].split()
    sentence = " ".join(words)
    return sentence if len(words) > 1 and len(sentence) <= MAX_CHARS else ""


def sentences(text: str) -> Iterator[str]:
    """The sentences of at most MAX_CHARS characters, each on one line."""
    for part in _END.split(text):
        sentence = " ".join(part.split())
        if sentence and len(sentence) <= MAX_CHARS:
            yield sentence


def _of_prose(text: str) -> Iterator[Triple]:
    for sentence in sentences(text):
        if match := _IS.match(sentence):
            yield Triple(match["head"], IS, match["tail"], sentence)
