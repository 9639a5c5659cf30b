"""collect: read one source into shards of documents."""

import sys
from unicodedata import unidata_version

from atelier.engine.config import generated
from atelier.engine.config.curation import Curation
from atelier.engine.config.data import Source, is_stdlib, stdlib_part
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.task.curation import CollectConfig
from atelier.engine.io.machine import versions
from atelier.engine.io.source_files import WEB_LIBRARY, files_of
from atelier.infra.dag import Reference, declare_one, of_source
from atelier.infra.store.source_contents import contents_of, identity_of

VERSION = 1
MODULE = "atelier.engine.prepare"


def collect(name: str, source: Source, curation: Curation) -> Reference:
    """The documents of one source. Their identity is the content of the source's files."""
    place = "data.source" if name == "main" else f"data.blend.{name}.source"
    files = contents_of(files_of(source, place))
    content = identity_of(files) | generated.identity_of(source.source)
    if is_stdlib(source.source):
        content |= {"python": sys.version, "part": stdlib_part(source.source)}
    content |= {"unicode": unidata_version, **(versions("ftfy") if curation.repair else {})}
    changes = {key: True for key in ("repair", "personal") if getattr(curation, key)}
    return declare_one(
        "collect",
        "documents",
        {},
        name=source.title if name == "main" else name,
        version=VERSION,
        node=of_source("collect", name),
        identity={"field": source.field, "on_error": source.on_error, **changes, **content},
        origin={
            **dict.fromkeys(("files", "content"), place),
            "python": "python",
            WEB_LIBRARY: "package",
            "unicode": "python",
            "ftfy": "package",
            "field": f"{place.rpartition('.')[0]}.field",
            "on_error": f"{place.rpartition('.')[0]}.on_error",
            **{key: f"data.curation.{key}" for key in changes},
        },
        config=CollectConfig(
            source=source,
            files=tuple(files),
            shards=curation.shards,
            repair=curation.repair,
            personal=curation.personal,
        ),
        layout=Parallel(shard=curation.workers, threads=1),
        ranks=curation.workers,
    )
