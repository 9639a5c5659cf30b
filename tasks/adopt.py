"""adopt: a checkpoint of another family as a model, with its tokenizer."""

from collections.abc import Mapping, Sequence

from atelier.engine.config.base import Json
from atelier.engine.config.data import STARTS, AdoptedEnds, Tokenizer
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.families import family_of
from atelier.engine.config.registry import ModelSpec
from atelier.engine.io.hub import pinned
from atelier.engine.io.source_files import check_no_password, reading, total_bytes
from atelier.engine.io.storage import is_local, join, local_path, names, read_object
from atelier.engine.io.weight_files import INDEX, WEIGHTS, read_index
from atelier.infra.code.code_map import model_kinds
from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest
from atelier.infra.store.source_contents import contents_of, identity_of
from atelier.tasks.learn_tokenizer import learn_tokenizer

VERSION = 1
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
GENERATION, TOKENIZER_CONFIG = "generation_config.json", "tokenizer_config.json"
ABOUT = ("README.md", "LICENSE", "LICENSE.txt", "LICENSE.md")  # that say where it is from
BESIDE = (
    *ABOUT,
    TOKENIZER_CONFIG, "special_tokens_map.json", "chat_template.jinja",
)  # fmt: skip


def adopt(source: str, name: str) -> tuple[Reference, ModelSpec]:
    """The model called `name`, and its spec. `source`: a folder or an fsspec URL of one, as transformers
    saves it. Raises ConfigError for one that has no weights, or what is not understood.
    """
    with reading(source, "source"):
        source, folder, there = opened(source)
        weights = _weights(folder, there)
        for needed in (CONFIG, TOKENIZER):
            if needed not in there:
                raise ConfigError("source", f"{source} has no {needed}", "a folder as transformers saves it")
        config = read_object(join(folder, CONFIG), "a model's configuration")
        texts = texts_of([config, *(_beside(folder, one, there) for one in (GENERATION, TOKENIZER_CONFIG))])
    used = [*weights, CONFIG, TOKENIZER, *(one for one in (INDEX, *BESIDE) if one in there)]
    files = contents_of([join(folder, one) for one in dict.fromkeys(used)], place="source")
    family = family_of(config, CONFIG)
    spec = family.spec(config, CONFIG)
    tokenizer = learn_tokenizer({}, Tokenizer(load=join(folder, TOKENIZER)), texts)
    product = Product(
        kind="model",
        name=name,
        version=VERSION,
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


def opened(source: str) -> tuple[str, str, list[str]]:
    """A source of the hub at its commit, its folder, and the names there. Raises ConfigError for an address
    with a password, and what `names` raises for one that cannot be had.
    """
    check_no_password(source, "source")
    source = pinned(source.rstrip("/"), "source") if "://" in source else source
    folder = str(local_path(source).absolute()) if is_local(source) else source
    return source, folder, names(folder)


def _beside(folder: str, name: str, there: list[str]) -> Mapping[str, Json]:
    return read_object(join(folder, name), "a JSON object") if name in there else {}


def texts_of(documents: Sequence[Mapping[str, Json]]) -> AdoptedEnds:
    """How texts begin and end, of the configurations of the model, of generation and of the tokenizer."""
    ends: list[int] = []
    for document in documents:
        said = document.get("eos_token_id")
        ends += [end for end in (said if isinstance(said, list) else [said]) if type(end) is int]
    how = documents[-1]
    begin = how.get("bos_token")
    named = section_of(begin).get("content", begin)
    is_added = how.get("add_bos_token")
    added = (str(named or "") if is_added else "") if isinstance(is_added, bool) else None
    return AdoptedEnds(begin=added, ends=tuple(dict.fromkeys(ends)), start=_start_of(documents[0], how))


def _start_of(config: Mapping[str, Json], tokenizer: Mapping[str, Json]) -> int | None:
    """The id that a decoder behind an encoder reads first; None where there is no encoder, or it is a padding
    token that is found by its name.
    """
    pad = config.get("pad_token_id", 0)
    start = config.get("decoder_start_token_id", pad)
    if not config.get("is_encoder_decoder") or type(start) is not int:
        return None
    named = tokenizer.get("pad_token")
    is_named = section_of(named).get("content", named) in STARTS
    return None if is_named and start == pad else start


def _weights(folder: str, there: list[str]) -> list[str]:
    """The files of weights: one, or the shards that the index names."""
    if not there:
        raise ConfigError("source", f"{folder} is no folder, or empty", "a folder as transformers saves it")
    if WEIGHTS in there:
        return [WEIGHTS]
    if INDEX in there:
        return sorted(read_index(section_of(read_object(join(folder, INDEX))), there, join(folder, INDEX)))
    pickled = [name for name in there if name.endswith(PICKLES)]
    if pickled:
        raise DataError(
            f"source: {pickled[0]} is a pickle, which is never opened; save it as safetensors where it is "
            "trusted"
        )
    raise ConfigError(
        "source", f"{folder} has no {WEIGHTS} and no {INDEX}", "a folder as transformers saves it"
    )


def run(node: Node, context: RunContext) -> None:
    context.gang(
        GangRequest(
            node=node,
            module="atelier.engine.adopt",
            config=lambda fences: node.config,
            outputs=context.missing(node),
        )
    )
