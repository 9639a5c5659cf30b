"""label: read labelled examples (prompt, completion, options), split by source file."""

import sys

from atelier.engine.config import generated
from atelier.engine.config.base import Json
from atelier.engine.config.data import Labels, is_stdlib
from atelier.engine.config.task.prepare import LabelConfig
from atelier.engine.io.source_files import files_of
from atelier.infra.dag import Reference, declare_one
from atelier.infra.store.source_contents import contents_of, identity_of

VERSION = (
    2  # duplicates ignore blanks and are found before prompts are cut; 1 for task=package, which has none
)
MODULE = "atelier.engine.prepare"


def label(
    labels: Labels, *, name: str = "", tuned: Reference | None = None, section: str = "finetune"
) -> Reference:
    """The examples of `finetune.labels`, or of another `section`; with a `name` those of `also.<name>`, whose
    options are those of the examples that are `tuned` on.
    """
    node = "" if section == "finetune" else section
    place = f"also.{name}" if name else f"{section}.labels"
    place = f"{section}.{place}" if name and node else place
    files = contents_of(files_of(labels, f"{place}.source"))
    if is_stdlib(labels.source):
        labels = labels.model_copy(update={"max_chars": labels.most_chars})
    identity: dict[str, Json] = {k: v for k, v in labels.as_identity().items() if k != "source"}
    identity |= identity_of(files) | generated.identity_of(labels.source)
    if is_stdlib(labels.source):
        identity["python"] = sys.version
    return declare_one(
        "label",
        "labels",
        {"tuned": tuned} if tuned else {},
        name=name or (labels.task if is_stdlib(labels.source) else "labels"),
        version=1 if is_stdlib(labels.source) and labels.task == "package" else VERSION,
        node=".".join(["label", *filter(None, [name or node])]),
        identity=identity,
        origin={
            key: f"{place}.{'source' if key in ('files', 'content') else key}"
            for key in identity
            if key != "python"
        },
        config=LabelConfig(labels=labels, files=tuple(files), place=place),
    )
