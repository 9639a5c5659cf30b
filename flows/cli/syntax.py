"""The commands other than flows, and what each takes. flows/cli/commands/<name>.py has its `run(options)`."""

import argparse
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from atelier.engine.config.error import ConfigError, nearest


@dataclass(frozen=True)
class Option:
    """`--flag`, or `--flag VALUE` when `value` names one."""

    flag: str
    about: str
    value: str = ""
    many: bool = False


@dataclass(frozen=True)
class Word:
    """A positional word; `kind` selects its completion: flow, group, model, anything, override."""

    name: str
    about: str
    kind: str
    required: bool = False
    many: bool = False


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command: its name, help and example, its positional words and its options."""

    name: str
    about: str
    example: str
    words: tuple[Word, ...] = ()
    options: tuple[Option, ...] = ()

    @property
    def usage(self) -> str:
        dots = {True: " ...", False: ""}
        words = [(f"<{w.name}>" if w.required else f"[{w.name}]") + dots[w.many] for w in self.words]
        options = [f"[{o.flag}{' ' + o.value if o.value else ''}]" for o in self.options]
        return " ".join(["atelier", self.name, *words, *options])


JSON = Option("--json", "print JSON instead of a table")
TABLE = (
    Command(
        name="plan",
        about="show a flow's tasks before they run: reuse or run and why, memory, time",
        example="atelier plan titan experiment=laptop train.steps=400",
        words=(
            Word("flow", "the flow to plan", "flow", required=True),
            Word("overrides", "group=option and key=value, as for the flow", "override", many=True),
        ),
        options=(
            JSON,
            Option("--search", "also every layout of the pool's devices, the fastest first"),
            Option("--calibrate", "first measure this machine, in a minute or two; later plans use it too"),
            Option("--accept-code", "as if trainings of other code went on with the code as it is now"),
            Option("--fresh", "as if the unfinished training of this task began again", "TASK", many=True),
        ),
    ),
    Command(
        name="list",
        about="show what can be chosen: groups, a group's options, or flows",
        example="atelier list model",
        words=(Word("group", "a group, or flows; empty = all groups", "group"),),
        options=(JSON,),
    ),
    Command(
        name="runs",
        about="show what ran: when, how it ended, what it made and reused; with an id, that run's models,"
        " scores, report and pages",
        example="atelier runs 20261129-064500-1a2b3c",
        words=(Word("id", "a run's id, or its first or last characters", "anything"),),
        options=(JSON, Option("--all", "all runs, not the last 20")),
    ),
    Command(
        name="models",
        about="show the trained models of the store",
        example="atelier models --json",
        options=(JSON,),
    ),
    Command(
        name="lineage",
        about="show where something comes from and what came of it",
        example="atelier lineage student_a --html lineage.html",
        words=(Word("what", "an artifact's name or fingerprint, or a run", "anything", required=True),),
        options=(
            JSON,
            Option("--html", "also write the picture as one HTML file", "FILE"),
            Option("--weights", "of a model: whom its parameters come from"),
        ),
    ),
    Command(
        name="generate",
        about="let a trained model continue a text",
        example="atelier generate student_a --prompt 'def main(' --max-tokens 80",
        words=(Word("model", "a model's name, name@alias or fingerprint", "model", required=True),),
        options=(
            Option("--prompt", "the text to continue, or several; none = a new document", "TEXT", many=True),
            Option(
                "--chat",
                "a user's message to answer, or a JSON list of messages, by its chat template",
                "TEXT",
                many=True,
            ),
            Option("--max-tokens", "tokens drawn at most [128]", "N"),
            Option("--temperature", "divides the logits; 0 = always the most probable token [0.8]", "T"),
            Option("--memory", "weights in memory at once, the rest is read when it computes [all]", "2GB"),
            Option("--top-p", "keeps the fewest tokens that together reach this share [1.0]", "P"),
            Option("--seed", "of the draws; the same seed gives the same text [0]", "N"),
            Option("--genre", "soft prompts of: code, test, documentation, line or prose", "NAME"),
            Option("--topic", "what it is about, for models trained with objective control", "TEXT"),
            Option("--keywords", "words that should occur, with commas between", "WORDS"),
            Option("--sentiment", "positive, negative or neutral", "NAME"),
            Option("--length", "approximate number of tokens", "N"),
            Option(
                "--best-of", "draws so many, prints the one that the model itself finds most natural [1]", "N"
            ),
        ),
    ),
    Command(
        name="export",
        about="write a trained model as transformers reads it: weights, config, tokenizer, model card",
        example="atelier export student_a exported/student_a --dtype bfloat16",
        words=(
            Word("model", "a model's name, name@alias or fingerprint", "model", required=True),
            Word("url", "a new folder: a path or an fsspec URL", "file", required=True),
        ),
        options=(
            Option("--format", "hf = transformers' folder, the only one [hf]", "hf"),
            Option("--family", "the model_type that it is written as [the first that can say it]", "NAME"),
            Option("--dtype", "of the weights: float32, float16 or bfloat16 [as stored]", "TYPE"),
        ),
    ),
    Command(
        name="pick",
        about="name the best of a sweep or of some runs: its command line, and `<model>@best` from then on",
        example="atelier pick 3f2a --by student_a.eval_loss",
        words=(Word("what", "a sweep's id, or runs; four digits do", "anything", required=True, many=True),),
        options=(
            Option(
                "--by", "what they are compared by, <model>.<word of its summary> [the sweep's]", "METRIC"
            ),
            Option("--highest", "higher is better [as the sweep has it, else as the metric declares]"),
            Option("--lowest", "lower is better"),
            Option("--alias", "what the best one's model is called [best]", "NAME"),
            JSON,
        ),
    ),
    Command(
        name="up",
        about="start Prefect, MLflow and two workers on this machine, with every flow deployed",
        example="atelier up",
        options=(
            Option("--prefect-port", "of Prefect's pages [4200]", "N"),
            Option("--mlflow-port", "of MLflow's pages [5000]", "N"),
            Option("--host", "address to bind; only loopback is allowed [127.0.0.1]", "ADDRESS"),
        ),
    ),
    Command(name="down", about="end what `atelier up` started", example="atelier down"),
    Command(
        name="status",
        about="show what of the local stack runs, and which runs go on",
        example="atelier status",
        options=(
            JSON,
            Option("--env", "print the variables that clients need, for eval in a shell"),
            Option("--password", "print what Prefect's sign-in asks for: user:password"),
        ),
    ),
    Command(
        name="worker",
        about="serve a pool from this machine, until it is ended",
        example="atelier worker local",
        words=(Word("pool", "a pool of conf/pool, or light", "pool", required=True),),
        options=(
            Option("--name", "the worker's name [host-pool]", "NAME"),
            Option("--show", "print the job that its batch system would get, for a gang of two nodes"),
        ),
    ),
    Command(
        name="site",
        about="this site's key, the sites that it trusts, and the agent that carries messages between them",
        example="atelier site serve --mailbox /data/mail",
        words=(
            Word(
                "act",
                "create: a key; card: print what others accept; accept: trust another's card; peers: who is"
                " trusted; allow: what a site may do here; revoke: trust it no longer; rotate: a new key;"
                " serve: the agent; audit: what has crossed; orders: runs asked for; cancel: end one",
                "anything",
                required=True,
            ),
            Word(
                "what",
                "create: a name; accept: a file with a card; allow, revoke: a site; audit: another's log;"
                " cancel: an order",
                "anything",
            ),
        ),
        options=(
            Option("--keys", "the folder of its key [$ATELIER_SITE, or ~/.config/atelier/site]", "FOLDER"),
            Option(
                "--address",
                "create, rotate: host:port where others reach its agent, or a folder or the URL of a bucket;"
                " empty = it dials out",
                "ADDRESS",
            ),
            Option("--replace", "accept: another certificate of a site that is trusted"),
            Option(
                "--mailbox",
                "serve, orders, cancel: the folder of messages [mailbox, beside the key]",
                "FOLDER",
            ),
            Option(
                "--tasks",
                "allow: all tasks that run here for it; all, none",
                "TASK",
                many=True,
            ),
            Option(
                "--read",
                "allow: all folders and URLs that its runs may read here; none",
                "PLACE",
                many=True,
            ),
            Option(
                "--use",
                "allow: all artifacts here that its runs may use, by name; all, none",
                "NAME",
                many=True,
            ),
            Option(
                "--send",
                "allow: all kinds of artifacts whose files go to it; all, none",
                "KIND",
                many=True,
            ),
            Option("--pool", "allow: of conf/pool, where its tasks run [here]", "POOL"),
            Option("--tracker", "allow: of conf/tracker, for what it runs here [mlflow]", "TRACKER"),
            Option("--hourly", "allow: GB that cross to and from it in an hour, in all [any]", "GB"),
            Option("--with-parent", "serve: end, with all that it runs, when its standard input ends"),
            Option("--listen", "serve: where it listens [127.0.0.1 and the address's port]", "HOST:PORT"),
        ),
    ),
    Command(
        name="gc",
        about="remove what nothing needs any more, after asking",
        example="atelier gc --dry-run",
        options=(
            Option("--dry-run", "only say what would go, and why"),
            Option("--yes", "do not ask"),
            Option(
                "--damaged", "read every file; what differs from its digest goes, too, and can be made again"
            ),
            Option("--forget", "as if this run did not exist: what only it needs goes", "RUN", many=True),
        ),
    ),
)
HELP = ("-h", "--help")
DASHED = re.compile(r"-(?!\.?\d)[^\s]+$")  # no number, and no text of several words
NARGS = {(True, True): "+", (True, False): None, (False, True): "*", (False, False): "?"}
COMMANDS = {command.name: command for command in TABLE}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(self.prog, message, f"`{self.prog} --help` shows what it takes")


def asks_help(words: list[str], options: Iterable[Option] = ()) -> bool:
    """Whether -h or --help is among the words; what stands where an option has its value does not ask."""
    valued = {option.flag for option in options if option.value}
    before = ["", *words]
    return any(word in HELP and before[n] not in valued for n, word in enumerate(words))


def _values_of(command: Command, words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The values of options by flag, as they were given, and the other words: argparse guesses which word is
    a value. Raises ConfigError for a value that may be an option.
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
        way_out = f"as a value it is written {flag}={shlex.quote(value)}"
        raise ConfigError(place, f"needs a value, and {value} may be an option", way_out)
    return value


def parse_words(command: Command, words: list[str]) -> argparse.Namespace:
    """The command's words and options. Raises ConfigError, with the nearest option, for an unknown one."""
    values, rest = _values_of(command, words)
    parser = _Parser(prog=f"atelier {command.name}", add_help=False, allow_abbrev=False)
    for option in command.options:
        if not option.value:
            parser.add_argument(option.flag, action="store_true")
    for word in command.words:
        nargs = NARGS[word.required, word.many]
        default = [] if nargs == "*" else None  # else argparse calls it required
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
    what = "no option" if given.startswith("-") else "takes no word"
    there = f"there are: {', '.join(dict.fromkeys([*known, '--help']))}"
    return ConfigError(place, f"{what} {given!r}", f"did you mean {near}? {there}" if near else there)
