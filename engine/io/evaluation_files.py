"""Find the source of an evaluation set: a task of lm-eval in YAML or a file of rows, and its data files.
Torch-free; the files' content ids are the caller's.

YAML is read without running anything that it names. `include` is resolved as lm-eval 0.4.13 does: included
keys first, own keys win. `!function a.b` becomes {"!function": "a.b"}. Aliases, which can make a small file
huge, and keys that occur twice are refused.
"""

import glob
import json
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from atelier import PROJECT
from atelier.engine.config.base import Json, parse
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError, check_utf8, nearest, printable
from atelier.engine.config.evaluation_source import (
    FIELDS,
    FUNCTION,
    Form,
    ProbeSource,
    RowSource,
    TaskSource,
    task_of,
)
from atelier.engine.config.project_roots import file_of_root, files_in_roots, located
from atelier.engine.io.source_files import check_package

SETS = "conf/questions"
OWN = PROJECT / SETS
YAML = (".yaml", ".yml")
ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".csv", ".parquet")
LOADERS = {"json": ENDINGS[:4], "csv": (".csv",), "parquet": (".parquet",)}
DATA_SET = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*")  # a data set's name
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # of a set
OF_SHOTS = re.compile(r"\.\d+(\.draw\d+)?$")  # tasks/pose.py
MOST = 1 << 20  # bytes of a YAML
QUESTIONS, POOL, CODE = "questions", "shots", "code"  # what a file is for


@dataclass(frozen=True)
class FoundSource:
    """`document`: what the source says, without what has no meaning. `shots`: as it says. `files`: what is
    read, by what it is for. `place`: the file that says it, for errors.
    """

    name: str
    form: Form
    place: str
    document: dict[str, Json]
    shots: int
    files: dict[str, list[str]] = field(default_factory=dict)

    @property
    def takes_first(self) -> bool:
        """Whether the solved examples are the pool's first ones, which no draw changes."""
        few = section_of(self.document.get("fewshot_config") or {})
        return few.get("sampler") == "first_n"


def _own(name: str) -> Path:
    """The file of a set in conf/questions of the root that has it; Atelier's if none does."""
    return located(file_of_root(f"{SETS}/{name}.yaml"))


def is_source(word: str) -> bool:
    """Whether `find` takes the word for a file, or knows its name."""
    return word.endswith((*YAML, *ENDINGS)) or bool(NAME.fullmatch(word) and _own(word).is_file())


def find(word: str, data: str, allow: tuple[str, ...], place: str, shots: int | None = None) -> FoundSource:
    """The source that `word` names: a path, or the name of a task in conf/questions. `data`: folder of data
    sets; `allow`: words whose Python code may run; `place`: the configuration key; `shots`: None = as the
    source says.

    Raises ConfigError for an unknown name, a source that is not supported, and data that is not there.
    """
    check_utf8(word, place, "the name")
    if word.endswith(ENDINGS):
        document: dict[str, Json] = {"source": word}
        return _of_rows(_stem(word), parse(RowSource, document, place), Path(), place, shots)
    if not word.endswith(YAML) and not NAME.fullmatch(word):
        raise _unknown(word, place)
    path = Path(word) if word.endswith(YAML) else _own(word)
    if not path.is_file():
        raise _unknown(word, place)
    said = read_yaml(path)
    if "source" in said:
        rows = parse(RowSource, said, str(path))
        found = _of_rows(_stem(word), rows, path.parent, f"{path}.source", shots)
        return _inside(found, f"{path}.source", path, word, data, allow)
    if "probe" in said:
        found = _of_probe(_stem(word), parse(ProbeSource, said, str(path)), path, shots or 0)
        return _inside(found, f"{path}.probe.of", path, word, data, allow)
    files = {CODE: _code(word, said, path, allow, place)}
    task = task_of(said, str(path))
    needed = {QUESTIONS: task.asked_split}
    shots = task.num_fewshot or 0 if shots is None else shots
    if shots and task.pool_split:
        needed[POOL] = task.pool_split
    for use, split in needed.items():
        files[use] = _data_files(task, split, path, data, said.get("metadata"))
        if word not in allow:
            _check_inside(files[use], path, f"{path}.dataset_kwargs.data_files", word, data)
    name = task.task or _stem(word)
    document = task.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    return FoundSource(_checked(name, str(path)), "task", str(path), document, shots, files)


def _of_rows(name: str, rows: RowSource, folder: Path, place: str, shots: int | None) -> FoundSource:
    path = _file_of_rows(folder / rows.source, place)
    document = rows.model_dump(mode="json", exclude_defaults=True, exclude={"source"})
    files = {QUESTIONS: [str(path.absolute())]}
    told = str(path)
    return FoundSource(
        _checked(name, place), "row", told, document, rows.shots if shots is None else shots, files
    )


def _of_probe(name: str, source: ProbeSource, path: Path, shots: int) -> FoundSource:
    place, of = f"{path}.probe", source.probe.file
    if shots:
        raise ConfigError(place, "a probe has no solved examples", "pose.shots=[], or ask it alone")
    files = {QUESTIONS: [str(_file_of_rows(path.parent / of, f"{place}.of").absolute())]} if of else {}
    document = source.model_dump(mode="json", exclude_defaults=True)
    document["probe"] = {**section_of(document["probe"]), "kind": source.probe.kind}
    return FoundSource(_checked(name, place), "row", str(path), document, 0, files)


def _file_of_rows(path: Path, place: str) -> Path:
    if not path.name.endswith(ENDINGS):
        raise ConfigError(place, f"{path} is not a file of rows", f"known: {', '.join(ENDINGS)}")
    if not path.is_file():
        near = nearest(path.name, [one.name for one in path.parent.glob("*")])
        raise ConfigError(
            place, f"{path} does not exist", f"did you mean {path.parent / near}?" if near else ""
        )
    check_package(str(path), place)
    return path


def _unknown(word: str, place: str) -> ConfigError:
    if word.endswith(YAML):
        path = Path(word)
        near = nearest(path.name, [one.name for one in path.parent.glob("*.y*ml")])
        return ConfigError(
            place, f"{word} does not exist", f"did you mean {path.parent / near}?" if near else ""
        )
    known = sorted([one.stem for one in OWN.glob("*.yaml")] + [*files_in_roots(SETS, ".yaml")])
    near = nearest(word, known)
    advice = f"did you mean {near}? " if near else ""
    way_out = f"{advice}known: {', '.join(known)}; or a path of a .yaml or {ENDINGS[0]} file"
    return ConfigError(place, f"there is no evaluation set {word!r}", way_out)


def _stem(word: str) -> str:
    ending = next(one for one in (*ENDINGS, *YAML, "") if word.endswith(one))
    return Path(word.removesuffix(ending)).name


def _checked(name: str, place: str) -> str:
    if not NAME.fullmatch(name):
        raise ConfigError(
            place, f"{name!r} cannot be a set's name", "letters, digits, and inside also . _ -: rename it"
        )
    if OF_SHOTS.search(name):
        raise ConfigError(
            place, f"{name!r} ends as sets with solved examples do (quiz.5, quiz.5.draw1)", "rename it"
        )
    return name


def _code(word: str, said: Mapping[str, Json], path: Path, allow: tuple[str, ...], place: str) -> list[str]:
    """The files of Python code that the task names. Raises ConfigError if it may not run."""
    found = functions_of(said)
    if not found:
        return []
    key, function = next(iter(found.items()))
    if word not in allow:
        raise ConfigError(
            f"{path}.{key}",
            f"is Python code (!function {function}), which does not run by itself",
            f"write it as a Jinja template, or trust this source: pose.allow=[{word}]",
        )
    files: set[str] = set()
    for key, function in found.items():
        if key not in (*FIELDS, "process_docs"):
            raise ConfigError(
                f"{path}.{key}", f"!function {function} is not supported here", "it may run only in"
                f" process_docs, {', '.join(FIELDS)}",
            )  # fmt: skip
        module, _, name = function.rpartition(".")
        file = path.parent / f"{module.replace('.', '/')}.py"
        if not module or not name.isidentifier() or not file.is_file():
            raise ConfigError(f"{path}.{key}", f"!function {function}: there is no {file}")
        files.add(str(file.absolute()))
    if len(files) > 1:
        raise ConfigError(str(path), f"names code in {len(files)} files", "put it into one")
    return sorted(files)


def _inside(
    found: FoundSource, place: str, path: Path, word: str, data: str, allow: tuple[str, ...]
) -> FoundSource:
    """The source, whose files lie in its folder or that of data sets unless it is allowed otherwise."""
    if word not in allow:
        _check_inside([file for each in found.files.values() for file in each], path, place, word, data)
    return found


def _check_inside(files: list[str], path: Path, place: str, word: str, data: str) -> None:
    """Raise ConfigError for a file outside the folders of the task and of data sets: a task from elsewhere
    may name any file of this machine.
    """
    folders = [path.parent.resolve(), Path(data).resolve()]
    for file in files:
        if not any(Path(file).resolve().is_relative_to(folder) for folder in folders):
            raise ConfigError(
                place,
                f"{file} lies outside the folder of the task and that of data sets",
                f"move it there, or trust this source: pose.allow=[{word}]",
            )


def _data_files(task: TaskSource, split: str, path: Path, data: str, about: Json) -> list[str]:
    """The files of a split: absolute paths, sorted where a pattern names them."""
    place = f"{path}.dataset_kwargs.data_files"
    if task.dataset_path not in LOADERS:
        return [_named(task, split, path, data)]
    if task.dataset_kwargs is None:
        raise ConfigError(place, f"is needed with dataset_path {task.dataset_path}", "give paths by split")
    given = task.dataset_kwargs.data_files
    by_split = given if isinstance(given, dict) else {"train": given}
    if split not in by_split:
        raise ConfigError(place, f"has no files of the split {split}", f"there are: {', '.join(by_split)}")
    names = by_split[split]
    files: list[str] = []
    for name in (names,) if isinstance(names, str) else names:
        files += _files(name, path, Path(data), place, about)
    if not files:
        raise ConfigError(place, f"names no file of the split {split}", "give one")
    for file in files:
        if not file.endswith(LOADERS[task.dataset_path]):
            known = ", ".join(LOADERS[task.dataset_path])
            raise ConfigError(place, f"{file} is no {task.dataset_path} file", f"known: {known}")
        check_package(file, place)
    return files


def _files(name: str, path: Path, data: Path, place: str, about: Json) -> list[str]:
    """Files of a path or pattern, which is relative to the YAML or else to the folder of data sets."""
    if "://" in name:
        raise ConfigError(place, f"{printable(name)} is not a local path", "download it, and give its path")
    for folder in (path.parent, data):
        each = [str(folder / name)] if (folder / name).is_file() else _matching(folder, name)
        found = [one for one in each if Path(one).is_file()]
        if found:
            return [str(Path(one).absolute()) for one in found]
    about = about if isinstance(about, Mapping) else {}
    of = f"from {about['from']}" if "from" in about else "with the rows of the data set"
    fields = f", with the fields {about['fields']}" if "fields" in about else ""
    raise ConfigError(place, f"{data / name} is not there", f"put it there {of}{fields}")


def _named(task: TaskSource, split: str, path: Path, data: str) -> str:
    """The file of a split of a data set that the task names as the hub does."""
    name = task.dataset_path
    if name.endswith(".py"):
        raise ConfigError(f"{path}.dataset_path", f"{name} is a loading script", "give its rows as .jsonl")
    if not DATA_SET.fullmatch(name) or not DATA_SET.fullmatch(task.dataset_name or "default"):
        raise ConfigError(
            f"{path}.dataset_path",
            f"{printable(name)} is no name of a data set",
            "give dataset_path: json and dataset_kwargs.data_files",
        )
    folder = Path(data) / name / (task.dataset_name or "")
    for ending in ENDINGS:
        if (file := folder / f"{split}{ending}").is_file():
            check_package(str(file), f"{path}.dataset_path")
            return str(file.absolute())
    raise ConfigError(
        f"{path}.dataset_path",
        f"the split {split} of {name} is not there: no {folder / split}{ENDINGS[0]}",
        f"put its rows there ({', '.join(ENDINGS)}), with the fields that the templates name",
    )


def _matching(folder: Path, pattern: str) -> list[str]:
    return sorted(glob.glob(str(Path(glob.escape(str(folder))) / pattern), recursive=True))


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(None, None, "aliases (*name) are not supported", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        made = super().construct_mapping(node, deep)
        if len(made) < len(node.value):
            keys = [key.value for key, _ in node.value]
            twice = next((key for key in keys if keys.count(key) > 1), "<<")
            problem = f"the key {twice} occurs twice"
            raise yaml.MarkedYAMLError(None, None, problem, node.start_mark)
        return made


def _function(loader: yaml.SafeLoader, node: yaml.Node) -> dict[str, object]:
    assert isinstance(node, yaml.ScalarNode)
    return {FUNCTION: str(loader.construct_scalar(node))}


_Loader.add_constructor("!function", _function)


def read_yaml(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Json]:
    """The document of a YAML with what it includes. `above`: files that include it.

    Raises ConfigError with file and line for a file that is not such a document.
    """
    if path in above:
        raise ConfigError(str(path), "includes itself", " -> ".join(str(one) for one in (*above, path)))
    said = _document(path)
    included = said.pop("include", None) or []
    merged: dict[str, Json] = {}
    for name in included if isinstance(included, list) else [included]:
        if not isinstance(name, str):
            raise ConfigError(f"{path}.include", "is not a path", "give the path of a YAML")
        other = path.parent / name
        if not other.is_file():
            raise ConfigError(f"{path}.include", f"{other} does not exist")
        merged |= read_yaml(other, (*above, path))
    return merged | said


def _document(path: Path) -> dict[str, Json]:
    place = str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MOST + 1)
        if len(raw) > MOST:
            raise ConfigError(place, f"is larger than {MOST >> 20} MiB", "keep data in files beside the task")
        said = yaml.load(raw.decode(), Loader=_Loader)
        json.dumps(said, allow_nan=False, ensure_ascii=False).encode()  # also finds dates and half characters
    except OSError as error:
        raise ConfigError(place, f"cannot be read ({error.strerror})") from None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{place}{line}", f"is not a task's YAML ({printable(error.problem)})") from None
    except (yaml.YAMLError, ValueError, TypeError, AssertionError, RecursionError) as error:
        reason = printable(" ".join(str(error).split()) or type(error).__name__)
        raise ConfigError(place, f"is not a task's YAML ({reason})") from None
    if not isinstance(said, dict) or not all(isinstance(key, str) for key in said):
        raise ConfigError(place, "is not a task's YAML (no keys at its top)")
    return said


def functions_of(document: Json, key: str = "") -> dict[str, str]:
    """The Python functions that a document names, by their dotted keys."""
    if isinstance(document, Mapping):
        if set(document) == {FUNCTION}:
            return {key: str(document[FUNCTION])}
        each = document.items()
    elif isinstance(document, list):
        each = enumerate(document)
    else:
        return {}
    found: dict[str, str] = {}
    for name, one in each:
        found |= functions_of(one, f"{key}.{name}".strip("."))
    return found
