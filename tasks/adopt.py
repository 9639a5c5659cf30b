"""adopt: a checkpoint of another family as a model, with its tokenizer."""

from atelier.engine.config.data import Tokenizer
from atelier.engine.config.foreign.families import family_of
from atelier.engine.config.registry import ModelSpec
from atelier.engine.io.foreign_folder import (
    BESIDE,
    CONFIG,
    TOKENIZER,
    missing_of,
    opened,
    read_texts,
    weights_of,
)
from atelier.engine.io.source_files import reading, total_bytes
from atelier.engine.io.storage import is_local, join, read_object
from atelier.engine.io.weight_files import INDEX
from atelier.infra.code.code_map import model_kinds
from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest
from atelier.infra.store.source_contents import contents_of, identity_of
from atelier.tasks.learn_tokenizer import learn_tokenizer

VERSION = 1


def adopt(source: str, name: str) -> tuple[Reference, ModelSpec]:
    """The model called `name`, and its spec. `source`: a folder or an fsspec URL of one, as transformers
    saves it. Raises ConfigError for one that has no weights, or what is not understood.
    """
    with reading(source, "source"):
        source, folder, there = opened(source)
        weights = weights_of(folder, there)
        if missing := missing_of(source, there):
            raise missing[0]
        config = read_object(join(folder, CONFIG), "a model's configuration")
        texts = read_texts(folder, there, config)
    used = [*weights, CONFIG, TOKENIZER, *(one for one in (INDEX, *BESIDE) if one in there)]
    files = contents_of([join(folder, one) for one in dict.fromkeys(used)], place="source")
    family = family_of(config, CONFIG)
    spec = family.spec(config, CONFIG)
    tokenizer = learn_tokenizer({}, Tokenizer(load=join(folder, TOKENIZER)), texts)
    product = Product(
        kind="model",
        name=name,
        version=max(VERSION, family.version(config)),
        identity={"family": family.name, **identity_of(files)},
        parents={"tokenizer": tokenizer.fingerprint},
        origin={"family": "source", "files": "source", "content": "source"},
        kinds=model_kinds(spec),
    )
    node = Node(
        name="adopt",
        task="adopt",
        products={"model": product},
        inputs={"tokenizer": input_of(tokenizer)},
        config={
            "source": source,
            "weights": list(weights),
            "files": [list(each) for each in files],
            "bytes": total_bytes(files) * (1 if is_local(source) else 2),  # copied to scratch first
        },
    )
    return declare(node, [tokenizer])["model"], spec


def run(node: Node, context: RunContext) -> None:
    context.gang(
        GangRequest(
            node=node,
            module="atelier.engine.adopt",
            config=lambda fences: node.config,
            outputs=context.missing(node),
        )
    )
