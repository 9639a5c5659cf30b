"""Documents for benchmarks/filters.py: of the standard library, and drawn junk of several kinds."""

import ast
import pydoc_data.topics
import random
import string
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

Named = tuple[str, str]  # kind, text
LONGEST = 60_000  # characters of a document
LONG_FILES = 300  # whole source files


def written(sources: Sequence[Path], rng: random.Random, number: int) -> list[Named]:
    """Help topics, docstrings, whole source files and pieces of them."""
    texts = [path.read_text(errors="replace") for path in sources]
    found: list[Named] = [("topic", text) for _, text in sorted(pydoc_data.topics.topics.items())]
    docs = sorted({doc for text in texts for doc in docstrings(text) if len(doc) >= 150})
    rng.shuffle(docs)
    found += [("source", text[:LONGEST]) for text in rng.sample(texts, min(len(texts), LONG_FILES // 4))]
    half = max(0, number - len(found)) // 2
    found += [("docstring", doc) for doc in docs[:half]]
    while len(found) < number:
        text = rng.choice(texts)
        begin = rng.randrange(len(text))
        found.append(("piece", text[begin : begin + int(2 ** rng.uniform(6, 13))]))
    return found[:number]


def docstrings(source: str) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]


def drawn(texts: Sequence[str], rng: random.Random, number: int) -> list[Named]:
    """Junk of every kind in turn; `texts`: to draw words and sentences from."""
    words = [word for text in texts[::7] for word in text.split()]
    kinds = [*JUNK.items()]
    return [(name, make(words, rng)) for name, make in (kinds[n % len(kinds)] for n in range(number))]


def _sentence(words: Sequence[str], rng: random.Random, least: int = 4, most: int = 20) -> str:
    some = [rng.choice(words).strip(string.punctuation) or "a" for _ in range(rng.randint(least, most))]
    some.insert(rng.randrange(len(some)), rng.choice(["the", "of", "and", "to", "that"]))
    return " ".join(some).capitalize() + rng.choice([".", ".", "?", "!", '."', "..."])


def _sentences(words: Sequence[str], rng: random.Random) -> list[str]:
    return [_sentence(words, rng) for _ in range(rng.randint(3, 40))]


def _prose(words: Sequence[str], rng: random.Random) -> str:
    return "".join(one + rng.choice([" ", " ", "\n", "\n\n"]) for one in _sentences(words, rng))


def _mixed(words: Sequence[str], rng: random.Random, of: Callable[[], str]) -> str:
    """Sentences, some of them replaced by another kind of line."""
    share = rng.random()
    return "\n".join(of() if rng.random() < share else one for one in _sentences(words, rng))


def _repeated_lines(words: Sequence[str], rng: random.Random) -> str:
    some = [_sentence(words, rng) for _ in range(rng.randint(1, 6))]
    return _mixed(words, rng, lambda: rng.choice(some))


def _repeated_paragraphs(words: Sequence[str], rng: random.Random) -> str:
    some = [_sentence(words, rng, 10, 40) for _ in range(rng.randint(1, 8))]
    ends = ["\n\n", "\n\n\n", "\n"]
    return "".join(rng.choice(some) + rng.choice(ends) for _ in range(rng.randint(2, 12)))


def _repeated_grams(words: Sequence[str], rng: random.Random) -> str:
    gram = " ".join(rng.choice(words) for _ in range(rng.randint(1, 12)))
    return " ".join(gram if rng.random() < 0.12 else rng.choice(words) for _ in range(rng.randint(20, 600)))


def _few_letters(words: Sequence[str], rng: random.Random) -> str:
    letters = rng.choice(["ab", "01", "a.", "a -", "xyz,", "1 2"])
    return "".join(rng.choice(letters + " ") for _ in range(rng.randint(1, 3000)))


def _table(words: Sequence[str], rng: random.Random) -> str:
    row = rng.randint(1, 9)
    lines = (" ".join(str(rng.randrange(200)) for _ in range(row)) for _ in range(rng.randint(1, 80)))
    return rng.choice(["\n", "\n\n", "; "]).join(lines)


def _symbols(words: Sequence[str], rng: random.Random) -> str:
    marks = "#…•-–“”«»€™☃🎈_=+*/\\|~^<>()[]{}" + string.punctuation + " \n\t"
    kind = rng.choice([marks, "#", "…", marks + string.ascii_letters * 3])
    return _mixed(words, rng, lambda: "".join(rng.choice(kind) for _ in range(rng.randint(1, 40))))


def _bullets(words: Sequence[str], rng: random.Random) -> str:
    mark = rng.choice(["- ", "• ", "  -", "* "])
    return _mixed(words, rng, lambda: mark + _sentence(words, rng, 2, 6))


def _ellipses(words: Sequence[str], rng: random.Random) -> str:
    return _mixed(words, rng, lambda: _sentence(words, rng)[:-1] + rng.choice(["...", "…", " ... "]))


def _short_lines(words: Sequence[str], rng: random.Random) -> str:
    return _mixed(words, rng, lambda: rng.choice(words)[: rng.randint(1, 32)])


def _notices(words: Sequence[str], rng: random.Random) -> str:
    lines = [
        "Please enable JavaScript in your browser to read this page.",
        "This site uses cookies for the best experience.",
        "Read our privacy policy and the terms of use.",
        "Lorem ipsum dolor sit amet, consectetur adipiscing elit.",
        "lorem IPSUM",
        "function f(a) { return a; }",
        "It is said [1] that this is so [citation needed].[12]",
        "A word of too many letters: " + "x" * rng.choice([999, 1000, 1001, 1002]) + ".",
        "Two words.",
    ]
    return _mixed(words, rng, lambda: rng.choice(rng.sample(lines, 3) + lines[:3]))


def _scripts(words: Sequence[str], rng: random.Random) -> str:
    begin, size, end = rng.choice(
        [(0x4E00, 2000, "。"), (0x3041, 80, "。"), (0x0E01, 58, " "), (0x0430, 32, ". "), (0x0905, 50, "। ")]
    )
    return "".join(
        end if rng.random() < 0.05 else " " if rng.random() < 0.1 else chr(begin + rng.randrange(size))
        for _ in range(rng.randint(20, 1500))
    )


def _odd_ends(words: Sequence[str], rng: random.Random) -> str:
    ends = [
        "\r\n",
        "\r",
        "\x0b",
        "\x0c",
        "\x1c",
        "\x85",
        "\u2028",
        "\u2029",
        "\n",
        " \n ",
        "\n\t\n",
        "\u200b",
    ]
    kept = rng.sample(ends, 3)
    return "".join(one + rng.choice(kept) for one in _sentences(words, rng))


def _nearly_nothing(words: Sequence[str], rng: random.Random) -> str:
    return "".join(rng.choice(" \n\t.a-\u3000") for _ in range(rng.randint(0, 12)))


def _few_words(words: Sequence[str], rng: random.Random) -> str:
    """About as many words as the least that Gopher keeps, of a few lengths."""
    few = [rng.choice(words) for _ in range(rng.randint(4, 40))]
    return " ".join(rng.choice(few) for _ in range(rng.randint(40, 120))) + "."


JUNK: dict[str, Callable[[Sequence[str], random.Random], str]] = {
    "prose": _prose,
    "repeated lines": _repeated_lines,
    "repeated paragraphs": _repeated_paragraphs,
    "repeated n-grams": _repeated_grams,
    "few letters": _few_letters,
    "table": _table,
    "symbols": _symbols,
    "bullets": _bullets,
    "ellipses": _ellipses,
    "short lines": _short_lines,
    "notices": _notices,
    "scripts": _scripts,
    "odd line ends": _odd_ends,
    "nearly nothing": _nearly_nothing,
    "few words": _few_words,
}
