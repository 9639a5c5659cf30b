"""List everything that would come in from a checkpoint, has no effect or is refused, reading only its
configuration and weights headers. Torch-free.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypedDict

from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.foreign import adapters
from atelier.engine.config.foreign.config_keys import short
from atelier.engine.config.foreign.families import Reading, family_of, reading_of
from atelier.engine.config.foreign.weights import Stored, matching
from atelier.engine.io.foreign_folder import (
    BESIDE,
    CONFIG,
    beside,
    missing_of,
    opened,
    read_texts,
    weights_of,
)
from atelier.engine.io.source_files import reading
from atelier.engine.io.storage import join, read_object
from atelier.engine.io.weight_headers import header

COMES_IN, IDLE, REFUSED, OPEN = "comes in", "idle", "refused", "not judged"


class SurveyRow(TypedDict):
    """A key, a file or the weights of a checkpoint. `state`: comes in, idle, refused, or not judged if
    something else must be fixed first; `why`: the value that comes in, or the reason.
    """

    what: str
    state: str
    why: str


class Survey(NamedTuple):
    rows: list[SurveyRow]

    @property
    def refused(self) -> list[str]:
        """The refused rows, one line each."""
        return [f"{row['what']}: {row['why']}" for row in self.rows if row["state"] == REFUSED]


def survey(source: str) -> Survey:
    """Read the small files of a folder in transformers' format. Raises ConfigError for an address that cannot
    be read; everything else is in the rows.
    """
    with reading(source, "source"):
        source, folder, there = opened(source)
        rows = [_refused(error) for error in missing_of(source, there)]
        files, found = list[str](), None
        try:
            files = weights_of(folder, there)
        except AtelierError as error:
            rows.append(_refused(error))
        config: Mapping[str, Json] = {}
        try:
            config = read_object(join(folder, CONFIG), "a model's configuration") if CONFIG in there else {}
            found = reading_of(config, CONFIG) if config else None
        except AtelierError as error:
            rows.append(_refused(error))
        rows += _of_keys(found, config) if found is not None else []
        rows += _of_weights(folder, files, found, config)
        rows += _of_texts(folder, there, config)
    return Survey(sorted(rows, key=lambda row: row["state"] == REFUSED))


def survey_adapter(source: str) -> Survey:
    """As `survey`, for a folder in peft's format: its config alone."""
    with reading(source, "source"):
        source, folder, there = opened(source)
        rows = [
            _refused(ConfigError("source", f"{source} has no {name}", "give a folder as peft saves it"))
            for name in (adapters.CONFIG, adapters.WEIGHTS)
            if name not in there
        ]
        config: Mapping[str, Json] = {}
        try:
            config = beside(folder, adapters.CONFIG, there)
        except AtelierError as error:
            rows.append(_refused(error))
        errors = adapters.refusals(config, adapters.CONFIG) if config else []
    refused = {error.place: error for error in errors}
    for name, value in config.items():
        if (place := f"{adapters.CONFIG}: {name}") not in refused:
            idle = "no effect on a finished adapter's output"
            is_read = name in adapters.READ
            rows.append(_row(place, COMES_IN if is_read else IDLE, short(value) if is_read else idle))
    return Survey([*rows, *map(_refused, errors)])


def _row(what: str, state: str, why: str) -> SurveyRow:
    return {"what": what, "state": state, "why": why}


def _refused(error: AtelierError) -> SurveyRow:
    if isinstance(error, ConfigError):
        return _row(error.place, REFUSED, "; ".join(filter(None, (error.problem, error.way_out))))
    what, _, why = str(error).partition(": ")
    return _row(what, REFUSED, why)


def _of_keys(found: Reading, config: Mapping[str, Json]) -> Iterator[SurveyRow]:
    refused = {error.place for error in found.refused}
    for name in found.read:
        if (place := f"{CONFIG}: {name}") not in refused:
            yield _row(place, COMES_IN, short(config[name]))
    for name, why in found.idle.items():
        yield _row(f"{CONFIG}: {name}", IDLE, f"{short(config[name])}: {why}")
    yield from map(_refused, found.refused)


def _of_weights(
    folder: str, files: Sequence[str], found: Reading | None, config: Mapping[str, Json]
) -> Iterator[SurveyRow]:
    stored, is_whole = dict[str, Stored](), True
    for name in files:
        try:
            stored |= {each.name: Stored(each.shape, each.dtype) for each in header(join(folder, name))}
        except AtelierError as error:
            is_whole = False
            yield _refused(error)
    if not stored or not is_whole:
        return
    types = ", ".join(sorted({each.dtype for each in stored.values()}))
    many = f"{len(stored)} weights of type {types} in {len(files)} file{'s' * (len(files) > 1)}"
    if found is None or found.spec is None:
        yield _row("weights", OPEN, f"{many}: {CONFIG} must describe a model first")
        return
    matched = matching(stored, family_of(config, CONFIG), found.spec)
    yield _row("weights", COMES_IN, f"{many}: {found.spec.num_params():,} parameters")
    for other in matched.copies:
        yield _row(other, COMES_IN, "if its values equal the embedding's")
    for line in matched.refused:
        name, _, why = line.partition(" ")
        yield _row(name.rstrip(":"), REFUSED, why)


def _of_texts(folder: str, there: list[str], config: Mapping[str, Json]) -> Iterator[SurveyRow]:
    """How texts begin and end, and the files that are kept with the model."""
    try:
        texts = read_texts(folder, there, config)
    except AtelierError as error:
        yield _refused(error)
        return
    begin = (
        "as tokenizer.json has it" if texts.begin is None else repr(texts.begin) if texts.begin else "nothing"
    )
    ends = ", ".join(map(str, texts.ends)) or "as tokenizer.json has it"
    yield _row("texts", COMES_IN, f"begin with: {begin}; end with: {ends}")
    yield from (_row(name, COMES_IN, "is kept with the model") for name in BESIDE if name in there)
