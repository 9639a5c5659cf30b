"""Refuse documents of digits, punctuation and other signs, as ROOTS does (2303.03915, section 3.3).

Gopher's rules count # and ellipses per word; this one counts characters, of any sign.
"""

from typing import Literal

from pydantic import Field

from atelier.engine.config.filters import FilterSpec


class Symbols(FilterSpec):
    kind: Literal["symbols"] = "symbols"
    max_symbols: float = Field(
        default=0.4,
        ge=0,
        le=1,
        description="share of characters that are no letters and no marks on them, blanks included; 0 = off",
    )
