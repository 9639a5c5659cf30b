"""assemble: write the documents of a source that all stages left as a corpus, with a held-out split."""

from collections.abc import Mapping

from atelier.engine.config.curation import Curation
from atelier.engine.config.data import Data, is_stdlib
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.task.curation import AssembleConfig
from atelier.infra.dag import Reference, declare_one, of_source

VERSION = 1
MODULE = "atelier.engine.prepare"


def assemble(
    name: str, documents: Reference, stages: Mapping[str, Reference], data: Data, curation: Curation
) -> Reference:
    """The corpus of one source. `stages`: artifacts with verdicts, by input."""
    sources = data.sources()
    place = curation.ranked([*sources]).index(name)
    is_cut = not is_stdlib(sources[name].source)
    return declare_one(
        "assemble",
        "corpus",
        {f"documents.{name}": documents, **stages},
        name=documents.name,
        version=VERSION,
        node=of_source("assemble", name),
        identity={"held_out": data.held_out, "is_cut": is_cut},
        origin={"held_out": "data.held_out"},
        config=AssembleConfig(name=name, place=place, held_out=data.held_out, is_cut=is_cut),
        layout=Parallel(shard=curation.workers, threads=1),
        ranks=curation.workers,
    )
