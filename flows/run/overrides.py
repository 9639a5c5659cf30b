"""Check that no override calls a resolver, names a class, sets Hydra's keys or leaves conf/."""

import re
from collections.abc import Iterable
from reprlib import Repr
from typing import TYPE_CHECKING

from atelier.engine.config.error import UNSEEN, ConfigError, check_utf8, nearest
from atelier.flows.run import catalog
from atelier.flows.run.catalog import options, parameters

if TYPE_CHECKING:
    from atelier.engine.config.base import Json

SPECIAL = re.compile(r"(?<![\w-])_(?!here_|global_|group_|self_)[a-z]+_(?![\w-])")
HYDRA = re.compile(r"^[\s+~/]*hydra(?=[\s./@=:]|$)|^[^=@]*@[^=]*(?<![\w-])hydra(?![\w-])")
REFERENCE = re.compile(r"\$\{ *[\w.\[\]-]+ *\}")
NUMBER = re.compile(r"[0-9_]{1000}")  # Python refuses to parse many more digits
LIST_MARKS = re.compile(r"[\[\],\s\"']+")
GROUP = re.compile(r"^[+~]{0,2}/?(?P<group>[\w-]+(/[\w-]+)*)/?(@[^=]*)?=(?P<value>.*)$", re.DOTALL)
FORM_KEY = re.compile(r"^(\+{1,2}|~)?(?P<key>[A-Za-z_][A-Za-z0-9_./-]{0,200}(@[A-Za-z0-9_.]{1,200})?)(?==|$)")
ALONE = re.compile(r"[A-Za-z0-9./][A-Za-z0-9._/@-]*")  # a model or file, without a key
# endings of evaluation sets (engine/io/evaluation_files.py)
SETS = (".yaml", ".yml", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".csv", ".parquet")
NOT_IN_FORMS = re.compile(r"^[+~]*pose\.allow\b|^[+~]*pose=.*allow")  # runs code of files
MOST_NESTED = 20
MOST_WORDS = 200  # of a form; on a command line only the shell sets a limit
MOST_LETTERS = 10_000  # of one override
MOST_IN_ALL = 100_000
SHOWN = 80


def check_overrides(overrides: Iterable[str], *, is_sweep: bool = False, from_form: bool = False) -> None:
    """Refuse resolvers (`${oc.env:HOME}`; references such as `${train.seed}` are allowed), `_target_` and
    similar keys, options that are not files of their group, and deep or long values.

    Hydra's own settings are allowed in sweeps on a command line only. Values from a form are checked more
    strictly; errors show at most 80 harmless characters of them. Raises ConfigError.
    """
    texts = list(overrides)
    if from_form:
        _check_size(texts)
    for text in texts:
        check_utf8(text, "overrides", "the word")
        place = _check_letters(text) if from_form else text if len(text) <= 2 * SHOWN else shown(text)
        _check_meaning(text, place)
        if HYDRA.match(text) and (from_form or not is_sweep):
            way_out = "settings of Hydra cannot be given in a form" if from_form else "give it with -m"
            raise ConfigError(place, "Hydra's own settings matter only in a sweep", way_out)
        _check_option(text, place, from_form=from_form)
        if from_form:
            _check_readable(text, place)
            if NOT_IN_FORMS.search(text):
                raise ConfigError(place, "lets files run their own code", "give it on a command line")


def calls_resolver(text: str) -> bool:
    """True if `${...}` contains anything but a reference to a key, even behind Hydra's escapes."""
    for left in (text, text.replace("\\", "")):
        inner = ""
        while inner != left:
            inner, left = left, REFERENCE.sub("x", left)
        if "${" in left:
            return True
    return False


def shown(value: "Json") -> str:
    """`value` for an error: at most 80 characters, none with an effect on a terminal or a page."""
    short = Repr()
    short.maxstring = short.maxother = short.maxlong = SHOWN
    short.maxlevel = 3
    try:
        text = repr(value[: SHOWN + 1]) if isinstance(value, str) else short.repr(value)
    except ValueError:  # a number with more digits than Python writes
        text = "a number too long to write"
    for letter, harmless in (("&", r"\x26"), ("<", r"\x3c"), (">", r"\x3e")):
        text = text.replace(letter, harmless)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _check_size(texts: list[str]) -> None:
    way_out = "a form is for a few changes; put more into a file conf/experiment/<name>.yaml"
    if len(texts) > MOST_WORDS:
        raise ConfigError("overrides", f"are {len(texts)}, more than {MOST_WORDS}", way_out)
    for text in texts:
        if len(text) > MOST_LETTERS:
            problem = f"one has {len(text)} characters, more than {MOST_LETTERS} (given: {shown(text)})"
            raise ConfigError("overrides", problem, way_out)
    if sum(map(len, texts)) > MOST_IN_ALL:
        raise ConfigError("overrides", f"have more than {MOST_IN_ALL} characters in all", way_out)


def _check_letters(text: str) -> str:
    """The key of an override. Only visible characters and a well-formed key are allowed."""
    if UNSEEN.search(text):
        raise ConfigError(
            "overrides", f"control characters are not allowed (given: {shown(text)})", "write it on one line"
        )
    match = FORM_KEY.match(text)
    if match is None or not ("=" in text or text.startswith("~")):
        way_out = "write key=value, group=option, +group@roles.name=option or ~key"
        raise ConfigError("overrides", f"this is not an override (given: {shown(text)})", way_out)
    return match["key"]


def _check_meaning(text: str, place: str) -> None:
    if _depth(text) > MOST_NESTED:
        raise ConfigError(place, f"brackets are nested deeper than {MOST_NESTED}", "give one value a key")
    if calls_resolver(text):
        raise ConfigError(
            place,
            "calls a resolver",
            "only references to other keys are allowed in ${...}, such as ${train.seed}",
        )
    special = SPECIAL.search(text)
    if special:
        raise ConfigError(place, f"{special[0][:SHOWN]} is not allowed", "kind=<name> chooses what is built")
    if NUMBER.search(text):
        raise ConfigError(place, "a number has 1000 digits or more", "give a shorter one")


def _depth(text: str) -> int:
    depth = deepest = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}" and depth > 0)
        deepest = max(deepest, depth)
    return deepest


def _check_option(text: str, place: str, *, from_form: bool) -> None:
    """Check that every option, also in a list, is a file in the group's folder. `compose` checks a single
    option on a command line, because it distinguishes it from a sweep.
    """
    match = GROUP.match(text)
    if match is None or not catalog.is_group(match["group"]):
        return
    found, value = options(match["group"]), match["value"]
    is_list = value.lstrip().startswith("[")
    names = [name for name in LIST_MARKS.split(value) if name] if is_list else [value] if from_form else []
    for name in names:
        if name not in found:
            near = nearest(name[:SHOWN], found)
            raise ConfigError(
                place,
                f"no option {shown(name)} in group {match['group']}",
                (f"did you mean {near}? " if near else "") + f"there are: {', '.join(found)}",
            )


def _check_readable(text: str, place: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser  # late: 0.15 s, only for forms
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException:
        value = text.partition("=")[2] or text
        raise ConfigError(
            place, f"cannot be read (given: {shown(value)})", "quote special characters twice: 'key=\"a,b\"'"
        ) from None
    if override.is_sweep_override():
        raise ConfigError(
            place, "several values are a sweep, and a form is one run", "`atelier <flow> -m` runs sweeps"
        )


ACCEPT, FRESH = "--accept-code", "--fresh"


def with_keys(flow: str, words: list[str]) -> list[str]:
    """The words of a flow that takes models: names of models that stand alone become `models=[...]`, files of
    evaluation sets `evals=[...]`. Raises ConfigError for a key that is given in both ways.
    """
    alone = [word for word in words if ALONE.fullmatch(word)]
    keys = parameters(flow).model_fields if alone else {}
    if "models" not in keys:
        return words
    files = [word for word in alone if word.endswith(SETS)] if "evals" in keys else []
    rest = [word for word in words if word not in alone]
    for key, found in (("evals", files), ("models", [word for word in alone if word not in files])):
        if found and any(word.startswith(f"{key}=") for word in rest):
            raise ConfigError(key, f"given twice: {', '.join(found)} and {key}=", "give all of them once")
        rest = [f"{key}=[{','.join(found)}]", *rest] if found else rest
    return rest


def resuming(words: list[str]) -> list[str]:
    """The words, with `--accept-code` and `--fresh <task>` replaced by the overrides that they stand for.
    Raises ConfigError for --fresh without a task.
    """
    rest, tasks, is_accepted = [], [], False
    given = iter(words)
    for word in given:
        if word == ACCEPT:
            is_accepted = True
        elif word == FRESH or word.startswith(f"{FRESH}="):
            task = word.partition("=")[2] or next(given, "")
            if not task or "=" in task or task.startswith("-"):
                problem = f"needs the name of a task (given: {task or 'nothing'})"
                raise ConfigError(FRESH, problem, f"{FRESH} train; `atelier plan` shows the names")
            tasks.append(task)
        else:
            rest.append(word)
    return [*rest, *resume_overrides(is_accepted, tasks)]


def resume_overrides(is_accepted: bool, fresh: list[str]) -> list[str]:
    """Overrides for trainings that other code started: accept the present code, or restart."""
    accepted = ["resume.accept_code=true"] if is_accepted else []
    return accepted + ([f"resume.fresh=[{','.join(fresh)}]"] if fresh else [])


MULTIRUN, DRY = ("-m", "--multirun"), "--dry-run"
