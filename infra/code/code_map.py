"""Code maps: the code that a result depends on, as file -> digests of its functions and of the rest.

A map covers the engine's files that are reached by static imports from a task's modules and the kinds of its
roles. It leaves out code that does not change results, or only their floating-point bits (parallel/,
checkpoints, storage), configuration plumbing and error checks. It is the same for every layout. Digests are
of syntax trees without docstrings, comments and the order of imports.
"""

import ast
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from atelier import PROJECT
from atelier.engine.config import syntax
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError
from atelier.engine.config.evaluation import Scoring
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.extensions import extension_of
from atelier.engine.config.kind_files import kind_file
from atelier.engine.config.own_code import files_imported, files_of_code
from atelier.engine.config.project_roots import located
from atelier.engine.config.registry import ModelSpec, ObjectiveSpec
from atelier.engine.config.role import Role
from atelier.engine.config.sections import sections_of
from atelier.engine.config.syntax import imports_of, parts_of
from atelier.engine.config.task.curation import FilterConfig
from atelier.engine.config.task.prepare import ExtractConfig
from atelier.engine.io.source_check import source_digest
from atelier.engine.io.user_folders import cache_folder
from atelier.infra.code.code_change import Map
from atelier.infra.dag import Node

Cache = dict[str, tuple[list[str], dict[str, str]]]  # digest of a file -> its imports and parts

MOST = 2000  # files in the cache
LOOP, EXTENSIONS = "engine/train.py", "engine/extensions/"
REGISTRIES = (
    "model",
    "model/router",
    "objective",
    "optim",
    "conversion",
    "data/datasets",
    "data/filter",
    "data/tagger",
    "config/model",
    "config/router",
    "config/objective",
    "config/optim",
    "config/conversion",
    "config/filter",
    "config/tagger",
)
# code that does not change results, or only their floating-point bits; serialization, configuration and error
# checks; preparation of data, whose results are parents
LEFT_OUT = (
    *(
        f"engine/parallel/{name}.py"
        for name in (
            "collective",
            "context",
            "expert",
            "gang",
            "grid",
            "pipeline",
            "shard",
            "tensor",
        )
    ),
    "engine/checkpoint/",
    "engine/io/",
    "engine/plan/",
    *(
        f"engine/loop/{name}.py"
        for name in ("computed_by", "publish", "replica_check", "report", "resume", "save", "stop")
    ),
    "engine/loop/straggler.py",
    "engine/config/project_roots.py",
    *(
        f"engine/config/{name}.py"
        for name in ("base", "device", "document", "error", "extensions", "kind_files", "metric", "syntax")
    ),
    *(
        f"engine/config/{name}.py"
        for name in ("identity_defaults", "parallel", "pool", "record", "registry", "section", "tested")
    ),
    *(
        f"engine/config/{name}.py"
        for name in ("message", "run_file", "site", "curation", "filters", "taggers", "own_code")
    ),
)
TRAINED = ("train", "finetune")
RIVALS = ("engine/inference/rivals.py",)  # for scored heads
FAMILIES = tuple(
    f"engine/config/family/{path.name}" for path in sorted((PROJECT / "engine/config/family").glob("*.py"))
)
ROOTS = {  # by task: the files where its imports start
    "curate": ("engine/data/curate.py",),
    "learn_tokenizer": ("engine/data/learn_tokenizer.py",),
    "encode": ("engine/data/encode.py",),
    "label": ("engine/data/label.py",),
    "render": ("engine/data/render.py",),
    "extract": ("engine/data/triples.py",),
    "describe": ("engine/data/attributes.py",),
    "imitate": ("engine/imitate.py",),
    "write": ("engine/write.py",),
    "score": ("engine/evaluate.py",),
    "examine": ("engine/examine.py",),
    "examine_checkpoint": ("engine/examine.py",),
    "audit": ("engine/data/audit/audit.py",),
    "convert": ("engine/convert.py",),
    "adopt": ("engine/adopt.py", *FAMILIES),
    "adopt_adapter": ("engine/adopt_adapter.py", *FAMILIES),
    **{
        path.stem: (path.relative_to(PROJECT).as_posix(),)
        for path in sorted((PROJECT / "engine/data/curation/tasks").glob("[!_]*.py"))
    },
    "train": (LOOP, "engine/config/mixture.py"),
    "finetune": (LOOP, "engine/data/examples.py"),
}


def needs_torch(task: str) -> bool:
    """Whether the task's ranks compute with torch: those that start at an entry point of the engine, not at
    its preparation of data.
    """
    return any(os.path.dirname(root) == "engine" for root in ROOTS.get(task, ()))


@dataclass(frozen=True)
class SourceFile:
    """One source file: the engine modules that it imports, and digests of its functions and classes."""

    imports: tuple[str, ...]
    parts: dict[str, str]
    content: str  # digest of the whole file


def training_map(
    task: str,
    roles: Mapping[str, Role],
    name: str,
    project: Path = PROJECT,
    *,
    extensions: Iterable[str] = (),
) -> Map:
    """Code map of training the role `name`: loop, data, and the kinds of the role and its teachers.
    `extensions`: those whose keys are in its identity.
    """
    kinds: set[str] = set()
    hooks = {f"{EXTENSIONS}{extension}/hook.py" for extension in extensions}
    waiting = [name]
    while waiting:
        role = roles[waiting.pop()]
        hooks |= {f"{EXTENSIONS}{extension}/hook.py" for extension in role.extensions}
        kinds |= {*model_kinds(role.model), f"optim/{role.optim.kind}"}
        kinds.update(*(_objective_kinds(objective) for objective in role.objective.values()))
        waiting += role.teachers
    behind = (role for role in roles.values() if role.teacher == name and role.delay)
    # its checkpoints keep the outputs that these learn from
    hooks |= {f"{EXTENSIONS}{extension}/hook.py" for role in behind for extension in role.extensions}
    hooks = {file for file in hooks if (project / file).exists()}
    return code_map((*ROOTS[task], *sorted(hooks)), kinds, project)


def hooks_map(extensions: Iterable[str], project: Path = PROJECT) -> Map:
    """Code map of layout extensions. Like other layout code it is in no result's map."""
    files = [f"{EXTENSIONS}{name}/{file}.py" for name in sorted(extensions) for file in ("hook", "weights")]
    return code_map([file for file in files if (project / file).exists()], project=project)


def model_kinds(spec: ModelSpec) -> tuple[str, ...]:
    """The kinds whose code computes a model: its own, and its router's."""
    router = spec.experts.router.kind if isinstance(spec, MixedBlocks) and spec.num_experts else ""
    return (f"model/{spec.kind}", *((f"model/router/{router}", f"router/{router}") if router else ()))


def _objective_kinds(objective: ObjectiveSpec) -> set[str]:
    """The objective's kind, the kind of its rows, and the kind of which it is a term."""
    found = {f"objective/{objective.kind}", f"data/datasets/{type(objective).reads}"}
    return found | ({f"objective/{type(objective).term}"} if type(objective).term else set())


def code_map(roots: Iterable[str], kinds: Iterable[str] = (), project: Path = PROJECT) -> Map:
    """Map of the files that `roots` reach by imports, and those of `kinds` ("model/gpt"). Registry files
    count only as one of these kinds or when another kind imports them, because the loop imports all of them.
    """
    return _code_map(tuple(roots), frozenset(kinds), project)


@cache
def _code_map(roots: tuple[str, ...], kinds: frozenset[str], project: Path) -> Map:
    each = [kind.rpartition("/")[::2] for kind in kinds]
    chosen = {kind_file(f"{above}{group}", kind) for group, kind in each for above in ("", "config/")}
    chosen = {file for file in chosen if located(file, project).exists()}
    waiting, found = [*roots, *chosen], {}
    with _cached() as known:
        while waiting:
            file = waiting.pop()
            if file in found:
                continue
            source = found[file] = _source(located(file, project), known)
            if file.startswith(LEFT_OUT):
                continue
            from_kind = _is_kind(file)
            for module in source.imports:
                own = _file(_absolute(module, file), project)
                for target in [own] if own else files_imported(module, file):
                    if from_kind or target in chosen or not _is_kind(target) or not own:
                        waiting.append(target)
    return {file: found[file].parts for file in sorted(found) if not file.startswith(LEFT_OUT)}


def maps_of(node: Node) -> dict[str, Map]:
    """Code map of each product of the node; {} for a task that runs without the engine."""
    if node.task not in ROOTS:
        return {}
    if node.task not in TRAINED:
        roots = (*ROOTS[node.task], *(RIVALS if node.config.get("heads") else ()))
        whole = code_map(roots, _kinds_read(node))
        return {key: whole for key in node.products}
    roles, asked = node.training.roles, sections_of(node.training.train).values()
    used = {
        name: {extension_of(type(s)) for s in asked if s.acts_on(name, role.teacher, role.lesson)}
        for name, role in roles.items()
    }
    return {name: training_map(node.task, roles, name, extensions=used[name]) for name in roles}


def _kinds_read(node: Node) -> set[str]:
    """Kinds (models, conversions, objectives, rows) used by a node without training."""
    found = set(node.kinds)
    if node.task == "filter_documents":
        kinds = {one.kind for _, one in FilterConfig.model_validate(node.config).filters}
        found.update(f"{group}/{kind}" for group in ("filter", "data/filter") for kind in kinds)
    if node.task == "extract":
        kinds = {one.kind for one in ExtractConfig.model_validate(node.config).taggers.values()}
        found.update(f"{group}/{kind}" for group in ("tagger", "data/tagger") for kind in kinds)
    if rule := section_of(node.config.get("rule", {})).get("kind"):
        found.add(f"conversion/{rule}")
    if node.task == "imitate":
        found.add("data/datasets/natural")
    if node.config.get("heads"):  # scored
        found.update(*map(_objective_kinds, Scoring.model_validate(node.config).heads.values()))
    return found


def sources_of(maps: Mapping[str, Map], project: Path = PROJECT) -> dict[str, str]:
    """Content digests of the maps' files when they were read, for engine/io/source_check.py."""
    return {file: _read[located(file, project)].content for code in maps.values() for file in code}


def _is_kind(file: str) -> bool:
    """Whether a file implements a kind of a registry, which a configuration can name."""
    folder, _, name = re.sub("^([^/]+/)?engine/", "", file).rpartition("/")
    folder = re.sub("^extensions/[^/]+/", "", folder)
    if folder not in REGISTRIES:
        return False
    group = folder.removeprefix("config/").removeprefix("model/")
    spec = located(f"{file.partition('engine/')[0]}engine/config/{group}/{name}")
    return name in _kinds(group) or (not file.startswith("engine/") and spec.exists())


@cache
def _kinds(group: str) -> frozenset[str]:
    """File names of a group's kinds, from its folder of specs, or of datasets."""
    folder = PROJECT / "engine" / group if group == "data/datasets" else PROJECT / "engine" / "config" / group
    return frozenset(path.name for path in folder.glob("*.py")) - {"__init__.py", "load.py"}


@cache
def _file(module: str, project: Path) -> str:
    """The file of an engine module; '' if there is none (an imported name that is not a module)."""
    if not module.startswith("engine."):
        return ""  # of another root (file_imported), or another package
    place = module.replace(".", "/")
    return next((each for each in (f"{place}.py", f"{place}/__init__.py") if (project / each).exists()), "")


def _absolute(module: str, file: str) -> str:
    """The absolute name of `module` as imported in `file`: `..blocks` in engine/model/gpt.py is
    engine.blocks.
    """
    dots = len(module) - len(module.lstrip("."))
    above = file.removesuffix(".py").split("/")[:-dots] if dots else []
    return ".".join([*above, *filter(None, [module[dots:]])])


_read: dict[Path, SourceFile] = {}  # this process runs the code that it first read


def _source(path: Path, known: Cache) -> SourceFile:
    """The source file at `path`, from cache by its content."""
    if path not in _read:
        try:
            _read[path] = _by_content(path.read_bytes(), known)
        except SyntaxError as error:
            raise ConfigError(f"{path}:{error.lineno}", error.msg, "correct it") from None
    return _read[path]


def check_unread_changes() -> None:
    """Raises ConfigError if a file changed since this process (such as a notebook) read it: answers would be
    about the old code.
    """
    for path, source in _read.items():
        if not path.exists() or source_digest(path.read_bytes()) != source.content:
            raise ConfigError(str(path), "was changed since this process read it", "start a new one")
    for file, digest in files_of_code().items():
        path = located(file)
        if not path.exists() or source_digest(path.read_bytes()) != digest:
            raise ConfigError(str(path), "was changed since this process read it", "start a new one")


def _by_content(content: bytes, known: Cache) -> SourceFile:
    key = hashlib.sha256(content).hexdigest()[:32]
    if not _is_source(known.get(key)):
        tree = ast.parse(content)
        known[key] = sorted(imports_of(tree)), parts_of(tree)
    imports, parts = known[key]
    return SourceFile(tuple(imports), parts, source_digest(content))


def _is_source(found: Sequence[list[str] | dict[str, str]] | None) -> bool:
    """Whether a cache entry has the form that this module writes."""
    return isinstance(found, list | tuple) and [type(part) for part in found] == [list, dict]


def _cache_place() -> Path:
    """Cache file, one per version of engine/config/syntax.py and of Python, since digests depend on both."""
    by = source_digest(Path(syntax.__file__).read_bytes())
    return cache_folder() / f"code-{platform.python_version()}-{by}.json"


@contextmanager
def _cached() -> Iterator[Cache]:
    """Cache of digests by file content: read on entry, written back when something was added."""
    known: Cache = {}
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(_cache_place().read_bytes())
        known = found if isinstance(found, dict) else {}
    before = len(known)
    yield known
    if len(known) == before:
        return
    with suppress(OSError):  # only an optimization
        _cache_place().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = _cache_place().with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(dict(list(known.items())[-MOST:])))
        temporary.replace(_cache_place())
