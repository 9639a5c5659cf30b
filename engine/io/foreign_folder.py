"""A folder in transformers' format at any address: its files, its weights, and how texts begin and end.
Torch-free.
"""

from collections.abc import Mapping, Sequence

from atelier.engine.config.base import Json
from atelier.engine.config.data import STARTS, AdoptedEnds
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.io.hub import pinned
from atelier.engine.io.source_files import check_no_password
from atelier.engine.io.storage import is_local, join, local_path, names, read_object
from atelier.engine.io.weight_files import INDEX, WEIGHTS, read_index

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
GENERATION, TOKENIZER_CONFIG = "generation_config.json", "tokenizer_config.json"
ABOUT = ("README.md", "LICENSE", "LICENSE.txt", "LICENSE.md")  # files that say where it is from
BESIDE = (
    *ABOUT,
    TOKENIZER_CONFIG, "special_tokens_map.json", "chat_template.jinja",
)  # fmt: skip
KIND = "give a folder as transformers saves it"


def opened(source: str) -> tuple[str, str, list[str]]:
    """The source (pinned to a commit on the hub), its folder, and the names there. Raises ConfigError for an
    address with a password, and errors of `names`.
    """
    check_no_password(source, "source")
    source = pinned(source.rstrip("/"), "source") if "://" in source else source
    folder = str(local_path(source).absolute()) if is_local(source) else source
    return source, folder, names(folder)


def beside(folder: str, name: str, there: list[str]) -> Mapping[str, Json]:
    return read_object(join(folder, name), "a JSON object") if name in there else {}


def read_texts(folder: str, there: list[str], config: Mapping[str, Json]) -> AdoptedEnds:
    """`texts_of` a folder whose model has this `config`."""
    return texts_of([config, *(beside(folder, name, there) for name in (GENERATION, TOKENIZER_CONFIG))])


def texts_of(documents: Sequence[Mapping[str, Json]]) -> AdoptedEnds:
    """How texts begin and end by the configurations of model, generation and tokenizer."""
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
    """The first id of a decoder after an encoder; None without encoder, or if it is the padding token, which
    is found by name.
    """
    pad = config.get("pad_token_id", 0)
    start = config.get("decoder_start_token_id", pad)
    if not config.get("is_encoder_decoder") or type(start) is not int:
        return None
    named = tokenizer.get("pad_token")
    is_named = section_of(named).get("content", named) in STARTS
    return None if is_named and start == pad else start


def weights_of(folder: str, there: list[str]) -> list[str]:
    """The weights files: one, or the shards named in the index."""
    if not there:
        raise ConfigError("source", f"{folder} is not a folder, or empty", KIND)
    if WEIGHTS in there:
        return [WEIGHTS]
    if INDEX in there:
        return sorted(read_index(section_of(read_object(join(folder, INDEX))), there, join(folder, INDEX)))
    pickled = [name for name in there if name.endswith(PICKLES)]
    if pickled:
        raise DataError(
            f"source: {pickled[0]} is a pickle, which is never opened; save it as safetensors where you"
            " trust it"
        )
    raise ConfigError("source", f"{folder} has no {WEIGHTS} and no {INDEX}", KIND)


def missing_of(source: str, there: Sequence[str]) -> list[ConfigError]:
    """Errors for missing files other than weights."""
    needed = (CONFIG, TOKENIZER)
    return [ConfigError("source", f"{source} has no {name}", KIND) for name in needed if name not in there]
