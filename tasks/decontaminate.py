"""decontaminate: find text of evaluation sets in the documents of all sources, and decide what is cut out."""

from collections.abc import Mapping
from unicodedata import unidata_version  # newer versions know more letters, so other words

from atelier import PROJECT
from atelier.engine.config.curation import Curation, Decontaminate
from atelier.engine.config.data import Source
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.task.curation import DecontaminateConfig
from atelier.engine.io.source_files import files_of
from atelier.infra.dag import Reference, declare_one
from atelier.infra.store.source_contents import contents_of, identity_of

VERSION = 1
OWN = "atelier:"  # prefix of paths in this project
MODULE = "atelier.engine.prepare"


def decontaminate(
    documents: Mapping[str, Reference],
    verdicts: Mapping[str, Reference],
    copies: Reference | None,
    curation: Curation,
    settings: Decontaminate,
    sets: Mapping[str, Reference],
) -> Reference:
    """The overlaps of the documents that earlier stages left with evaluation sets. `sets`: those of
    `settings.questions` that are artifacts.
    """
    parents = {f"documents.{name}": each for name, each in documents.items()}
    parents |= {f"verdicts.{name}": each for name, each in verdicts.items()}
    parents |= {"copies": copies} if copies is not None else {}
    parents |= {f"sets.{name}": each for name, each in sets.items()}
    sources = curation.ranked([*documents])
    place = "data.curation.decontaminate"
    files = {
        name: tuple(
            contents_of(files_of(Source(source=_place(each.source)), f"{place}.questions.{name}.source"))
        )
        for name, each in sorted(settings.questions.items())
        if each.source
    }
    identity = {
        **settings.as_identity(),
        "questions": {
            name: {**identity_of(list(files[name])), "fields": list(settings.questions[name].fields)}
            for name in files
        },
        "sources": sources,
        "unicode": unidata_version,
    }
    return declare_one(
        "decontaminate",
        "overlaps",
        parents,
        name="overlaps",
        version=VERSION,
        identity=identity,
        origin={key: f"{place}.{key}" for key in settings.as_identity()}
        | {"sources": "data.curation.priority", "unicode": "python"},
        config=DecontaminateConfig(decontaminate=settings, files=files, sources=tuple(sources)),
        layout=Parallel(shard=curation.workers, threads=1),
        ranks=curation.workers,
    )


def _place(source: str) -> str:
    """The path or URL of an evaluation set; `atelier:<path>` is a file that comes with Atelier."""
    return str(PROJECT / source.removeprefix(OWN)) if source.startswith(OWN) else source
