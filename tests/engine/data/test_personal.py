"""Addresses are masked as by datatrove's patterns, on drawn texts too, and in linear time."""

import random
import re
import time
from ipaddress import ip_address
from itertools import cycle

import pytest

from atelier.engine.data.personal import EMAILS, IPS, masked

PARTS = [
    *"@@..-!#'[]:_+/é٣ \n", "a", "bob", "..", "--", "x.org", "com",
    "8.8.8.8", "10.0.0.1", "192.168.1.256", "01.2.3.4", "255.255.255.255", "[8.8.4.4]",
]  # fmt: skip
NAME = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
BYTE = r"(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
EMAIL = re.compile(
    rf"\b{NAME}(?:\.{NAME})*@(?:(?:{LABEL}\.)+{LABEL}|\[(?:{BYTE}\.){{3}}(?:{BYTE}|[A-Za-z0-9-]*[A-Za-z0-9]:)])"
)


def by_patterns(text: str) -> str:
    """One after another, as RFC 5322's pattern finds them; takes quadratic time."""
    emails, ips = cycle(EMAILS), cycle(IPS)
    text = EMAIL.sub(lambda found: next(emails), text)
    return re.sub(
        rf"(?:{BYTE}\.){{3}}{BYTE}", lambda found: next(ips) if is_public(found[0]) else found[0], text
    )


def is_public(text: str) -> bool:
    try:
        return ip_address(text).is_global
    except ValueError:
        return False


def test_drawn_texts_are_masked_as_by_the_patterns() -> None:
    rng, changed = random.Random(3), 0
    for _ in range(3000):
        text = "".join(rng.choice(PARTS) for _ in range(rng.randint(1, 25)))
        assert masked(text)[0] == by_patterns(text), repr(text)
        changed += masked(text)[0] != text
    assert changed > 300


def test_counts_tell_the_kinds_and_private_addresses_stay() -> None:
    text = "Ask jane.doe@mail.example.de or 8.8.8.8, not 10.0.0.1, 127.0.0.1 or +49 30 1234567."
    expected = f"Ask {EMAILS[0]} or {IPS[0]}, not 10.0.0.1, 127.0.0.1 or +49 30 1234567."
    assert masked(text) == (expected, {"email": 1, "ip": 1})
    assert masked("nothing @ all 1.2.3") == ("nothing @ all 1.2.3", {"email": 0, "ip": 0})


@pytest.mark.parametrize("number", ["+49 30 1234567", "(212) 555-0199", "212-555-0199", "+1 (212) 555 0199"])
def test_telephone_numbers_are_masked_if_asked(number: str) -> None:
    assert masked(f"call {number}, now", phones=True) == (
        "call +1-555-0100, now",
        {"email": 0, "ip": 0, "phone": 1},
    )
    assert masked(f"call {number}, now")[0] == f"call {number}, now"


@pytest.mark.parametrize("text", ["2020-01-02", "1.2.3", "3.14159265", "12345678", "1,000,000", "a+12345678"])
def test_dates_and_numbers_are_no_telephone_numbers(text: str) -> None:
    assert masked(text, phones=True)[0] == text


@pytest.mark.parametrize(
    "part", ["a", "a!", "@", "a@", "a.", "a@" + "a-" * 50, "x" * 256 + "@", "1.1.1.1.", " +1 1"]
)
def test_hostile_texts_take_linear_time(part: str) -> None:
    begin = time.process_time()
    masked(part * (100_000 // len(part)), phones=True)
    assert time.process_time() - begin < 2  # linear: at most 0.2 s; quadratic: minutes
