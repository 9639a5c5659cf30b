"""Flows, groups, options and keys, read from flows/ and conf/ as text. Help and completion cannot wait for
Hydra.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

import yaml

from atelier import PROJECT
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.project_roots import (
    file_of_root,
    files_in_roots,
    located,
    project_roots,
)
from atelier.flows.run.signature import WAY_OUT, parameters_of

if TYPE_CHECKING:
    from atelier.engine.config.base import FieldPlace, Json, Spec  # pydantic: 0.1 s

CONF = PROJECT / "conf"
SETTINGS = "ATELIER_CONFIG_DIRS"  # environment variable: further folders of settings
DEEPEST = 4  # parts of a key below the first one
# libyaml if available: a flow reads 84 files
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# keys of flows outside sections: meaning and example
OWN_KEYS = {
    "source": (
        "a folder saved by transformers or peft, or hf://owner/name",
        "source=checkpoints/Qwen3-0.6B",
    ),
    "name": ("the model's name", "name=mine"),
    "base": ("the finished model to which the adapter `source` belongs", "base=guest"),
    "init": (
        "the finished model to start from: its name, name@alias or digits of its fingerprint",
        "init=mine",
    ),
    "model": ("the network: its kind and sizes", "model=gpt_nano"),
    "evals": (
        "evaluation sets: .yaml (of lm-eval) or .jsonl files, or names of conf/questions",
        "evals=[mytask.yaml,boolq]",
    ),
    "checkpoints": (
        "checkpoints of trainings: digits of the trajectory's fingerprint, @ and the step",
        "checkpoints=[3f2a91c0@400]",
    ),
    "models": ("finished models: names, name@alias or digits of fingerprints", "models=[teacher,student_a]"),
}
GROUP_WORD = re.compile(r"^\+{0,2}(?P<group>[\w/]+)(@(?P<package>[\w.]+))?=(?P<option>[^=]+)$")
ENTRY = re.compile(r"^(?P<override>override )?(optional )?/?(?P<group>[\w/]+)(@(?P<package>[\w.]+))?$")


def flow_names() -> list[str]:
    """The existing flows, of all roots: flows/<name>.py with conf/<name>.yaml."""
    own = {path.stem for path in (PROJECT / "flows").glob("*.py")}
    return sorted(name for name in {*own, *files_in_roots("flows", ".py")} if conf_file(name).is_file())


def flow_file(name: str) -> str:
    """The file of a flow, by its name among the files of all roots."""
    return file_of_root(f"flows/{name}.py")


def check_flow(flow: str, place: str) -> None:
    """Raises ConfigError at `place` for a flow that does not exist."""
    if flow not in flow_names():
        check_settings(flow, place)
        near = nearest(flow, flow_names())
        way_out = (f"did you mean {near}? " if near else "") + f"there are: {', '.join(flow_names())}"
        raise ConfigError(place, f"no flow {flow!r}", way_out)


def check_settings(flow: str, place: str) -> None:
    """Raises ConfigError at `place` for a flow's file of a project that has no settings of its name."""
    root = files_in_roots("flows", ".py").get(flow)
    if root is not None and not conf_file(flow).is_file():
        problem = f"{root.file(f'flows/{flow}.py')} has no {root.file(f'conf/{flow}.yaml')}"
        raise ConfigError(place, problem, "write that file: it makes a flow a command and has its defaults")


def conf_folders() -> list[Path]:
    """The folders conf/ of all project roots, Atelier's first, then those that the command line added."""
    return [root.conf for root in project_roots() if root.conf.is_dir()] + settings_folders()


def settings_folders() -> list[Path]:
    """The folders that the command line added (flows/cli/config_dirs.py)."""
    return [Path(one) for one in os.environ.get(SETTINGS, "").split(os.pathsep) if one]


def conf_file(name: str) -> Path:
    """The file of a name (model/gpt_nano, pretrain) in conf/ of the root that has it; if none has, where
    Atelier would have it. Raises ConfigError if two roots have it.
    """
    folder, _, option = name.rpartition("/")
    return _added(folder).get(option, CONF / f"{name}.yaml")


def _added(group: str) -> dict[str, Path]:
    """The yaml files of a group ('' = of none) that are not Atelier's, by name. Raises ConfigError for two of
    one name.
    """
    of_roots = files_in_roots(f"conf/{group}".rstrip("/"), ".yaml")
    found = {name: root.conf / group / f"{name}.yaml" for name, root in of_roots.items()}
    for folder in settings_folders():
        for path in sorted((folder / group).glob("[!_.]*.yaml")):
            other = found.get(path.stem, CONF / group / path.name)
            if other.exists():
                raise ConfigError(str(path), f"{other} has the same name", "rename this one")
            found[path.stem] = path
    return found


def is_group(name: str) -> bool:
    """Whether a root has a folder conf/<name>."""
    return any((conf / name).is_dir() for conf in conf_folders())


def groups() -> list[str]:
    return sorted({path.name for conf in conf_folders() for path in conf.iterdir() if path.is_dir()})


def options(group: str) -> list[str]:
    """The options of a group, of all roots. Raises ConfigError if two roots have one of the same name."""
    own = (path.stem for path in (CONF / group).glob("*.yaml"))
    return sorted({*own, *_added(group)})


def flow_text(name: str) -> tuple[str, str]:
    """(description, example command) of a flow, from the docstring of its file."""
    parts = located(flow_file(name)).read_text("utf-8", errors="replace").split('"""', 2)
    text = parts[1].strip() if len(parts) == 3 else ""
    about = " ".join(text.split("\n\n")[0].split())
    example = next(
        (line.strip() for line in text.splitlines() if line.startswith("atelier ")), f"atelier {name}"
    )
    return about.removeprefix(f"{name}: ").removesuffix("."), example


def option_text(group: str, option: str) -> tuple[str, str]:
    """(description, example command) of a group's option, from the first comment of its yaml."""
    for line in conf_file(f"{group}/{option}").read_text().splitlines():
        if line.startswith("# ") and not line.startswith("# @package"):
            example, _, about = line[2:].partition("  ")
            return about.strip(), example.strip()
    return "", ""


@dataclass(frozen=True)
class GroupChoice:
    """Option `option` of `group`; its keys are placed at `package` in the flow's configuration."""

    group: str
    package: str
    option: str

    @property
    def key(self) -> str:
        """The choice's key on the command line."""
        return self.group if self.package in (self.group, "") else f"{self.group}@{self.package}"


@dataclass
class FlowShape:
    """A flow's configuration from defaults lists and yaml files, with the groups chosen in `words`."""

    flow: str
    words: tuple[str, ...] = ()
    choices: dict[str, GroupChoice] = field(default_factory=dict)
    document: "dict[str, Json]" = field(default_factory=dict)
    _given: dict[str, str] = field(default_factory=dict)
    _overridden: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        added = [c for c in map(_group_choice_of, self.words) if c is not None]
        self._given = {c.key: c.option for c in added}
        for _ in range(2):  # overrides come after the entries that they change: the first pass collects them
            self.choices, self.document = {}, {}
            self._file(self.flow, "")
            for choice in added:
                if choice.key not in self.choices and choice.option in options(choice.group):
                    self._group(choice)

    @property
    def unmatched(self) -> set[str]:
        """Overrides of choices that no defaults list has; Hydra would refuse them."""
        return set(self._overridden) - set(self.choices)

    def _file(self, path: str, package: str) -> None:
        text = conf_file(path).read_text()
        package = "" if "# @package _global_" in text else package
        content = yaml.load(text, LOADER) or {}
        defaults = content.pop("defaults", [])
        before = defaults.index("_self_") if "_self_" in defaults else len(defaults)
        folder = path.rpartition("/")[0]
        self._defaults(defaults[:before], package, folder)
        merge(self.document, package, content)
        self._defaults(defaults[before + 1 :], package, folder)

    def _defaults(self, entries: list[str | dict[str, str | None]], package: str, folder: str) -> None:
        """Read a file's defaults list. `folder`: the file's own, for names without a group. A file's
        overrides are collected before its includes: the outermost override wins.
        """
        groups: list[GroupChoice | str] = []
        for entry in entries:
            if isinstance(entry, str):
                groups.append(entry)
                continue
            ((key, option),) = entry.items()
            match = ENTRY.match(key)
            if match is None:
                continue
            below = match["package"] or match["group"]
            place = f"{package}.{below}".strip(".")
            choice = GroupChoice(match["group"], "" if below == "experiment" else place, str(option or ""))
            if match["override"]:
                self._overridden.setdefault(choice.key, choice.option)
            else:
                groups.append(choice)
        for one in groups:
            if isinstance(one, str):
                self._file(f"{folder}/{one}".strip("/"), package)
            else:
                self._group(one)

    def _group(self, choice: GroupChoice) -> None:
        chosen = self._given.get(choice.key) or self._overridden.get(choice.key) or choice.option
        self.choices[choice.key] = GroupChoice(choice.group, choice.package, chosen)
        if chosen in options(choice.group):
            self._file(f"{choice.group}/{chosen}", choice.package)


def _group_choice_of(word: str) -> GroupChoice | None:
    match = GROUP_WORD.match(word)
    if match is None or not is_group(match["group"]):
        return None
    package = "" if match["group"] == "experiment" else match["package"] or match["group"]
    return GroupChoice(match["group"], package, match["option"])


def merge(document: "dict[str, Json]", package: str, content: "dict[str, Json]") -> None:
    """Put `content` into `document` below the dotted `package`, section by section."""
    target = document
    for part in filter(None, package.split(".")):
        target = cast("dict[str, Json]", target.setdefault(part, {}))  # a section
    for key, value in content.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target, key, value)
        else:
            target[key] = dict(value) if isinstance(value, dict) else value


@cache
def parameters(flow: str) -> "type[Spec]":
    """The parameters of the flow's body as one spec, which refuses unknown keys and wrong types. They are
    read from its source text, and only the named specs are imported. Raises ConfigError, with file and line,
    for a file that is not Python and for parameters that cannot be keys.
    """
    from pydantic import create_model

    from atelier.engine.config.base import Spec

    file = flow_file(flow)
    fields = parameters_of(flow, file)
    taken = [name for name in fields if hasattr(Spec, name)]
    if taken:
        raise ConfigError(file, f"the parameter {taken[0]} cannot be a key", "rename it: all specs have that")
    found = create_model(flow, __base__=Spec, **fields)
    left_out = [name for name in fields if name not in found.model_fields]
    if left_out:
        raise ConfigError(file, f"the parameter {left_out[0]} cannot be a key", WAY_OUT)
    return found


def places(shape: FlowShape) -> "dict[str, FieldPlace]":
    """The flow's parameters and the pool, each with its value. Sweeps, not people, fill mappings that are
    empty by default.
    """
    from atelier.engine.config.base import FieldPlace  # late: pydantic, 0.1 s
    from atelier.engine.config.pool import Pool

    found = {
        place.name: place
        for place in FieldPlace("", parameters(shape.flow), shape.document).below()
        if place.field and place.field.default != {}
    }
    return found | {"pool": FieldPlace("pool", Pool, shape.document.get("pool"))}


def keys_called(flow: str, name: str) -> list[str]:
    """The flow's keys whose last part is `name`, as a dotted path each."""
    level, found = list(places(FlowShape(flow)).values()), []
    for _ in range(DEEPEST):
        level = [below for place in level for below in place.below()]
        found += [place.name for place in level if place.name.rpartition(".")[2] == name]
    return found


def used_choices(shape: FlowShape) -> Iterator[GroupChoice]:
    """The choices that affect the flow: those of its parameters, the settings, the experiment."""
    wanted = {*places(shape), "tracker"}
    for choice in shape.choices.values():
        if choice.package.split(".")[0] in wanted or not choice.package:
            yield choice
