"""Mask e-mail addresses, public IP addresses and, if asked, telephone numbers of a text.

The patterns and replacements are those of datatrove's PIIFormatter (0.10.1), in linear time: each @ is looked
at once, with at most LOCAL characters before it. Left as they are: IPv6 addresses, addresses with characters
beyond ASCII, names, and anything that only its meaning tells to be personal.
"""

import re
from collections.abc import Iterator
from ipaddress import ip_address
from itertools import cycle
from typing import NamedTuple

EMAIL, IP, PHONE = "email", "ip", "phone"
EMAILS = ("email@example.com", "firstname.lastname@example.org")
# addresses that answered no request when datatrove's authors drew them
IPS = (
    "22.214.171.124", "126.96.36.199", "188.8.131.52", "184.108.40.206", "220.127.116.11", "18.104.22.168",
)  # fmt: skip
PHONES = ("+1-555-0100",)  # reserved for fiction
LOCAL = 256  # most characters before the @; standards allow 64
DOMAIN = 256  # most characters after it

_NAME = "A-Za-z0-9!#$%&'*+/=?^_`{|}~-"
_NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+/=?^_`{|}~-."
_BEGIN = re.compile(rf"\b[{_NAME}]")
_LABEL = "[A-Za-z0-9]++(?:-++[A-Za-z0-9]++)*+"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
_DOMAIN = re.compile(
    rf"{_LABEL}(?:\.{_LABEL})++|\[(?:{_BYTE}\.){{3}}(?:{_BYTE}|(?:-*+[A-Za-z0-9]++)*+:)]", re.ASCII
)
_IP = re.compile(rf"(?:{_BYTE}\.){{3}}{_BYTE}", re.ASCII)
# with + and the country, or with the area in brackets or before a hyphen or dot as in North America
_PHONE = re.compile(
    r"(?<![\w.+-])(?:\+[1-9]\d{0,2}(?:[ .-]?\(?\d{1,4}\)?){2,5}|(?:\(\d{3}\) ?|\d{3}[.-])\d{3}[.-]\d{4})"
    r"(?![\w-])",
    re.ASCII,
)
PHONE_DIGITS = range(8, 16)  # E.164: 15 at most


class Found(NamedTuple):
    """A place in a text that is replaced."""

    begin: int
    end: int


def masked(text: str, *, phones: bool = False) -> tuple[str, dict[str, int]]:
    """The text with replacements, and how many of each kind: email, ip and, with `phones`, phone."""
    text, emails = _replaced(text, _emails(text), EMAILS)
    text, ips = _replaced(text, _ips(text), IPS)
    counts = {EMAIL: emails, IP: ips}
    if phones:
        text, counts[PHONE] = _replaced(text, _phones(text), PHONES)
    return text, counts


def _replaced(text: str, places: Iterator[Found], replacements: tuple[str, ...]) -> tuple[str, int]:
    parts: list[str] = []
    end = count = 0
    for place, replacement in zip(places, cycle(replacements), strict=False):
        parts += [text[end : place.begin], replacement]
        end, count = place.end, count + 1
    return "".join([*parts, text[end:]]) if count else text, count


def _emails(text: str) -> Iterator[Found]:
    free = 0
    at = text.find("@")
    while at >= 0:
        begin = _local_begin(text, max(free, at - LOCAL), at)
        domain = _DOMAIN.match(text, at + 1, at + 1 + DOMAIN) if begin < at else None
        if domain:
            free = domain.end()
            yield Found(begin, free)
        at = text.find("@", max(at + 1, free))


def _local_begin(text: str, least: int, at: int) -> int:
    """Where the name before an @ begins, not before `least`; the place of the @ if there is no name."""
    before = text[least:at]
    begin = least + len(before.rstrip(_NAMES))  # names hold no two dots in a row, and none at their ends
    begin = max(begin, text.rfind("..", begin, at) + 2) if ".." in before else begin
    if text.endswith(".", begin, at):
        return at
    found = _BEGIN.search(text, begin, at)
    return found.start() if found else at


def _ips(text: str) -> Iterator[Found]:
    return (Found(*found.span()) for found in _IP.finditer(text) if _is_public(found[0]))


def _is_public(address: str) -> bool:
    try:
        return ip_address(address).is_global
    except ValueError:  # zeros before a digit
        return False


def _phones(text: str) -> Iterator[Found]:
    for found in _PHONE.finditer(text):
        if sum(map(str.isdigit, found[0])) in PHONE_DIGITS:
            yield Found(*found.span())
