"""Write docs/results/claims.md from benchmarks/claims and benchmarks/results: python benchmarks/claims.py

A yaml names a paper and its claims. A claim has `how` (re-shown, planned, not shown) and `ours`, a sentence
whose figures are places of results: "{gain}" with figures: {gain: [file, key, key, format]}. Our sentences
have no digits of their own, so no figure on the page can differ from its result.
"""

import json
import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import yaml

TOP = Path(__file__).resolve().parent.parent
CLAIMS, RESULTS = TOP / "benchmarks/claims", TOP / "benchmarks/results"
PAGE = TOP / "docs/results/claims.md"
HOW = ("re-shown", "planned", "not shown")
PAPER = {"paper", "arxiv", "read", "order", "claims"}
CLAIM = {"claim", "how", "ours", "figures", "seeds", "counted", "tests", "why", "from"}
BY_SEED = ("by_seed", "seeds")  # keys of results whose next key is a seed
SLOT = re.compile(r"\{(\w+)\}")
NUMBER = re.compile(r"\d")
HEAD = """# Results: what the papers claim, and what is shown here

This page lists the claims of each paper's abstract, in our words, with what Atelier measured. It is for
readers who ask which of them still hold in models of a few million parameters on two CPU cores.
`python benchmarks/claims.py` writes it from `benchmarks/claims` and `benchmarks/results`: every figure under
"ours" is read from a result. Figures under "claim" are the paper's.

- **Re-shown**: measured at laptop size. It may contradict the claim.
- **Planned**: `atelier plan` has the paper's size; nothing of that size was run.
- **Not shown**: neither; the row says why.

± is half of a 95 % interval. "Seeds" is the number of seeds of a result, or of what else was repeated (turns,
draws). "1 of 3": of three seeds the figures are of one; "3, some 1 of 3": some are. "3 (worth)": of several
results that one is repeated. "none" is a result of one run, without an interval. Left out are sentences
about earlier work and about where code can be found.
"""


class ClaimError(Exception):
    """A claim whose figures cannot be read; names the file and the claim."""


def page(claims: Path = CLAIMS, results: Path = RESULTS) -> str:
    """The page's text. Raises ClaimError."""
    papers = [
        (path.stem, cast(dict[str, Any], yaml.safe_load(path.read_text()))) for path in claims.glob("*.yaml")
    ]
    parts = [HEAD, "| paper | claims | re-shown | planned | not shown |\n|---|---|---|---|---|"]
    tables = []
    for name, paper in sorted(papers, key=lambda one: (one[1].get("order", 0), one[0])):
        _known(name, paper, PAPER)
        if NUMBER.search(paper["read"]):
            raise ClaimError(f"{name}: read has a digit")
        heading = f"{paper['paper']} ({paper['arxiv']})"
        counts = [sum(one.get("how") == how for one in paper["claims"]) for how in HOW]
        anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        parts[1] += (
            f"\n| [{heading}](#{anchor}) | {len(paper['claims'])} | " + " | ".join(map(str, counts)) + " |"
        )
        rows = [_row(f"{name}: claim {n}", one, results) for n, one in enumerate(paper["claims"], 1)]
        tables.append("\n".join([f"## {heading}", paper["read"], "", "| claim | | ours | seeds | made by |",
                                 "|---|---|---|---|---|", *rows]))  # fmt: skip
    return "\n".join(parts) + "\n\n" + "\n\n".join(tables) + "\n"


def _row(place: str, claim: dict[str, Any], results: Path) -> str:
    _known(place, claim, CLAIM)
    how, figures = claim.get("how"), cast(dict[str, list[str]], claim.get("figures", {}))
    if how not in HOW:
        raise ClaimError(f"{place}: how is {how!r}, not one of {', '.join(HOW)}")
    needs = "why" if how == "not shown" else "figures or tests"
    if not any(claim.get(name) for name in needs.split(" or ")):
        raise ClaimError(f"{place}: {how} needs {needs}")
    for field in ("ours", "why"):
        if NUMBER.search(SLOT.sub("", claim.get(field, ""))):
            raise ClaimError(f"{place}: {field} has a digit; a figure is a place of a result")
    text = claim.get("ours", "")
    if set(SLOT.findall(text)) != set(figures):
        raise ClaimError(f"{place}: ours has {{...}} of {set(SLOT.findall(text))}, figures of {set(figures)}")
    said = SLOT.sub(lambda slot: figure(results, figures[slot[1]], place), text)
    said = " ".join(
        filter(
            None, [said, *(f"`{_there(place, test)}`" for test in claim.get("tests", [])), claim.get("why")]
        )
    )
    marked = claim["claim"] + "".join(f" ({origin})" for origin in [claim.get("from")] if origin)
    made = dict.fromkeys(place_[0] for place_ in figures.values())
    cells = [marked, how, said, _seeds(results, claim, place),
             "<br>".join(_made(results, file) for file in made)]  # fmt: skip
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def figure(results: Path, reference: list[str], place: str) -> str:
    """The number at [file, key, ..., format], formatted; with format s a text that has one."""
    *keys, form = reference
    value = found(results, keys, place)
    if form == "s" and isinstance(value, str) and NUMBER.search(value):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ClaimError(f"{place}: {' > '.join(keys)} is {value!r}, no number")
    text = format(value, form)
    return text.replace("-", "\N{MINUS SIGN}") if text[0] == "-" else text


def found(results: Path, keys: list[str], place: str) -> Any:
    """The value of a results file at the path [file, key, ...]."""
    file, *rest = keys
    if not (results / f"{file}.json").exists():
        raise ClaimError(f"{place}: there is no benchmarks/results/{file}.json")
    value = document(results, file)["numbers"]
    for key in rest:
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, ValueError, TypeError):
            raise ClaimError(f"{place}: {file}.json has no {' > '.join(rest)}: {key!r}") from None
    return value


def document(results: Path, file: str) -> dict[str, Any]:
    return json.loads((results / f"{file}.json").read_text())


def _seeds(results: Path, claim: dict[str, Any], place: str) -> str:
    """How many seeds a result has, of which its figures are, and `counted`, if it is not seeds that are."""
    reference = cast(list[str] | None, claim.get("seeds"))
    figures = cast(dict[str, list[str]], claim.get("figures", {}))
    if reference is None:
        return "none" if figures else ""
    number = _number(results, reference, place)
    mine = [each for each in figures.values() if each[0] == reference[0]]
    single = [any(key in BY_SEED for key in each[1:-2]) for each in mine]
    said = f"{number} {claim.get('counted', '')}".strip()
    if any(single):
        said = f"1 of {said}" if all(single) else f"{said}, some 1 of {number}"
    return f"{said} ({reference[0]})" if len(mine) < len(figures) else said


def _number(results: Path, reference: list[str], place: str) -> int:
    """A number, the length of a list, or the keys that match a pattern."""
    *keys, last = reference
    if "*" in last:
        return sum(fnmatchcase(key, last) for key in found(results, keys, place))
    value = found(results, reference, place)
    return value if isinstance(value, int) else len(value)


def _made(results: Path, file: str) -> str:
    """The command of a result, its processor and date."""
    about = document(results, file).get("machine", {})
    command = f"`{about['command']}`" if about.get("command") else f"{file}.json (no command in the file)"
    return f"{command}, {about.get('cpu', 'machine not in the file')}, {about.get('date', 'no date')}"


def _there(place: str, test: str) -> str:
    if not (TOP / test).exists():
        raise ClaimError(f"{place}: there is no {test}")
    return test


def _known(place: str, given: dict[str, Any], fields: set[str]) -> None:
    if other := set(given) - fields:
        raise ClaimError(f"{place}: unknown {', '.join(sorted(other))}; known: {', '.join(sorted(fields))}")


if __name__ == "__main__":
    try:
        PAGE.write_text(page())
    except ClaimError as error:
        sys.exit(str(error))
    print(PAGE)
