"""Write a finished model in transformers' format: python -m atelier.engine.export run.json

run.json: config is an Exporting, inputs {"model": a model artifact}, no outputs. Before `done` is reported,
the written files are read back and their logits compared with the model's; where transformers is installed,
also the tokenizer's ids. Unfinished files are removed.
"""

import json
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from atelier.engine.config.base import Json, Spec, parse
from atelier.engine.config.batch import ENCODER
from atelier.engine.config.error import ConfigError, DataError, printable
from atelier.engine.config.foreign.families import Family, Said, families, family_of, fitting
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.run_file import FILE_BYTES, RunFile
from atelier.engine.data.vocabulary import CARRIED, TOKENIZER, Vocabulary
from atelier.engine.inference.sampling import num_positions
from atelier.engine.io import storage
from atelier.engine.io.process import Progress, input_of, leave, run_verb
from atelier.engine.io.weight_files import INDEX, WEIGHTS, index_of, plan_files
from atelier.engine.model.contract import Model
from atelier.engine.model.foreign import adopted, exported
from atelier.engine.model.load import CONFIG, blank, build, read_weights
from atelier.engine.model.weights import Part, StoredWeights, Weight, entries_of, write_files
from atelier.engine.parallel.gang import start_gang

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
TOKENS = 128  # to compare
CARD = "README.md"
TEXTS = 200  # to compare
WORDS = (
    *("def", "return", "the", "HTTP", "snake_case", "camelCase", "don't", "we'LL", "x1", "12345", "3.14e-5"),
    *("Größe", "naïve", "nai\u0308ve", "\ufb01", "É", "中文", "русский", "עברית", "한국어", "🙂"),
    *("==", "->", "!!!", "(", "):", "..."),
)
BLANKS = (" ", " ", " ", "", "  ", "\n", "\n\n\n", "\t", " \n ", "\r\n", "\u00a0", "\u3000")
NOT_COMPARED = "its tokenizer is not compared with AutoTokenizer's: transformers is not installed"


class Exporting(Spec):
    """The config of this command."""

    url: str
    family: str = ""
    dtype: Literal["", "float32", "float16", "bfloat16"] = ""
    card: str = ""
    most: int = FILE_BYTES  # bytes per shard


def export(run: RunFile) -> dict[str, Json]:
    """Write the model's files to the url; returns their description."""
    asked = parse(Exporting, run.config, "config")
    gang = start_gang(Parallel(shard=1, threads=run.layout.threads, device=run.layout.device), run.gpu)
    source, scratch = input_of(run, "model"), Path(run.scratch)
    stored, spec = read_weights(source, scratch)
    family = chosen(spec, asked.family)
    assert isinstance(spec, Said)  # others have no family
    tokenizer = source.file(TOKENIZER, scratch)
    vocabulary = Vocabulary.of(source, scratch)
    weights = exported(stored.weights(), family, spec)
    if asked.dtype:
        weights = {name: _as(weight, DTYPES[asked.dtype]) for name, weight in weights.items()}
    writer = _Writer(asked.url, sum(entry.num_bytes for entry in entries_of(weights)))
    try:
        files = plan_files(entries_of(weights), asked.most)
        write_files(files, weights, writer.parts)
        if WEIGHTS not in files:
            writer.parts(INDEX, [index_of(files)])
        writer.parts(TOKENIZER, [tokenizer.read_bytes()])
        documents = _documents(family, spec, vocabulary, next(iter(weights.values())).dtype)
        config = documents.pop(CONFIG)
        carried = [name for name in source.names() if name in CARRIED]
        for name in carried:
            writer.parts(name, [source.file(name, scratch).read_bytes()])
        for name, document in documents.items():
            if name not in carried:
                writer.json(name, document)
        ids = compare_ids(_beside(asked.url, writer, config, scratch), vocabulary, family.name)
        writer.parts(CARD, [asked.card.encode()])
        apart = _compared(asked.url, config, scratch, list(files), stored, spec, gang.device)
        writer.json(CONFIG, config)  # last: without it the folder is not a model
    except BaseException:
        writer.undo()
        raise
    return {
        "family": family.name,
        "files": len(writer.written),
        "bytes": writer.total,
        "apart": apart,
        "ids": ids,
    }


def _beside(url: str, writer: "_Writer", config: Mapping[str, Json], scratch: Path) -> Path:
    """A folder with the written files except weights, and config.json."""
    folder = scratch / "tokenizer"
    folder.mkdir(parents=True)
    for name in writer.written:
        if name in (TOKENIZER, "generation_config.json", *CARRIED):
            (folder / name).write_bytes(storage.read_bytes(storage.join(url, name)))
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


def chosen(spec: ModelSpec, name: str) -> Family:
    """The family for writing a model: the one of this name, or the first that can express it. Raises
    ConfigError, with reasons, if there is none.
    """
    if not isinstance(spec, Said):
        kinds = "only kinds gpt and encdec can be exported"
        raise ConfigError("export", f"the model is of kind {spec.kind}; {kinds}")
    if name:
        if name not in families():
            raise ConfigError("--family", f"{name!r} is not known", f"there are: {', '.join(families())}")
        family = family_of({"model_type": name}, "--family")
        family.config(spec)
        return family
    for family in fitting(spec):
        return family
    reasons = []
    for each in families():
        try:
            family_of({"model_type": each}, "").config(spec)
        except ConfigError as error:
            reasons.append(f"{each}: {error.problem.removeprefix(f'{each} cannot express ')}")
    raise ConfigError("export", f"no family can express this model ({'; '.join(reasons)})")


def _as(weight: Weight, dtype: torch.dtype) -> Weight:
    def gather() -> Tensor | None:
        whole = weight.gather()
        return None if whole is None else whole.to(dtype)

    return Weight(weight.shape, dtype, gather)


def _documents(
    family: Family, spec: Said, vocabulary: Vocabulary, dtype: torch.dtype
) -> dict[str, dict[str, Json]]:
    """The JSON files of the export."""
    begin = next(iter(vocabulary.before), None)
    ends: Json = vocabulary.end_id if len(vocabulary.ends) == 1 else list(vocabulary.ends)
    ids: dict[str, Json] = {
        "bos_token_id": begin, "eos_token_id": ends, "pad_token_id": vocabulary.pad_id,
    }  # fmt: skip
    if spec.reads_encoder:  # its decoder begins with padding
        ids |= {"pad_token_id": vocabulary.start_id, "decoder_start_token_id": vocabulary.start_id}
    named = {"bos_token": begin, "eos_token": vocabulary.end_id, "pad_token": ids["pad_token_id"]}
    words: dict[str, Json] = {
        name: vocabulary.token(number) for name, number in named.items() if number is not None
    }
    kind = str(dtype).removeprefix("torch.")
    config = {
        **family.config(spec),
        **ids,
        "dtype": kind,
        "torch_dtype": kind,
        "initializer_range": spec.init_std,
    }
    tokenizer: dict[str, Json] = {
        **words,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": begin is not None,
        "clean_up_tokenization_spaces": False,
    }
    return {
        CONFIG: config,
        "generation_config.json": ids,
        "special_tokens_map.json": words,
        "tokenizer_config.json": tokenizer,
    }


def _check_room(url: str, size: int) -> None:
    """Raises ConfigError if the disk has no room for the weights."""
    if not storage.is_local(url):
        return
    free = storage.free_bytes(storage.local_path(url))
    if size > free:
        raise ConfigError(
            "export",
            f"{url} needs {size / 1e9:.3g} GB, but its disk has only {free / 1e9:.3g} free",
            "use another disk, or --dtype bfloat16",
        )


class _Writer:
    """Files written below a url that had no files before."""

    def __init__(self, url: str, size: int) -> None:
        self.url, self.written, self.total = url.rstrip("/"), list[str](), 0
        if there := storage.names(self.url):
            raise ConfigError("export", f"{self.url} contains {there[0]}", "give a new or empty folder")
        _check_room(self.url, size)
        self._progress = Progress(sys.stdout)
        self._progress.start(size, "bytes")

    def parts(self, name: str, parts: Iterable[Part]) -> None:
        self.written.append(name)
        self.total += storage.put_parts(storage.join(self.url, name), map(self._counted, parts)).bytes

    def json(self, name: str, document: Mapping[str, Json]) -> None:
        self.parts(name, [(json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()])

    def _counted(self, part: Part) -> Part:
        self._progress.advance(len(part))
        return part

    def undo(self) -> None:
        for name in self.written:
            storage.remove(storage.join(self.url, name))
        if storage.is_local(self.url):
            with suppress(OSError):
                storage.local_path(self.url).rmdir()


def _compared(
    url: str,
    config: Mapping[str, Json],
    scratch: Path,
    files: list[str],
    stored: StoredWeights,
    spec: Said,
    device: torch.device,
) -> float:
    """The largest distance of the written model's logits from the model's, as a multiple of their scale,
    computed in float32 with one block's weights in memory. Raises DataError if they differ.
    """
    paths = [storage.local_path(storage.join(url, name)) for name in files] if storage.is_local(url) else []
    for name in files if not paths else ():
        storage.fetch(storage.join(url, name), scratch / name)
    family = family_of(config, CONFIG)
    again = family.spec(config, CONFIG)
    back = adopted(StoredWeights(*(paths or [scratch / name for name in files])), family, again, url)
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(
        spec.tokens - spec.vocab_padding, (1, min(TOKENS, most_tokens(spec))), generator=generator
    )
    wanted = _logits(spec, stored.weights(), ids_BT, device)
    found = _logits(again, back, ids_BT, device)
    apart = float((found - wanted).abs().max() / wanted.std().clamp(min=1e-12))
    is_exact = all(back[name].dtype == weight.dtype for name, weight in stored.weights().items())
    if apart > (1e-4 if is_exact else 1.0):
        raise DataError(
            f"{url}: the written files compute another model: logits differ by {apart:.3g} of their scale"
        )
    return apart


def most_tokens(spec: Said) -> int:
    return num_positions(spec) or TOKENS


def _whole(weight: Weight) -> Tensor:
    whole = weight.gather()
    assert whole is not None  # there is only one rank
    return whole


@torch.inference_mode()
def _logits(spec: Said, weights: Mapping[str, Weight], ids_BT: Tensor, device: torch.device) -> Tensor:
    """The logits of the model with these weights, with one block's weights in memory at a time."""
    with blank():
        model: Model = build(spec)

    def taken(prefix: str, names: Iterable[str]) -> dict[str, Tensor]:
        return {name: _whole(weights[prefix + name]).to(device, torch.float32) for name in names}

    for number, block in enumerate(model.blocks):
        prefix, names = f"blocks.{number}.", list(block.state_dict())

        def before(block: nn.Module, _: object, prefix: str = prefix, names: Iterable[str] = names) -> None:
            block.load_state_dict(taken(prefix, names), assign=True)

        def after(block: nn.Module, _: object, __: object) -> None:
            empty = {name: weight.to("meta") for name, weight in block.state_dict().items()}
            block.load_state_dict(empty, assign=True)

        block.register_forward_pre_hook(before)
        block.register_forward_hook(after)
    others = [name for name in weights if not name.startswith("blocks.")]
    model.load_state_dict(taken("", others), assign=True, strict=False)
    places_BT = torch.arange(ids_BT.shape[1]).expand(ids_BT.shape)
    batch = {"tokens_BT": ids_BT, "positions_BT": places_BT, "documents_BT": torch.zeros_like(ids_BT)}
    if spec.reads_encoder:
        batch |= dict(zip(ENCODER, batch.values(), strict=True))
    output = model.eval()({name: value.to(device) for name, value in batch.items()})
    return output.hidden @ model.head_weight.T


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code; one JSON line reports the end."""
    return run_verb("export", arguments, export)


def compare_ids(folder: Path, vocabulary: Vocabulary, family: str) -> str:
    """Compare the ids of TEXTS texts under the folder's AutoTokenizer with this vocabulary's; returns a line
    for the user. Raises ConfigError if they differ: AutoTokenizer builds some families' tokenizers by its own
    rules, those of Qwen 2 whatever the file contains (transformers 5.24).
    """
    try:
        import transformers  # optional; its import takes seconds
    except ImportError:
        return NOT_COMPARED
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # any type
        said = printable(" ".join(str(error).split()))
        raise DataError(f"export: AutoTokenizer cannot read the tokenizer ({said})") from None
    version = transformers.__version__
    for text in drawn_texts():
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        if ids != (ours := vocabulary.encode(text)):
            raise ConfigError(
                "export",
                f"AutoTokenizer of transformers {version} encodes {text!r} as {len(ids)} tokens, the"
                f" model's tokenizer as {len(ours)} others: for family {family} it uses"
                f" {type(theirs).__name__}",
                "choose another --family, or train with a published tokenizer of this family",
            )
    return f"the ids of {TEXTS} texts equal those of AutoTokenizer (transformers {version})"


def drawn_texts() -> Iterator[str]:
    """TEXTS fixed texts."""
    for number in range(TEXTS):
        dice = random.Random(number)
        words = dice.choices(WORDS, k=dice.randrange(1, 12))
        yield "".join(dice.choice(BLANKS) + word for word in words) + dice.choice(("", "", "\n", " "))


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
