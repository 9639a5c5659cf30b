"""Scripts without blanks between words."""

import re

SPACELESS = (  # code points from, to: scripts without spaces between words
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19FF),  # Tai Le, New Tai Lue, Khmer symbols
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x2E80, 0x2FDF),  # radicals
    (0x3005, 0x3007),  # ideographic marks and zero
    (0x3021, 0x312F),  # Hangzhou numerals, Hiragana, Katakana, Bopomofo
    (0x31A0, 0x31BF),  # Bopomofo
    (0x31F0, 0x31FF),  # Katakana
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xA9E0, 0xA9FF),  # Myanmar
    (0xAA60, 0xAADF),  # Myanmar, Tai Viet
    (0xF900, 0xFAFF),  # Han
    (0xFF66, 0xFF9F),  # Katakana of half width
    (0x16FE0, 0x18DFF),  # Tangut, Khitan
    (0x1AFF0, 0x1B2FF),  # kana, Nushu
    (0x20000, 0x3FFFF),  # Han
)
_UNSEPARATED = re.compile("[" + "".join(f"{chr(begin)}-{chr(end)}" for begin, end in SPACELESS) + "]")


def is_unseparated(sign: str) -> bool:
    """Whether a character is a letter or digit of a script that does not separate words by blanks. Korean,
    Ethiopic and Vietnamese do, and letters of full width are as others.
    """
    return sign.isalnum() and _UNSEPARATED.match(sign) is not None
