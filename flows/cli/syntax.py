"""The commands beside the flows: what each takes. flows/cli/commands/<name>.py has its `run(options)`; this table needs none of them."""

import argparse
from dataclasses import dataclass
from typing import Any, NoReturn

from engine.spec.error import ConfigError, nearest


@dataclass(frozen=True)
class Option:
    """`--flag`, or `--flag VALUE` when `value` names one."""

    flag: str
    about: str
    value: str = ""
    many: bool = False


@dataclass(frozen=True)
class Word:
    """A positional word; `kind` says what completes it: flow, group, model, anything, override."""

    name: str
    about: str
    kind: str
    required: bool = False
    many: bool = False


@dataclass(frozen=True)
class Command:
    name: str
    about: str
    example: str
    words: tuple[Word, ...] = ()
    options: tuple[Option, ...] = ()

    @property
    def usage(self) -> str:
        words = [
            f"<{w.name}>" if w.required else f"[{w.name}]" + (" ..." if w.many else "") for w in self.words
        ]
        options = [f"[{o.flag}{' ' + o.value if o.value else ''}]" for o in self.options]
        return " ".join(["atelier", self.name, *words, *options])


JSON = Option("--json", "print JSON instead of a table")

COMMANDS = {
    command.name: command
    for command in (
        Command(
            "plan", "show a flow's tasks before they run: reuse or run and why, memory, time", "atelier plan titan experiment=laptop train.steps=400",
            (Word("flow", "the flow to plan", "flow", required=True), Word("overrides", "group=option and key=value, as for the flow", "override", many=True)),
            (JSON,),
        ),
        Command(
            "list", "show what can be chosen: groups, a group's options, or flows", "atelier list model",
            (Word("group", "a group, or flows; empty = all groups", "group"),), (JSON,),
        ),
        Command("runs", "show what ran: when, how it ended, what it made and reused", "atelier runs", (), (JSON, Option("--all", "all runs, not the last 20"))),
        Command("models", "show the trained models of the store", "atelier models --json", (), (JSON,)),
        Command(
            "lineage", "show where something comes from and what came of it", "atelier lineage student_a --html lineage.html",
            (Word("what", "a model, any artifact's name or fingerprint, or a run's id", "anything", required=True),),
            (JSON, Option("--html", "also write the picture as one HTML file", "FILE")),
        ),
        Command(
            "generate", "let a trained model continue a text", "atelier generate student_a --prompt 'def main(' --max-tokens 80",
            (Word("model", "a model's name, name@alias or fingerprint", "model", required=True),),
            (
                Option("--prompt", "the text to continue; may be given several times; none = the beginning of a document", "TEXT", many=True),
                Option("--max-tokens", "tokens drawn at most [128]", "N"),
                Option("--temperature", "divides the logits; 0 = always the most probable token [0.8]", "T"),
                Option("--top-p", "keeps the fewest tokens that together reach this share [1.0]", "P"),
                Option("--seed", "of the draws; the same seed gives the same text [0]", "N"),
            ),
        ),
        Command(
            "gc", "remove what nothing needs any more, after asking", "atelier gc --dry-run", (),
            (
                Option("--dry-run", "only say what would go, and why"),
                Option("--yes", "do not ask"),
                Option("--damaged", "compare every file with its digest; damaged artifacts go too, so that the next run makes them again"),
                Option("--forget", "treat this run as if it had never been: what only it needs goes too", "RUN", many=True),
            ),
        ),
    )
}  # fmt: skip


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(self.prog, message, f"`{self.prog} --help` shows what it takes")


def parse_words(command: Command, words: list[str]) -> argparse.Namespace:
    """The command's words and options; what it does not know is a ConfigError with the nearest one."""
    parser = _Parser(prog=f"atelier {command.name}", add_help=False, allow_abbrev=False)
    for option in command.options:
        how: dict[str, Any] = (
            {"action": "append" if option.many else "store", "metavar": option.value}
            if option.value
            else {"action": "store_true"}
        )
        parser.add_argument(option.flag, **how)
    for word in command.words:
        parser.add_argument(word.name, nargs="*" if word.many else None if word.required else "?")
    found, strange = parser.parse_known_intermixed_args(words)
    if strange:
        raise unknown_option(
            f"atelier {command.name}", strange[0], [option.flag for option in command.options]
        )
    return found


def unknown_option(place: str, given: str, known: list[str]) -> ConfigError:
    near = nearest(given, known)
    what = "no option" if given.startswith("-") else "takes no word"
    return ConfigError(
        place,
        f"{what} {given!r}",
        (f"did you mean {near}? " if near else "")
        + f"there are: {', '.join(dict.fromkeys([*known, '--help']))}",
    )
