"""label: labelled examples (prompt, completion, options), split by the file they come from."""

import sys

from atelier.engine.config.base import Json
from atelier.engine.config.data import Labels, is_stdlib
from atelier.engine.io.source_files import files_of
from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest
from atelier.infra.store.source_contents import contents_of, identity_of

VERSION = (
    2  # copies differ in blanks too, and are told apart before prompts are cut; task=package has none: 1
)


def label(labels: Labels, *, name: str = "", tuned: Reference | None = None) -> Reference:
    """The examples of `finetune.labels`; with a `name` those of `also.<name>`, to choose from the options of
    the examples that are `tuned` on.
    """
    place = f"also.{name}" if name else "finetune.labels"
    files = contents_of(files_of(labels, f"{place}.source"))
    if is_stdlib(labels.source):
        labels = labels.model_copy(update={"max_chars": labels.most_chars})
    identity: dict[str, Json] = {k: v for k, v in labels.as_identity().items() if k != "source"}
    identity |= identity_of(files)
    if is_stdlib(labels.source):
        identity["python"] = sys.version
    product = Product(
        kind="labels",
        name=name or (labels.task if is_stdlib(labels.source) else "labels"),
        version=1 if is_stdlib(labels.source) and labels.task == "package" else VERSION,
        identity=identity,
        parents={"tuned": tuned.fingerprint} if tuned else {},
        origin={
            key: f"{place}.{'source' if key in ('files', 'content') else key}"
            for key in identity
            if key != "python"
        },
    )
    node = Node(
        name=f"label.{name}" if name else "label",
        task="label",
        products={"labels": product},
        inputs={"tuned": input_of(tuned)} if tuned else {},
        config={"labels": labels.model_dump(mode="json"), "files": [list(f) for f in files], "place": place},
    )
    return declare(node, [tuned] if tuned else [])["labels"]


def run(node: Node, context: RunContext) -> None:
    context.gang(
        GangRequest(
            node=node,
            module="atelier.engine.prepare",
            config=lambda fences: node.config,
            outputs=context.missing(node),
        )
    )
