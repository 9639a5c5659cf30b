"""render: write conversations as tokens with a model's chat template and tokenizer; mark the answers."""

import sys

from atelier.engine.config import generated
from atelier.engine.config.base import Json
from atelier.engine.config.chats import Chats
from atelier.engine.config.data import is_stdlib
from atelier.engine.config.task.prepare import RenderConfig
from atelier.engine.io.source_files import files_of
from atelier.infra.dag import Reference, declare_one
from atelier.infra.store.source_contents import contents_of, identity_of

VERSION = 2  # duplicates ignore blanks; an answer's end is not searched in its header
MODULE = "atelier.engine.prepare"


def render(
    chats: Chats,
    model: Reference,
    sequence: int,
    place: str = "chats",
    length: str = "train.sequence",
    pairs: bool = False,
    node: str = "",
) -> Reference:
    """Rows have at most `sequence` tokens, and the next one. `place`, `length`: configuration keys of the
    chats and of the sequence, for errors. `pairs`: keep the texts of prompts and answers, which
    `pose_answered` reads. `node`: the node's name where it is not the task's.
    """
    files = contents_of(files_of(chats, f"{place}.source"))
    identity: dict[str, Json] = {k: v for k, v in chats.as_identity().items() if k != "source"}
    identity |= identity_of(files) | generated.identity_of(chats.source) | {"sequence": sequence}
    identity |= {"pairs": True} if pairs else {}
    origin = {key: f"{place}.{'source' if key in ('files', 'content') else key}" for key in identity}
    if is_stdlib(chats.source):
        identity["python"] = sys.version
    return declare_one(
        "render",
        "chats",
        {"model": model},
        name="chats",
        node=node,
        version=VERSION,
        identity=identity,
        origin=origin | {"sequence": length},
        config=RenderConfig(
            chats=chats, sequence=sequence, files=tuple(files), place=place, length=length, pairs=pairs
        ),
    )
