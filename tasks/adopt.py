"""adopt: import a checkpoint of another family as a model, with its tokenizer."""

from atelier.engine.config.data import Tokenizer
from atelier.engine.config.foreign.families import family_of
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.task.adopt import AdoptConfig
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
from atelier.infra.dag import Reference, declare_one
from atelier.infra.store.source_contents import contents_of, identity_of
from atelier.tasks.learn_tokenizer import learn_tokenizer

VERSION = 1
MODULE = "atelier.engine.adopt"


def adopt(source: str, name: str) -> tuple[Reference, ModelSpec]:
    """The model called `name`, and its spec. `source`: a folder that transformers saved, or its fsspec URL.
    Raises ConfigError for a source without weights, or with unsupported keys.
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
    made = declare_one(
        "adopt",
        "model",
        {"tokenizer": tokenizer},
        name=name,
        version=max(VERSION, family.version(config)),
        identity={"family": family.name, **identity_of(files)},
        origin={"family": "source", "files": "source", "content": "source"},
        kinds=model_kinds(spec),
        config=AdoptConfig(
            source=source,
            weights=tuple(weights),
            files=tuple(files),
            bytes=total_bytes(files) * (1 if is_local(source) else 2),  # remote files are copied first
        ),
    )
    return made, spec
