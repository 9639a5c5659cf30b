"""The task `label`: make examples, each a prompt and its completion: one of a few options, or free text.

From the standard library: docstrings, and the package or kind of thing that they document. So that no prompt
contains its answer, every whole word equal to one of the packages' names, in any case, is masked in all
prompts alike (masking only a prompt's own name would reveal it). A text that occurs several times is kept
once, so no test example is a training example; blanks and line ends do not count.

The words of a function's name are free text. Docstrings that hold a name of several words are left out, and
those of special methods, whose names say little.

From translation catalogues: messages, and the catalogue that they are from; messages of several catalogues
are left out. A translation is on the side of its original.

From a generated language: pairs of sentences, and whether the second follows from the first. Pairs with the
same verb and object are on one side, in all languages.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypedDict, cast

from atelier.engine.config.base import Json
from atelier.engine.config.data import Labels, is_stdlib, share_note
from atelier.engine.config.error import DataError
from atelier.engine.config.generated import generated
from atelier.engine.data import languages
from atelier.engine.data.catalogue import ORIGINAL
from atelier.engine.data.copies import joined, normalised, text_group, without_bom
from atelier.engine.data.corpus import HELD_OUT, TRAIN, LabelledLine, fraction, split_of
from atelier.engine.data.row import Column, fields_of, text_problem
from atelier.engine.data.source import (
    Files,
    decode_source,
    docstrings,
    stdlib_name,
)
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.data.standard_library import Docstring
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.process import Progress
from atelier.engine.io.source_files import CATALOGUE, TOPICS, total_bytes

PACKAGES = 10
MASK, ASKED = "***", "\n\nLabel:"
MAX_OPTIONS = 64
KEYWORDS = ("if", "return", "for", "def", "raise", "try", "with", "except", "else", "elif")
STATEMENT = re.compile(rf"^([ ]+)({'|'.join(KEYWORDS)})\b", re.MULTILINE)
EACH = 24
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")  # of a name in any case


@dataclass(frozen=True)
class TunedOn:
    """Examples that models are tuned on: options, the split of each group, and training texts."""

    options: tuple[str, ...]
    splits: dict[str, str]
    prompts: frozenset[str]


class PlainExample(TypedDict):
    """A labelled example before its options are known."""

    prompt: str
    completion: str
    group: str


def label(
    labels: Labels,
    files: Files,
    output: ArtifactOutput,
    progress: Progress,
    *,
    place: str,
    tuned: TunedOn | None = None,
) -> dict[str, Json]:
    """Write train.jsonl and test.jsonl, one LabelledLine per line. Returns the summary. `place`:
    configuration key of `labels`, for errors. `tuned`: models are tuned on those examples and only scored on
    these, which get the same options and contain none of their training examples, not in another language
    either.

    Raises DataError for too few or too many distinct completions, for completions not in `tuned`, and if
    nothing is left for the test.
    """
    progress.start(total_bytes(files), "bytes")
    counts: Counter[str] = Counter()
    with SourceReader(on_error=labels.on_error, place=place, progress=progress) as reader:
        if is_stdlib(labels.source):
            examples, splits = _from_docstrings(labels, files, reader, f"{place}.source")
        else:
            examples = _from_lines(labels, files, reader, counts) if files else _from_pairs(labels)
            _check_told_apart(examples, labels, counts, place, progress)
            groups = joined((normalised(e["prompt"]), e["group"]) for e in examples)
            sides = split_of(groups.values(), labels.held_out, f"{place}.source")
            splits = {group: sides[name] for group, name in groups.items()}
    options = [] if labels.is_free else sorted({e["completion"] for e in examples})
    if labels.is_free:
        _check_same_kind(tuned, place)
    elif tuned is None:
        _check_options(options, labels.source, place)
    else:
        _check_known(options, tuned.options, labels.source, place)
        options = [*tuned.options]
    splits |= tuned.splits if tuned is not None else {}
    test = [e for e in examples if splits[e["group"]] == HELD_OUT]
    if tuned is not None:
        test = [e for e in test if normalised(e["prompt"]) not in tuned.prompts]
        if not test:
            raise DataError(
                f"{place}.source: all {len(examples)} examples of {labels.source}, or their originals, are"
                " training examples of the tuned models; give others"
            )
    train = [e for e in examples if splits[e["group"]] == TRAIN]
    said = share_note(len(test), len(test) + len(train), labels.held_out, f"{place}.held_out")
    if said and tuned is None:
        progress.warn(said)
    for name, part in (("train", train), ("test", test)):
        output.add_bytes(f"{name}.jsonl", "".join(_line(e, options) for e in part).encode())
    most = Counter(e["completion"] for e in test).most_common(1)[0][1]
    return {
        "train": len(train),
        "test": len(test),
        "options": options,
        "majority": round(most / len(test), 6),
        "skipped": reader.skipped,
        **counts,
    }


def tuned_on(labels: ArtifactInput, scratch: Path) -> TunedOn:
    """Prompts, options and groups of the examples that models are tuned on."""
    parts = {
        split: labels.lines(f"{name}.jsonl", scratch)
        for split, name in ((TRAIN, "train"), (HELD_OUT, "test"))
    }
    lines = cast(dict[str, list[LabelledLine]], parts)
    return TunedOn(
        options=tuple(labels.record.summary["options"]),
        splits={line["group"]: split for split, each in lines.items() for line in each},
        prompts=frozenset(normalised(line["prompt"]) for line in lines[TRAIN]),
    )


def _line(example: PlainExample, options: list[str]) -> str:
    line: LabelledLine = {**example, "options": options}
    return json.dumps(line, sort_keys=True, ensure_ascii=False) + "\n"


def _check_options(options: list[str], source: str, place: str) -> None:
    found = f"{place}.source: {source} has {len(options)} distinct completions"
    if len(options) < 2:
        raise DataError(f"{found}; at least two are needed: give examples of another class")
    if len(options) > MAX_OPTIONS:
        shown = ", ".join(repr(option[:30]) for option in options[:3])
        raise DataError(
            f"{found} ({shown}, ...), but at most {MAX_OPTIONS} can be scored as options; name the class"
            f" field with {place}.completion=<field>"
        )


def _check_same_kind(tuned: TunedOn | None, place: str) -> None:
    """Raise DataError if models are tuned on options and asked for free text."""
    if tuned is not None and tuned.options:
        raise DataError(
            f"{place}.free: true, but the models are tuned on examples with options; give free=false"
        )


def _check_known(options: list[str], known: Sequence[str], source: str, place: str) -> None:
    if not known:
        raise DataError(
            f"{place}.free: false, but the models are tuned on free completions; give {place}.free=true"
        )
    strange = [option for option in options if option not in known]
    if strange:
        raise DataError(
            f"{place}.source: {source} has the completion {strange[0][:30]!r} ({len(strange)} such), which"
            " is not an option of the tuned models; use one of these, or leave it out:"
            f" {', '.join(repr(each[:30]) for each in known)}"
        )


def _from_docstrings(
    labels: Labels, files: Files, reader: SourceReader, place: str
) -> tuple[list[PlainExample], dict[str, str]]:
    if labels.task == "keyword":
        examples = list(_statements(files, reader, labels.most_chars))
        return examples, split_of((e["group"] for e in examples), labels.held_out, place)
    if labels.task == "name":
        answers = list(_names(files, reader))
        splits = split_of((name for _, name, _ in answers), labels.held_out, place)
        return _examples(answers, "Name", labels.most_chars), splits
    found = [(one.text, name, one.kind) for name, one in _docstrings(files, reader)]
    if labels.task == "kind":
        answers = [(text, name, kind) for text, name, kind in found]
        splits = split_of((name for _, name, _ in found), labels.held_out, place)
        return _examples(answers, "Kind", labels.most_chars), splits
    packages = _largest_packages(found, place)
    mask = re.compile(rf"\b({'|'.join(map(re.escape, packages))})\b", re.IGNORECASE)
    answers = [
        (mask.sub(MASK, text), name, package_of(name))
        for text, name, _ in found
        if package_of(name) in packages
    ]
    splits: dict[str, str] = {}
    for package in packages:  # each separately, so that every package is in both splits
        splits |= split_of((name for _, name, p in answers if p == package), labels.held_out, place)
    return _examples(answers, "Package", labels.most_chars), splits


def _statements(files: Files, reader: SourceReader, max_chars: int) -> Iterator[PlainExample]:
    """Code before a statement, and the keyword that the statement begins with; at most `EACH` per file,
    chosen by hash.
    """
    seen: set[str] = set()
    for path, expected in files:
        name = stdlib_name(path)
        if name == TOPICS:
            continue
        source = decode_source(reader.whole(path, expected), path)
        places = sorted(STATEMENT.finditer(source), key=lambda m: fraction(f"{name}:{m.start()}"))[:EACH]
        for place in sorted(places, key=lambda match: match.start()):
            before = source[: place.start(2) - 1]
            prompt = before[-max_chars:]
            if len(before) > max_chars:
                prompt = prompt.partition("\n")[2]  # keep whole lines
            if (key := normalised(prompt)) and key not in seen:
                seen.add(key)
                yield {"prompt": prompt, "completion": f" {place[2]}", "group": name}


def _docstrings(files: Files, reader: SourceReader) -> Iterator[tuple[str, Docstring]]:
    """Docstrings and their files, ordered by hash, so that no package is always the first."""
    yield from docstrings(sorted(files, key=lambda entry: fraction(stdlib_name(entry[0]))), reader)


def _names(files: Files, reader: SourceReader) -> Iterator[tuple[str, str, str]]:
    """(docstring, file, words of the name) of functions and methods whose docstring lacks one of them."""
    for name, found in _docstrings(files, reader):
        words = WORDS.findall(found.name)
        is_told = {word.lower() for word in words} <= {word.lower() for word in WORDS.findall(found.text)}
        if words and found.signature and not is_told and not found.name.startswith("__"):
            yield found.text, name, " ".join(words).lower()


def package_of(name: str) -> str:
    """The top-level package or module of a standard library file: asyncio/tasks.py -> asyncio."""
    return PurePosixPath(name).parts[0].removesuffix(".py")


def _largest_packages(found: list[tuple[str, str, str]], place: str) -> list[str]:
    """The packages with most docstrings, of those with at least two files: one file cannot be in both
    splits.
    """
    num_docstrings = Counter(package_of(name) for _, name, _ in found)
    num_files = Counter(package_of(name) for name in {name for _, name, _ in found})
    order = sorted((-count, package) for package, count in num_docstrings.items() if num_files[package] > 1)
    if len(order) < 2:
        raise DataError(
            f"{place}: this interpreter's standard library has no two packages with docstrings;"
            f" give {place}=<jsonl>"
        )
    return sorted(package for _, package in order[:PACKAGES])


def _examples(answers: list[tuple[str, str, str]], question: str, max_chars: int) -> list[PlainExample]:
    """Prompts cut to `max_chars`; of equal ones the first is kept."""
    result: dict[str, PlainExample] = {}
    for text, name, answer in answers:
        prompt = f"{text[:max_chars].strip()}\n\n{question}:"
        one: PlainExample = {"prompt": prompt, "completion": f" {answer}", "group": name}
        result.setdefault(normalised(prompt), one)
    return sorted(result.values(), key=lambda e: (e["group"], e["prompt"]))


def _from_lines(
    labels: Labels, files: Files, reader: SourceReader, counts: Counter[str]
) -> list[PlainExample]:
    """Examples of rows, without copies (compared before prompts are cut) and without messages that several
    catalogues share. The group is the row's own `group`, or its text.
    """
    found: dict[tuple[str, str], PlainExample] = {}
    catalogues: Counter[str] = Counter()  # number of catalogues per message
    columns = (
        Column(names=(labels.prompt, "text")),
        Column(names=(labels.completion, "label"), may_be_number=True),
        Column(names=("group",), is_needed=False),
    )
    counts.update(dict.fromkeys(("cut", "duplicates", "in_several"), 0))
    for path, expected in files:
        is_catalogue = path.endswith(CATALOGUE)
        read = _from_message if is_catalogue else _from_line
        for _, where, row in reader.rows(path, expected, columns):
            example = read(row, labels, reader, where)
            if example is None:
                continue
            whole, key = example["prompt"], (normalised(example["prompt"]), example["completion"])
            if key in found:
                counts["duplicates"] += 1
                continue
            found[key] = _cut(example, labels.most_chars, is_open=labels.prompt in row and not is_catalogue)
            counts["cut"] += found[key]["prompt"] != whole
            catalogues[key[0]] += is_catalogue
    kept = [example for (text, _), example in found.items() if catalogues[text] < 2]
    counts["in_several"] = len(found) - len(kept)
    return kept


def _from_pairs(labels: Labels) -> list[PlainExample]:
    found: dict[str, PlainExample] = {}
    for group, first, second, answer in languages.pairs(generated(labels.source, 1)):
        prompt = f"{first}\n{second}{ASKED}"
        found.setdefault(prompt, {"prompt": prompt, "completion": f" {answer}", "group": group})
    return [*found.values()]


def _cut(example: PlainExample, most: int, *, is_open: bool) -> PlainExample:
    """Cut a long prompt: at the beginning if its end leads to the completion, at the end if "Label:"
    follows.
    """
    prompt = example["prompt"]
    prompt = prompt[-most:] if is_open else f"{prompt.removesuffix(ASKED)[:most].strip()}{ASKED}"
    return {**example, "prompt": prompt, "group": example["group"] or text_group(prompt)}


def _check_told_apart(
    examples: Sequence[PlainExample], labels: Labels, counts: Counter[str], place: str, progress: Progress
) -> None:
    """Report cut prompts and left-out copies. Raise DataError if every cut prompt equals a cut prompt with
    another answer.
    """
    if counts["duplicates"]:
        progress.warn(f"{place}: {counts['duplicates']} rows are copies of others and left out")
    if counts["in_several"]:
        progress.warn(f"{place}: {counts['in_several']} messages of several catalogues are left out")
    if not counts["cut"]:
        return
    cut = f"{place}.max_chars={labels.max_chars}: {counts['cut']} of {len(examples)} prompts are cut"
    way_out = f"{place}.max_chars=auto cuts none"
    answers: dict[str, set[str]] = {}
    for each in examples:
        answers.setdefault(each["prompt"], set()).add(each["completion"])
    if all(len(each) > 1 for each in answers.values()):
        raise DataError(f"{cut}, and each cut prompt equals one with another answer; {way_out}")
    progress.warn(f"{cut}; {way_out}")


def _from_line(
    line: dict[str, Json], labels: Labels, reader: SourceReader, where: str
) -> PlainExample | None:
    """Prompt and completion as given, or `text` and `label` joined by "Label:"; None for a skipped broken
    line.
    """
    asked = labels.prompt if labels.prompt in line else "text"
    answered = labels.completion if labels.completion in line else "label"
    if asked not in line or answered not in line:
        missing = labels.prompt if asked not in line else labels.completion
        other = "text" if asked not in line else "label"
        reader.broken(where, f"field '{missing}' (or '{other}') is missing; fields there: {fields_of(line)}")
        return None
    if isinstance(line[answered], bool | int):
        line = line | {answered: json.dumps(line[answered])}
    problem = text_problem(line, asked) or text_problem(line, answered)
    if not problem:
        empty = next((name for name in (asked, answered) if not normalised(str(line[name]))), "")
        problem = f"field '{empty}' is empty" if empty else ""
    if not problem and "group" in line:
        problem = text_problem(line, "group")
    if problem:
        reader.broken(where, problem)
        return None
    prompt, completion = (without_bom(str(line[each])) for each in (asked, answered))
    group = str(line.get("group", ""))
    if asked != labels.prompt:
        prompt = f"{prompt.strip()}{ASKED}"
    if answered != labels.completion and not completion[0].isspace():
        completion = f" {completion}"
    return {"prompt": prompt, "completion": completion, "group": group}


def _from_message(
    message: dict[str, Json], labels: Labels, reader: SourceReader, where: str
) -> PlainExample | None:
    """A message and its question, joined by "Label:", in the group of its original; None without
    translation.
    """
    for field in (labels.prompt, labels.completion):
        if field not in message:
            reader.broken(where, f"field '{field}' is missing; fields there: {fields_of(message)}")
            return None
    text, answer = str(message[labels.prompt]), str(message[labels.completion])
    if not text.strip() or not answer.strip():
        return None
    prompt = f"{text.strip()}{ASKED}"
    return {"prompt": prompt, "completion": f" {answer}", "group": normalised(str(message[ORIGINAL]))}
