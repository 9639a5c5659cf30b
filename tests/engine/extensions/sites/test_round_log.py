"""The round log: changes are noticed."""

import hashlib
import json
import random
from pathlib import Path

import pytest

from atelier.engine.config.error import AtelierError
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.round_log import RoundLog, read_log


def written(path: Path, rounds: int = 8) -> RoundLog:
    log = RoundLog()
    for number in range(1, rounds + 1):
        codecs = {"a": Codec(), "b": Codec(kind="int4" if number % 2 else "bf16")}
        log.add(
            number, codecs, {site: hashlib.sha256(f"{site}{number}".encode()).hexdigest() for site in codecs}
        )
    path.write_bytes(log.text)
    return log


def test_what_is_written_is_read(tmp_path: Path) -> None:
    log = written(tmp_path / "rounds.jsonl")
    found = read_log(str(tmp_path / "rounds.jsonl"))
    assert [*found] == list(range(1, 9)) and found[2].codecs["b"] == Codec(kind="bf16")
    assert log.digest == hashlib.sha256(log.text.splitlines()[-1]).hexdigest()
    assert RoundLog(dict(log.lines)).text == log.text


@pytest.mark.parametrize("seed", range(40))
def test_a_line_that_is_changed_or_missing_is_noticed(tmp_path: Path, seed: int) -> None:
    """Any but the last, whose digest the model's record has."""
    draw, path = random.Random(seed), tmp_path / "rounds.jsonl"
    log = written(path)
    lines = log.text.decode().splitlines()
    place = draw.randrange(len(lines) - 1)
    change = draw.choice(("codec", "drop", "swap", "twice", "cut", "field"))
    if change == "codec":
        lines[place] = lines[place].replace("bf16", "int8").replace("int4", "int8")
    elif change == "drop":
        del lines[place]
    elif change == "swap":
        lines[place], lines[place + 1] = lines[place + 1], lines[place]
    elif change == "twice":
        lines.insert(place, lines[place])
    elif change == "cut":
        lines[place] = lines[place][: draw.randrange(1, len(lines[place]))]
    else:
        lines[place] = json.dumps(json.loads(lines[place]) | {"run": "x"})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(AtelierError) as refused:
        read_log(str(path))
    assert "rounds.jsonl" in str(refused.value) and "\n" not in str(refused.value)


def test_an_empty_log_is_none(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_bytes(b"")
    with pytest.raises(AtelierError, match="has no rounds"):
        read_log(str(tmp_path / "rounds.jsonl"))
