"""Drawn corpora: unique texts, exact copies, near-copies, junk and empty texts, in files of several kinds."""

import gzip
import json
import random
from pathlib import Path

_WORDS = """harbour ship captain sails morning wind storm cargo island light tide anchor rope map star
night crew deck letter market road village river bridge stone garden window candle winter
summer bread salt copper silver song story teacher child question answer paper ink lamp door
key roof tower bell church field horse"""
WORDS = _WORDS.split()


def sentence(draw: random.Random) -> str:
    words = [
        draw.choice(WORDS) + draw.choice(("", "", "s", f"{draw.randrange(50)}"))
        for _ in range(draw.randint(5, 14))
    ]
    return " ".join(words).capitalize() + "."


def text(draw: random.Random, sentences: int = 0) -> str:
    """Paragraphs of drawn sentences; equal only by chance."""
    count = sentences or draw.randint(4, 24)
    return " ".join(sentence(draw) for _ in range(count)) + "\n\n" + sentence(draw)


def nearly(draw: random.Random, original: str) -> str:
    """The text with one word changed."""
    words = original.split(" ")
    words[draw.randrange(len(words))] = "changed"
    return " ".join(words)


def write_sources(folder: Path, seed: int, documents: int = 120) -> dict[str, Path]:
    """Two sources, `main` of .jsonl files, some packed, and `other` of .txt files."""
    draw = random.Random(seed)
    texts: list[str] = []
    while len(texts) < documents:
        kind = draw.random()
        if texts and kind < 0.08:
            texts.append(draw.choice(texts))
        elif texts and kind < 0.16:
            texts.append(nearly(draw, draw.choice(texts)))
        elif kind < 0.22:
            texts.append("spam " * draw.randint(60, 90))
        elif kind < 0.25:
            texts.append(draw.choice(("", "  \n ", "\ufeff")))
        else:
            texts.append(text(draw))
    draw.shuffle(texts)
    half = documents * 2 // 3
    main, other = folder / "main", folder / "other"
    main.mkdir(parents=True)
    other.mkdir()
    for number in range(9):
        rows = "".join(json.dumps({"text": each}) + "\n" for each in texts[number:half:9])
        if number % 3:
            (main / f"{number}.jsonl").write_text(rows)
        else:
            (main / f"{number}.jsonl.gz").write_bytes(gzip.compress(rows.encode(), mtime=0))
    for number, each in enumerate(texts[half:]):
        (other / f"{number:03d}.txt").write_text(each)
    return {"main": main, "other": other}
