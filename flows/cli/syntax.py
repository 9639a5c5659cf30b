"""Parse the arguments of a command; flows/cli/commands/<name>.py runs it with `run(options)`."""

import argparse
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import NoReturn

from atelier.engine.config.error import ConfigError, nearest
from atelier.flows.cli.command_list import TABLE
from atelier.flows.cli.run_commands import Command, Option

HELP = ("-h", "--help")
DASHED = re.compile(r"-(?!\.?\d)[^\s]+$")  # neither a number nor a text of several words
NARGS = {(True, True): "+", (True, False): None, (False, True): "*", (False, False): "?"}
COMMANDS = {command.name: command for command in TABLE}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(self.prog, message, f"`{self.prog} --help` shows what it takes")


def asks_help(words: list[str], options: Iterable[Option] = ()) -> bool:
    """Whether -h or --help is among the words, other than as the value of an option."""
    valued = {option.flag for option in options if option.value}
    before = ["", *words]
    return any(word in HELP and before[n] not in valued for n, word in enumerate(words))


def _values_of(command: Command, words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The given values of options by flag, and the other words; argparse alone would guess which word is a
    value. Raises ConfigError for a value that may be an option.
    """
    names = {option.flag: option.value for option in command.options if option.value}
    values: dict[str, list[str]] = {flag: [] for flag in names}
    rest, left = list[str](), iter(words)
    for word in left:
        flag, is_given, value = word.partition("=")
        if word == "--":
            rest += [word, *left]
        elif flag not in names:
            rest.append(word)
        else:
            values[flag].append(
                value if is_given else _next(left, f"atelier {command.name} {flag}", names[flag])
            )
    return values, rest


def _next(words: Iterator[str], place: str, name: str) -> str:
    flag, value = place.rpartition(" ")[2], next(words, None)
    if value is None:
        raise ConfigError(place, "needs a value", f"{flag}={name}")
    if DASHED.match(value):
        way_out = f"write {flag}={shlex.quote(value)}"
        raise ConfigError(place, f"needs a value, but {value} looks like an option", way_out)
    return value


def parse_words(command: Command, words: list[str]) -> argparse.Namespace:
    """Parse arguments and options. Raises ConfigError for unknown ones, naming the nearest."""
    values, rest = _values_of(command, words)
    parser = _Parser(prog=f"atelier {command.name}", add_help=False, allow_abbrev=False)
    for option in command.options:
        if not option.value:
            parser.add_argument(option.flag, action="store_true")
    for word in command.words:
        nargs = NARGS[word.required, word.many]
        default = [] if nargs == "*" else None  # without a default argparse requires it
        parser.add_argument(word.name, nargs=nargs, default=default)
    found, strange = parser.parse_known_intermixed_args(rest)
    if strange:
        raise unknown_option(parser.prog, strange[0], [option.flag for option in command.options])
    for option in command.options:
        if option.value:
            given = values[option.flag]
            last = given[-1] if given else None
            setattr(found, option.flag[2:].replace("-", "_"), (given or None) if option.many else last)
    return found


def unknown_option(place: str, given: str, known: list[str]) -> ConfigError:
    near = nearest(given, known)
    what = "no option" if given.startswith("-") else "takes no argument"
    there = f"there are: {', '.join(dict.fromkeys([*known, '--help']))}"
    return ConfigError(place, f"{what} {given!r}", f"did you mean {near}? {there}" if near else there)
