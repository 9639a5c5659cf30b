"""render: conversations as tokens, by the chat template and the tokenizer of a model; the answers marked."""

import sys

from atelier.engine.config.base import Json
from atelier.engine.config.chats import Chats
from atelier.engine.config.data import is_stdlib
from atelier.engine.io.source_files import files_of
from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest
from atelier.infra.store.source_contents import contents_of, identity_of

VERSION = 2  # copies differ in blanks too; where an answer ends is not searched for in its header


def render(
    chats: Chats,
    model: Reference,
    sequence: int,
    place: str = "chats",
    length: str = "train.sequence",
) -> Reference:
    """Rows have at most `sequence` tokens and the one that follows. `place`, `length`: the configuration's
    keys of the chats and of the sequence, for errors.
    """
    files = contents_of(files_of(chats, f"{place}.source"))
    identity: dict[str, Json] = {k: v for k, v in chats.as_identity().items() if k != "source"}
    identity |= identity_of(files) | {"sequence": sequence}
    origin = {key: f"{place}.{'source' if key in ('files', 'content') else key}" for key in identity}
    if is_stdlib(chats.source):
        identity["python"] = sys.version
    product = Product(
        kind="chats",
        name="chats",
        version=VERSION,
        identity=identity,
        parents={"model": model.fingerprint},
        origin=origin | {"sequence": length},
    )
    node = Node(
        name="render",
        task="render",
        products={"chats": product},
        inputs={"model": input_of(model)},
        config={
            "chats": chats.model_dump(mode="json"),
            "sequence": sequence,
            "files": [list(f) for f in files],
            "place": place,
            "length": length,
        },
    )
    return declare(node, [model])["chats"]


def run(node: Node, context: RunContext) -> None:
    context.gang(
        GangRequest(
            node=node,
            module="atelier.engine.prepare",
            config=lambda fences: node.config,
            outputs=context.missing(node),
        )
    )
