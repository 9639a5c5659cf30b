"""Shell completion: flows, commands, groups, options, keys of a flow's configuration, models."""

import glob
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atelier.engine.config.error import ConfigError
from atelier.engine.io.local_url import absolute, is_path
from atelier.flows.cli.syntax import COMMANDS, Command
from atelier.flows.run import catalog
from atelier.flows.run.new_files import WORDS

if TYPE_CHECKING:
    from atelier.engine.config.base import FieldPlace

BASH = """\
_atelier() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do COMPREPLY+=("$line"); done \\
        < <("${COMP_WORDS[0]}" --complete "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
}
complete -o nospace -F _atelier atelier
"""
ZSH = """\
autoload -Uz compinit
whence compdef >/dev/null || compinit
_atelier() {
    local -a open closed
    local line
    while IFS= read -r line; do
        if [[ $line == *' ' ]]; then closed+=("${line% }"); else open+=("$line"); fi
    done < <("${words[1]}" --complete "${(j: :)words[1,CURRENT]}" 2>/dev/null)
    compadd -S '' -- $open
    compadd -- $closed
}
compdef _atelier atelier
"""
ROLE_WORDS = ("teacher",)
MODEL_WORDS = ("init", "models")


def script(words: list[str]) -> str:
    """The shell code that calls this module. Raises ConfigError for an unknown shell."""
    shells = {"bash": BASH, "zsh": ZSH}
    if len(words) != 1 or words[0] not in shells:
        raise ConfigError(
            "atelier --completion",
            f"takes one of {', '.join(shells)} (given: {' '.join(words) or 'nothing'})",
            'eval "$(atelier --completion bash)"',
        )
    return shells[words[0]]


def candidates(line: str, breaks: str = "") -> list[str]:
    """Completions of the last word of `line`. A complete word ends in a space.

    Bash replaces only the text after its last word break (`breaks`), so the text before is cut off.
    """
    words = line.split()
    if not words or line[-1].isspace():
        words.append("")
    current = words[-1]
    found = sorted(
        {word for word in _words(words[1:-1], current) if word.startswith(current) and word != current}
    )
    cut = max((current.rfind(mark) + 1 for mark in breaks if not mark.isspace()), default=0)
    return [(word if word[-1] in "=./" else f"{word} ")[cut:] for word in found]


def _words(before: list[str], current: str) -> Iterator[str]:
    if not before:
        yield from (*catalog.flow_names(), *COMMANDS, "--help", "--version", "--completion", "--hydra-help")
    elif before[0] == "--completion":
        yield from ("bash", "zsh")
    elif before[0] in COMMANDS:
        yield from _command_words(COMMANDS[before[0]], before[1:], current)
    elif before[0] in catalog.flow_names():
        yield from ("--help", "--cfg", "--info", "--multirun")
        yield from _override_words(before[0], tuple(before[1:]), current)


def _command_words(command: Command, before: list[str], current: str) -> Iterator[str]:
    flags = {option.flag: option for option in command.options}
    if before and before[-1] in flags and flags[before[-1]].value:
        if flags[before[-1]].value == "FILE":
            yield from (f"{path}/" if path.is_dir() else str(path) for path in Path().glob(f"{current}*"))
        elif flags[before[-1]].value == "RUN":
            yield from _runs()
        elif flags[before[-1]].value == "TASK":
            for word in before:
                yield from _tasks(word)
        return
    yield from (*flags, "--help")
    plain = [
        word
        for number, word in enumerate(before)
        if not word.startswith("-") and not _is_value(before, number, command)
    ]
    word = command.words[min(len(plain), len(command.words) - 1)] if command.words else None
    if word is None or (len(plain) >= len(command.words) and not word.many):
        return
    if word.kind == "flow":
        yield from catalog.flow_names()
    elif word.kind == "group":
        yield from (*catalog.groups(), "flows")
    elif word.kind == "new":
        yield from WORDS
    elif word.kind == "override":
        flow = plain[0] if command.words[0].kind == "flow" else _manifest(plain[0]).get("flow")
        if flow in catalog.flow_names():
            yield from _override_words(flow, tuple(plain[1:]), current)
    elif word.kind == "task":
        yield from _tasks(plain[0])
    elif word.kind in ("model", "anything", "run"):
        yield from _models() if word.kind != "run" else ()
        yield from _runs() if word.kind != "model" else ()


def _is_value(words: list[str], number: int, command: Command) -> bool:
    return number > 0 and any(option.flag == words[number - 1] and option.value for option in command.options)


def _override_words(flow: str, before: tuple[str, ...], current: str) -> Iterator[str]:
    """Groups and keys up to the next dot; after the equals sign the possible values."""
    shape = catalog.FlowShape(flow, before)
    key, equals, _ = current.partition("=")
    for choice in catalog.used_choices(shape):
        if equals and choice.key == key.lstrip("+"):
            yield from (f"{key}={option}" for option in catalog.options(choice.group))
        elif not equals:
            yield f"{choice.key}="
    given = shape.document.get("roles")
    roles = list(given) if isinstance(given, Mapping) else []
    if roles and not equals:
        yield "+role@roles."
    if key.startswith("+role@roles.") and equals:
        yield from (f"{key}={option}" for option in catalog.options("role"))
    yield from _values(shape, key, roles) if equals else _keys(shape, current)


def _keys(shape: catalog.FlowShape, current: str) -> Iterator[str]:
    parents, dot, _ = current.rpartition(".")
    if not dot:
        for name, place in catalog.places(shape).items():
            yield f"{name}." if any(place.below()) else f"{name}="
        return
    place = _at(shape, parents)
    for below in place.below() if place else ():
        yield f"{below.name}{'.' if any(below.below()) else '='}"


def _values(shape: catalog.FlowShape, key: str, roles: list[str]) -> Iterator[str]:
    last = key.rpartition(".")[2]
    place = _at(shape, key)
    words = place.choices() if place else []
    if last in ROLE_WORDS:
        words = roles
    elif last in MODEL_WORDS and place is not None:
        words = [f"[{name}]" if last == "models" else name for name in _models()]
    yield from (f"{key}={word}" for word in words)


def _at(shape: catalog.FlowShape, key: str) -> "FieldPlace | None":
    first, *rest = key.split(".")
    place = catalog.places(shape).get(first)
    for part in rest:
        place = place.down(part) if place else None
    return place


def _root() -> Path | None:
    root = os.environ.get("ATELIER_ROOT") or ".atelier"
    return Path(absolute(root)) if is_path(root) else None


def _models() -> set[str]:
    """Names of finished models in a local store, unchecked: commands check them when they use them."""
    found = set()
    root = _root()
    for place in root.glob("model/*/record.json") if root else ():
        try:
            found.add(json.loads(place.read_bytes())["name"])
        except (OSError, ValueError, KeyError):
            continue
    return found


def _manifest(run: str) -> dict[str, Any]:
    """The manifest of the only run whose id begins with `run` in a local store, unchecked; else empty."""
    root = _root()
    found = list(root.glob(f"runs/{glob.escape(run)}*.json")) if root and run else []
    try:
        return json.loads(found[0].read_bytes()) if len(found) == 1 else {}
    except (OSError, ValueError):
        return {}


def _runs() -> set[str]:
    root = _root()
    return {place.stem for place in root.glob("runs/*.json")} if root else set()


def _tasks(run: str) -> set[str]:
    """Names of a run's tasks, unchecked as above."""
    rows = _manifest(run).get("tasks", ())
    return {str(row["name"]).removesuffix(f".{row.get('key')}") for row in rows}
