"""Files of documents: encodings, byte order marks, line ends, blanks, sizes, and JSON that is not text.

Each becomes a corpus, a tokenizer and tokens, with no text on both sides of the split, every letter kept and
every document counted; or is refused by one line that names the file.
"""

import gzip
import hashlib
import json
import random
from contextlib import AbstractContextManager
from pathlib import Path
from unicodedata import normalize
from unittest.mock import patch

from atelier.engine.config.data import Source
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.data import source
from tests.engine.data.conftest import Workshop
from tests.foreign.search import Case

COUNT = 10
WORDS = [
    "buoy",
    "pier",
    "Grüße",
    "漁港の灯台",
    "🛟",
    "int x;",
    "<|end|>",
    "naïve",
    "e\u0301",
    "x²",
    "1,5",
    "\\n",
]
SUFFIXES = (".txt", ".txt", ".txt.gz", ".jsonl", ".jsonl", ".jsonl.gz", ".csv")
CODINGS = ("utf-8",) * 8 + ("utf-8-sig", "utf-16", "utf-16-le", "latin-1", "cp1252")
SAME = ("", "", "crlf", "cr", "end", "lead", "bom", "tabs", "nbsp", "double", "nfd")
ODD = (
    "empty",
    "bom",
    "blank",
    "nul",
    "surrogate",
    "spaces",
    "word",
    "accents",
    "repeated",
    "book",
    "null",
    "number",
)
BOM = "\ufeff"


def draw(rng: random.Random) -> Case:
    texts = [_text(rng, n) for n in range(rng.randint(1, 8))]
    files = []
    for n in range(rng.randint(1, 6)):
        suffix = rng.choice(SUFFIXES)
        rows = [_row(rng, texts) for _ in range(1 if suffix.startswith(".txt") else rng.randint(0, 9))]
        files.append({"name": f"f{n}{suffix}", "coding": rng.choice(CODINGS), "rows": rows})
    return {
        "texts": texts,
        "files": files,
        "ends": rng.choice(("\n", "\n", "\r\n")),
        "held_out": rng.choice((0.01, 0.05, 0.1, 0.3, 0.45)),
        "on_error": rng.choice(("stop", "skip")),
    }


def _text(rng: random.Random, number: int) -> str:
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 6))]
    return f"text {number}\n" + "\n".join(lines)


def _row(rng: random.Random, texts: list[str]) -> dict[str, object]:
    """A row, as what it is made of: a book of 100,000 letters is a seed in the case."""
    if rng.random() < 0.25:
        return {"odd": rng.choice(ODD), "size": rng.choice((10, 3000, 60_000)), "seed": rng.randrange(3)}
    return {"text": rng.randrange(len(texts)), "as": rng.choice(SAME)}


def _made(row: dict, texts: list[str]) -> object:
    """The value of a row's field."""
    if "odd" in row:
        return _odd(row["odd"], row["size"], row["seed"])
    text = texts[row["text"]]
    return {
        "": text,
        "crlf": text.replace("\n", "\r\n"),
        "cr": text.replace("\n", "\r"),
        "end": f"{text} \n",
        "lead": f"\n\t{text}",
        "bom": f"{BOM}{text}",
        "tabs": text.replace(" ", "\t"),
        "nbsp": text.replace(" ", "\u00a0"),
        "double": text.replace(" ", "  ").replace("\n", "\n\n"),
        "nfd": normalize("NFD", text),
    }[row["as"]]


def _odd(what: str, size: int, seed: int) -> object:
    rng = random.Random(f"{what}/{seed}")
    if what == "book":
        return f"book {seed}\n" + "".join(rng.choice((*WORDS, "\n", "\n\n")) + " " for _ in range(size // 5))
    return {
        "empty": "",
        "bom": BOM * (1 + seed),
        "blank": " \r\n\t" * (1 + seed),
        "nul": f"nul {seed} \0\x01\x7f\x1c\u2028 end" * (1 + size // 100),
        "surrogate": f"half {seed} \ud800",
        "spaces": f"x {seed}" + " " * size + "x",
        "word": f"w{seed}" + "".join(rng.choices("abcdefgh", k=size)),
        "accents": f"a{seed}" + "\u0315\u0300" * size,
        "repeated": f"The same sentence {seed} again. " * (1 + size // 25),
        "null": None,
        "number": size,
    }[what]


def check(case: Case, folder: Path) -> str:
    (texts := folder / "texts").mkdir()
    expected, is_bad = _written(case, texts)
    workshop = Workshop(folder)
    try:
        asked = Source(source=str(texts), on_error=case["on_error"])
        corpus = workshop.curate(asked, case["held_out"])
        tokens = workshop.tokens(corpus, workshop.tokenizer(corpus))
    except (DataError, ConfigError) as error:
        said = str(error)
        assert len(said) < 1000 and len(said.splitlines()) == 1 and said.encode(), said
        assert str(texts) in said or said.startswith("data.source: "), said
        is_small = len({_told(text) for text in expected}) < 2 and max(map(len, expected), default=0) < 5000
        is_stopped = is_bad and case["on_error"] == "stop"
        assert is_stopped or is_small, f"refused without a reason: {said}"
        return "refused"
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}") from error
    _check_corpus(workshop.lines(corpus, "documents.jsonl"), expected)
    summary, of_tokens = corpus.record.summary, tokens.record.summary
    distinct = [*{_told(text): text for text in reversed(expected)}.values()]
    assert summary["duplicates"] == len(expected) - len(distinct)
    assert summary["bytes"] == sum(len(text.encode()) for text in distinct)
    assert of_tokens["train_bytes"] + of_tokens["held_out_bytes"] == summary["bytes"]
    assert is_bad <= (summary["skipped"] > 0), "something was left out without a word"
    return "works"


def _written(case: Case, folder: Path) -> tuple[list[str], bool]:
    """Write the files; the texts that they hold, in order, and whether a row or file is none."""
    found, is_bad = list[str](), False
    for each in case["files"]:
        values = [_made(row, case["texts"]) for row in each["rows"]]
        data, readable = _bytes(each, values, case["ends"])
        (folder / each["name"]).write_bytes(gzip.compress(data) if each["name"].endswith(".gz") else data)
        if each["name"].endswith(".csv"):
            continue  # no file of text: in a folder it is one of others
        is_bad |= not readable
        for value in values:
            is_text = isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)
            if not (is_text and readable):
                is_bad = True
            elif _told(str(value)):
                found.append(str(value).lstrip(BOM))
    return found, is_bad


def _bytes(each: dict, values: list[object], ends: str) -> tuple[bytes, bool]:
    """The content of a file, and whether it is UTF-8 as a file of its kind has to be."""
    coding = each["coding"]
    if ".txt" in each["name"]:
        text = str(values[0])
        data = text.encode(coding, errors="replace" if coding[0] in "lc" else "surrogatepass")
        try:
            is_same = data.decode("utf-8-sig").lstrip(BOM) == text.lstrip(BOM)
        except UnicodeDecodeError:
            is_same = False
        values[0] = text if is_same else _read(data)
        return data, values[0] is not None
    rows = [
        json.dumps({"text": value}, ensure_ascii=coding[0] != "u" or "\ud800" in str(value))
        for value in values
    ]
    lines = "".join(row + ends for row in rows)
    if coding in ("utf-16", "utf-16-le"):
        return (data := lines.encode(coding)), not data
    return lines.encode(coding), True


def _read(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _check_corpus(lines: list[dict], expected: list[str]) -> None:
    sides: dict[str, set[str]] = {}
    groups: dict[str, set[str]] = {}
    whole: dict[str, str] = {}
    for line in lines:
        sides.setdefault(_told(line["text"]), set()).add(line["split"])
        groups.setdefault(line["group"], set()).add(line["split"])
        name = line["id"].partition("#")[0]
        whole[name] = whole.get(name, "") + line["text"]
    assert all(len(found) == 1 for found in sides.values()), "a text is on both sides of the split"
    assert all(len(found) == 1 for found in groups.values()), "a group is on both sides of the split"
    assert {line["split"] for line in lines} == {"train", "held_out"}
    first = [*{_told(text): text for text in reversed(expected)}.values()]
    assert sorted(whole.values()) == sorted(first), "a document is not what its file holds"


def _told(text: str) -> str:
    words = text.replace(BOM, "").split()
    return " ".join(normalize("NFC", word) if len(word) <= 1000 else word for word in words)


def broken() -> AbstractContextManager[object]:
    """Copies are told by their bytes again."""
    return patch.object(source, "text_group", lambda text: hashlib.sha256(text.encode()).hexdigest())
