"""curate: read documents from a source, remove exact duplicates, hold out a share by hash."""

import sys

from atelier.engine.config import generated
from atelier.engine.config.data import Data, Source, is_stdlib, stdlib_part
from atelier.engine.config.task.prepare import CurateConfig
from atelier.engine.io.source_files import WEB_LIBRARY, files_of
from atelier.infra.dag import Reference, declare_one, of_source
from atelier.infra.store.source_contents import contents_of, identity_of

VERSION = 2  # 1 for the standard library, which has no copies that differ in blanks, and no long files
MODULE = "atelier.engine.prepare"


def curate(name: str, source: Source, data: Data) -> Reference:
    """The corpus of one source. Its identity is the content of the source's files."""
    files = contents_of(files_of(source))
    content = identity_of(files) | generated.identity_of(source.source)
    if is_stdlib(source.source):
        content["python"] = sys.version
        if part := stdlib_part(source.source):
            content["part"] = part
    identity = {
        "source": {k: v for k, v in source.as_identity().items() if k in ("field", "on_error")},
        "held_out": data.held_out,
    }
    prefix = "data." if name == "main" else f"data.blend.{name}."
    return declare_one(
        "curate",
        "corpus",
        {},
        name=source.title if name == "main" else name,
        version=1 if is_stdlib(source.source) else VERSION,
        node=of_source("curate", name),
        identity=identity | content,
        origin={
            "files": f"{prefix}source",
            "content": f"{prefix}source",
            "python": "python",
            WEB_LIBRARY: "package",
            "source": prefix.rstrip("."),
            "held_out": "data.held_out",
        },
        config=CurateConfig(source=source, held_out=data.held_out, files=tuple(files)),
    )
