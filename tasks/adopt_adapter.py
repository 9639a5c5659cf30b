"""adopt_adapter: import a low-rank adapter in peft's format, and merge it into its base."""

from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.foreign.adapters import CONFIG, WEIGHTS, scaled
from atelier.engine.config.task.adopt import AdoptAdapterConfig
from atelier.engine.io.foreign_folder import ABOUT, opened
from atelier.engine.io.source_files import reading, total_bytes
from atelier.engine.io.storage import is_local, join, read_object
from atelier.infra.code.code_map import model_kinds
from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.store.existing_model import Existing
from atelier.infra.store.source_contents import contents_of, identity_of

VERSION = 1
MODULE = "atelier.engine.adopt_adapter"
PICKLE = "adapter_model.bin"
KIND = "a folder that peft saved"


def adopt_adapter(source: str, base: Existing, name: str) -> dict[str, Reference]:
    """The adapter, and the merged model called `name`. `source`: a folder that peft saved, or its fsspec URL.
    Raises ConfigError for a source without an adapter, or with unsupported keys.
    """
    with reading(source, "source"):
        source, folder, there = opened(source)
        if WEIGHTS not in there and PICKLE in there:
            raise DataError(
                f"source: {source} has {PICKLE}, a pickle, which is never opened; save the adapter as"
                " safetensors on a machine where you trust the file"
            )
        for needed in (CONFIG, WEIGHTS):
            if needed not in there:
                raise ConfigError("source", f"{source} has no {needed}", KIND)
        scaled(read_object(join(folder, CONFIG), "an adapter's configuration"), CONFIG)
    files = contents_of([join(folder, CONFIG), join(folder, WEIGHTS)], place="source")
    about = contents_of([join(folder, one) for one in ABOUT if one in there], place="source")
    copied = total_bytes(files) * (1 if is_local(source) else 2)  # remote files go to scratch first
    adapter = Product(
        kind="adapter",
        name=f"{name}-adapter",
        version=VERSION,
        identity=identity_of(files),
        parents={"base": base.reference.fingerprint},
        origin={"files": "source", "content": "source"},
    )
    model = Product(
        kind="model",
        name=name,
        version=VERSION,
        identity={},
        parents={
            "init": base.reference.fingerprint,
            "adapter": adapter.fingerprint,
            "tokenizer": base.tokenizer.fingerprint,
        },
        kinds=model_kinds(base.spec),
    )
    config = AdoptAdapterConfig(source=source, files=(*files, *about), bytes=copied + base.bytes)
    node = Node(
        name="adopt_adapter",
        task="adopt_adapter",
        products={"adapter": adapter, "model": model},
        inputs={"base": input_of(base.reference)},
        config=config.model_dump(mode="json"),
    )
    return declare(node, [base.reference])
