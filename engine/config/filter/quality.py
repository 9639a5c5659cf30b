"""Refuse documents by the score of a quality classifier, with the random rule of GPT-3 (2005.14165, appendix
A) and the alpha of MT-NLG (2201.11990): keep if a Pareto draw exceeds 1 - score.
"""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.filters import FilterSpec


class Quality(FilterSpec):
    needs: ClassVar[tuple[str, ...]] = ("classifier",)

    kind: Literal["quality"] = "quality"
    alpha: float = Field(
        default=3.0, ge=0, description="of the Pareto distribution; larger drops more; 0 = off; GPT-3 has 9"
    )
    min_score: float = Field(default=0.0, ge=0, le=1, description="score that every document needs; 0 = off")
    seed: int = Field(default=0, ge=0, description="of the draws, which also depend on the document")
