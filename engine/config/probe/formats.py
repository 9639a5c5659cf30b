"""Ask one question in several ways: does the answer depend on how it is asked? Letters in reversed order show
whether a model prefers a place or a letter.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError
from atelier.engine.config.evaluation_source import ProbedRow, ProbeSpec

Format = Literal["bare", "question", "qa", "listed", "letters", "reversed"]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class FormatProbe(ProbeSpec):
    """Rows with options, each asked in every format.

    bare: the text; question: `Question: ...`; qa: `Q: ...`; listed: with the options below; letters: with
    lettered options below, answered by a letter; reversed: the same, the last option first.
    """

    kind: Literal["formats"] = "formats"
    of: str = Field(description="file of rows with question (or prompt or context), options and answer")
    formats: tuple[Format, ...] = Field(
        default=("bare", "question", "qa", "listed", "letters", "reversed"), min_length=2
    )

    @property
    def file(self) -> str:
        return self.of

    def rows(self, of: Sequence[ProbedRow], place: str) -> list[dict[str, Json]]:
        """Each row in every format; the options keep their order, so that answers can be compared."""
        made: list[dict[str, Json]] = []
        for row in of:
            if any("\n" in option for option in row.options):
                raise ConfigError(
                    f"{place}.of", f"an option of {row.id} has several lines", "leave the row out"
                )
            if len(row.options) > len(LETTERS) and {*self.formats} & {"letters", "reversed"}:
                problem = f"{row.id} has {len(row.options)} options, for {len(LETTERS)} letters"
                raise ConfigError(f"{place}.formats", problem, "leave letters and reversed out")
            for name in self.formats:
                context, continued = asked(name, row.text, [option.strip() for option in row.options])
                made.append(
                    {
                        "id": f"{row.id}.{name}",
                        "context": context,
                        "options": list[Json](continued),
                        "answer": row.answer,
                        "item": row.id,
                        "slice": name,
                    }
                )
        return made


def asked(name: Format, text: str, options: Sequence[str]) -> tuple[str, list[str]]:
    """The prompt in this format, and its continuations: one for each option, in the same order."""
    if name in ("letters", "reversed"):
        order = range(len(options)) if name == "letters" else range(len(options))[::-1]
        letters = {place: LETTERS[at] for at, place in enumerate(order)}
        lines = "".join(f"{letters[place]}. {options[place]}\n" for place in order)
        return f"{text}\n{lines}Answer:", [letters[place] for place in range(len(options))]
    listed = "".join(f"- {option}\n" for option in options)
    context = {
        "bare": text,
        "question": f"Question: {text}\nAnswer:",
        "qa": f"Q: {text}\nA:",
        "listed": f"{text}\n{listed}Answer:",
    }
    return context[name], list(options)
