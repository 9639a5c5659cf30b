"""The task `render`: write conversations as token files, one per row, with marks on the assistant's text.

Files per split: `<split>.bin` and `<split>.ends.npy` as in `encode`, and `<split>.learned.bin` (uint8, 1 =
token is learned). `chat_template.jinja`: the template, if it is not the model's own. `pairs.jsonl`, if asked
for: a PairLine for each prompt with its answer.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TypedDict, cast

import numpy as np

from atelier.engine.config.base import Json, canonical
from atelier.engine.config.chats import Chats
from atelier.engine.config.data import is_stdlib, share_note
from atelier.engine.config.error import DataError
from atelier.engine.config.generated import generated, is_generated
from atelier.engine.data import languages
from atelier.engine.data.chat_template import ChatMessage
from atelier.engine.data.chat_tokens import ASSISTANT, ChatRow, ChatTokens
from atelier.engine.data.copies import normalised, without_bom
from atelier.engine.data.corpus import HELD_OUT, TRAIN, split_of
from atelier.engine.data.row import Column, fields_of, kind_of, text_problem
from atelier.engine.data.source import Files, docstrings
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.data.tokens import token_dtype
from atelier.engine.data.vocabulary import CHAT_TEMPLATE, Vocabulary
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.process import Progress
from atelier.engine.io.source_files import total_bytes

ROLES = ("system", "user", ASSISTANT)
LEARNED, PAIRS = "learned.bin", "pairs.jsonl"
TOGETHER, TOGETHER_CHARACTERS = 64, 1 << 18  # maximum of conversations rendered at once


class PairLine(TypedDict):
    """A prompt and its answer. `asked`: the text that a model reads before the answer."""

    split: str
    group: str
    prompt: str
    answer: str
    asked: str


def render(
    chats: Chats,
    sequence: int,
    files: Files,
    model: ArtifactInput,
    output: ArtifactOutput,
    scratch: Path,
    progress: Progress,
    place: str = "chats",
    length: str = "train.sequence",
    pairs: bool = False,
) -> dict[str, Json]:
    """Write the token files of both splits; rows have at most `sequence` + 1 tokens. Returns the summary.
    `place`, `length`: configuration keys of `chats` and `sequence`, for errors; `pairs`: whether to write
    pairs.jsonl.

    A longer row ends with the last answer that fits; rows without one are left out. Both are counted, as are
    copies, which may differ in blanks and line ends. Raises DataError if nothing is left.
    """
    progress.start(total_bytes(files), "bytes")
    scratch.mkdir(parents=True, exist_ok=True)
    now = datetime.fromisoformat(chats.date) if chats.date else None
    tokens = ChatTokens(model, scratch, chats.template, now, place)
    counts: Counter[str] = Counter()
    dtype, longest = token_dtype(tokens.vocabulary.size), 0
    groups, lengths, asked = list[str](), list[int](), list[PairLine]()
    with (
        SourceReader(on_error=chats.on_error, place=place, progress=progress) as reader,
        open(scratch / "ids", "wb") as ids,
        open(scratch / LEARNED, "wb") as learned,
    ):
        for group, messages, rows in _conversations(chats, files, reader, tokens, counts):
            for row in rows:
                longest = max(longest, row.learned[0][1] - 1)
                if (fitting := _fitting(row, sequence + 1, counts)) is None:
                    continue
                groups.append(group)
                lengths.append(len(fitting.ids))
                ids.write(np.array(fitting.ids, dtype=dtype).tobytes())
                learned.write(_mask(fitting).tobytes())
                if pairs and len(messages) == 2:
                    asked.append(_asked(group, messages, fitting, tokens.vocabulary))
                elif pairs:
                    counts["without_pair"] += 1
    if counts["cut"] or counts["too_long"]:
        progress.warn(
            f"{counts['cut']} rows are longer than {length}={sequence} tokens and end with an earlier"
            f" answer, {counts['too_long']} are left out"
        )
    if counts["without_pair"]:
        progress.warn(
            f"{counts['without_pair']} rows have more messages than a prompt and its answer: they are"
            " learned, but not asked"
        )
    if not groups:
        source = f"{place}.source: "
        if counts["too_long"]:
            raise DataError(
                f"{source}no answer in {chats.source} ends within {length}={sequence} tokens;"
                f" {length}={longest} has room for the first answer of each row"
            )
        raise DataError(
            f"{source}{chats.source} has no conversation ({reader.skipped} broken rows left out); give"
            " another source"
        )
    splits = split_of(groups, chats.held_out, f"{place}.source")
    summary = _split(scratch, output, [splits[group] for group in groups], lengths, dtype)
    own, rest = (int(summary[f"{name}_tokens"]) for name in (HELD_OUT, TRAIN))
    if said := share_note(own, own + rest, chats.held_out, f"{place}.held_out"):
        progress.warn(said)
    if pairs:
        for each in asked:
            each["split"] = splits[each["group"]]
        lines = [canonical(cast(Json, each)) + b"\n" for each in asked]
        output.add_bytes(PAIRS, b"".join(lines))
    if not tokens.is_own:
        output.add_bytes(CHAT_TEMPLATE, tokens.template.encode())
    return {
        "conversations": counts["conversations"],
        **summary,
        "cut": counts["cut"],
        "too_long": counts["too_long"],
        "each_answer": counts["each_answer"],
        "special_text": counts["special_text"],
        "duplicates": counts["duplicates"],
        "skipped": reader.skipped,
        "template": tokens.name,
        "dtype": "uint16" if dtype == "<u2" else "uint32",
        "vocab": tokens.vocabulary.size,
    }


def _conversations(
    chats: Chats, files: Files, reader: SourceReader, tokens: ChatTokens, counts: Counter[str]
) -> Iterator[tuple[str, list[ChatMessage], list[ChatRow]]]:
    """The group of each conversation, its messages, and its rows."""
    for some in _together(_distinct(chats, files, reader, counts)):
        tokens.prepare([each.messages for each in some])
        for where, digest, messages, group in some:
            try:
                rows = tokens.rows(messages)
            except DataError as error:
                reader.broken(where, str(error))
                continue
            counts["conversations"] += 1
            counts["each_answer"] += len(rows) > 1
            counts["special_text"] += tokens.holds_special(messages)
            # all answers of one prompt are in one split
            yield group or (_digest(messages[:1]) if chats.has_pairs else digest), messages, rows


class _Conversation(NamedTuple):
    """`group`: conversations that are held out together, '' = those of one prompt."""

    where: str
    digest: str
    messages: list[ChatMessage]
    group: str


def _distinct(
    chats: Chats, files: Files, reader: SourceReader, counts: Counter[str]
) -> Iterator[_Conversation]:
    """Each conversation, without exact copies."""
    seen: set[str] = set()
    for where, messages, group in _messages(chats, files, reader):
        if isinstance(messages, str):
            reader.broken(where, messages)
            continue
        digest = _digest(messages)
        if digest in seen:
            counts["duplicates"] += 1
            continue
        seen.add(digest)
        yield _Conversation(where, digest, messages, group)


def _together(found: Iterator[_Conversation]) -> Iterator[list[_Conversation]]:
    """Groups of conversations that are rendered at once."""
    some, size = [], 0
    for each in found:
        some.append(each)
        size += sum(len(message["content"]) for message in each.messages)
        if len(some) == TOGETHER or size > TOGETHER_CHARACTERS:
            yield some
            some, size = [], 0
    if some:
        yield some


def _digest(messages: list[ChatMessage]) -> str:
    texts = [[one["role"], normalised(one["content"])] for one in messages]
    return hashlib.sha256(canonical(texts)).hexdigest()


def _messages(
    chats: Chats, files: Files, reader: SourceReader
) -> Iterator[tuple[str, list[ChatMessage] | str, str]]:
    """The place of each row, its messages or the reason why it has none, and its group, '' = its own."""
    if is_generated(chats.source):
        for group, sentence, translation in languages.translations(generated(chats.source, 2)):
            yield sentence, _pair(sentence, translation), group
        return
    if is_stdlib(chats.source):
        for name, found in docstrings(files, reader):
            prompt = " ".join(found.text.partition("\n\n")[0].split())
            if found.signature and prompt:
                yield name, _pair(prompt, found.signature), ""
        return
    pair = (chats.prompt, chats.answer)
    columns = [Column(names=(each,)) for each in pair]
    if not chats.has_pairs:
        columns = [Column(names=(chats.field,), is_list=True)]
    for path, expected in files:
        for _, where, row in reader.rows(path, expected, columns):
            if not chats.has_pairs:
                yield where, messages_of(row, chats.field), ""
                continue
            problems = [text_problem(row, each) for each in pair]
            problems += [
                f"field '{each}' is empty" for each in pair if not normalised(str(row.get(each, "")))
            ]
            problem = next((each for each in problems if each), "")
            yield where, problem or _pair(str(row[chats.prompt]), str(row[chats.answer])), ""


def _asked(group: str, messages: list[ChatMessage], row: ChatRow, vocabulary: Vocabulary) -> PairLine:
    prompt, answer = (each["content"] for each in messages)
    before = row.ids[len(vocabulary.before) : row.learned[0][0]]
    return {
        "split": "",
        "group": group,
        "prompt": prompt,
        "answer": answer,
        "asked": vocabulary.decode(before),
    }


def _pair(prompt: str, answer: str) -> list[ChatMessage]:
    pair = (("user", prompt), (ASSISTANT, answer))
    return [{"role": role, "content": without_bom(text)} for role, text in pair]


def messages_of(row: dict[str, Json], field: str) -> list[ChatMessage] | str:
    """The messages of a row, or the reason why it has none."""
    if field not in row:
        return f"field '{field}' is missing; fields there: {fields_of(row)}"
    found = checked(row[field], f"field '{field}'", f"message {{}} of '{field}'")
    if isinstance(found, list) and all(message["role"] != ASSISTANT for message in found):
        return f"'{field}' has no message of the assistant"
    return found


def checked(given: Json, whole: str, each: str) -> list[ChatMessage] | str:
    """The given value as messages, or the reason why it is not. `whole`, `each`: names of the value and of a
    message (by number) in the reason.
    """
    if not isinstance(given, list):
        return f"{whole} is {kind_of(given)}, not a list of messages"
    found: list[ChatMessage] = []
    for number, message in enumerate(given, start=1):
        place = each.format(number)
        if not isinstance(message, dict):
            return f"{place} is {kind_of(message)}, not an object with role and content"
        there: dict[str, Json] = {key: value for key, value in message.items() if value is not None}
        if more := sorted(there.keys() - {"role", "content"}):
            return f"{place} has '{more[0]}'; only role and content are supported"
        role = there.get("role")
        if role not in ROLES:
            return f"{place} has the role {role!r}; known: {', '.join(ROLES)}"
        if problem := text_problem(there, "content"):
            return f"{place}: {problem}"
        if not (content := without_bom(str(there["content"]))).strip():
            return f"{place} is empty"
        found.append({"role": str(role), "content": content})
    return found


def _fitting(row: ChatRow, most: int, counts: Counter[str]) -> ChatRow | None:
    """The row up to its last answer that ends within `most` ids; None if there is none."""
    kept = tuple(span for span in row.learned if span[1] <= most)
    if not kept:
        counts["too_long"] += 1
        return None
    counts["cut"] += len(kept) < len(row.learned)
    return ChatRow(row.ids[: kept[-1][1]], kept)


def _mask(row: ChatRow) -> np.ndarray:
    mask_T = np.zeros(len(row.ids), dtype=np.uint8)
    for begin, end in row.learned:
        mask_T[begin:end] = 1
    return mask_T


def _split(
    scratch: Path, output: ArtifactOutput, splits: list[str], lengths: list[int], dtype: str
) -> dict[str, int]:
    """Write the files of both splits; returns their sizes."""
    counts: Counter[str] = Counter()
    names = (TRAIN, HELD_OUT)
    with ExitStack() as stack:
        ids, learned = (stack.enter_context(open(scratch / name, "rb")) for name in ("ids", LEARNED))
        paths = {(name, end): scratch / f"{name}.{end}" for name in names for end in ("bin", LEARNED)}
        targets = {key: stack.enter_context(open(path, "wb")) for key, path in paths.items()}
        for split, length in zip(splits, lengths, strict=True):
            mask = learned.read(length)
            targets[split, "bin"].write(ids.read(length * np.dtype(dtype).itemsize))
            targets[split, LEARNED].write(mask)
            counts[f"{split}_rows"] += 1
            counts[f"{split}_tokens"] += length
            counts[f"{split}_learned"] += sum(mask)
    for path in paths.values():
        output.add(path.name, path)
        path.unlink()
    for name in names:
        ends = np.cumsum(
            [n for split, n in zip(splits, lengths, strict=True) if split == name], dtype=np.int64
        )
        np.save(scratch / "ends.npy", ends.astype("<i8"), allow_pickle=False)
        output.add(f"{name}.ends.npy", scratch / "ends.npy")
    for name in ("ids", LEARNED, "ends.npy"):
        (scratch / name).unlink()
    return dict(counts)
