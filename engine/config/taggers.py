"""Specs of taggers, which find triples (head, relation, tail) in text. Tagger `listed` of group `tagger` is
engine/config/tagger/listed.py, and its function engine/data/tagger/listed.py. Torch-free.
"""

from typing import Annotated

from pydantic import BeforeValidator, SerializeAsAny

from atelier.engine.config.base import Kind
from atelier.engine.config.registry import KindChooser

USUAL = "rules"


class TaggerSpec(Kind):
    """How triples are found in a document."""

    kind: str

    @property
    def reads(self) -> tuple[str, str] | None:
        """The files of rows that it reads besides the text, and a field of theirs; None without."""
        return None


Tagger = Annotated[SerializeAsAny[TaggerSpec], BeforeValidator(KindChooser("tagger", USUAL))]
