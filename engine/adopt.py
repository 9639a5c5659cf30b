"""Convert a foreign checkpoint to a model artifact: python -m atelier.engine.adopt run.json

run.json: config is an AdoptConfig, inputs {"tokenizer": a tokenizer artifact}; output "model". Weights are
read and written one by one, so memory does not grow with the model.
"""

import sys
from pathlib import Path

from atelier.engine.config.base import Json, parse
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.foreign.families import Said, family_of
from atelier.engine.config.run_file import FILE_BYTES, RunFile
from atelier.engine.config.task.adopt import AdoptConfig
from atelier.engine.data.vocabulary import CARRIED, Vocabulary, copy_tokenizer
from atelier.engine.io import storage
from atelier.engine.io.origin import origin
from atelier.engine.io.process import Progress, input_of, leave, output_of, run_verb
from atelier.engine.io.source_files import content_id, local_copy
from atelier.engine.model.foreign import adopted
from atelier.engine.model.load import CONFIG, write_model
from atelier.engine.model.weights import Part, StoredWeights


def adopt(run: RunFile) -> dict[str, Json]:
    """Write the model artifact; returns the summary. Raises DataError if the source has changed since it was
    planned.
    """
    asked, scratch = parse(AdoptConfig, run.config, "config"), Path(run.scratch)
    known = {url.rsplit("/", 1)[-1]: url for url, _ in asked.files}
    digests = dict(asked.files)
    config = storage.read_object(known[CONFIG], "a model's configuration")
    family = family_of(config, known[CONFIG])
    tokenizer = input_of(run, "tokenizer")
    vocabulary = Vocabulary.of(tokenizer, scratch)
    spec = _sized(family.spec(config, known[CONFIG]), vocabulary.size, known[CONFIG])
    stored = StoredWeights(
        *(local_copy(known[name], digests[known[name]], scratch) for name in asked.weights)
    )
    weights = adopted(stored, family, spec, asked.source)
    progress, output = Progress(sys.stdout), output_of(run, "model")
    progress.start(sum(stored.num_bytes(name) for name in stored), "bytes")

    def counted(part: Part) -> Part:
        progress.advance(len(part))
        return part

    write_model(
        weights, spec, lambda name, parts: output.add_parts(name, map(counted, parts)), most=FILE_BYTES
    )
    copy_tokenizer(tokenizer, output, scratch)
    for name in CARRIED:
        if name in known:
            output.add(name, local_copy(known[name], digests[known[name]], scratch))
    for url, digest in asked.files:
        if content_id(url, "source") != digest:
            raise DataError(f"source: {url} has changed since it was planned; start again")
    summary: dict[str, Json] = {
        "params": spec.num_params(),
        "family": family.name,
        **origin(asked.source, known),
        "config": config,
        "text": "unknown",
    }
    output.close(summary)
    return {"params": spec.num_params(), "family": family.name}


def _sized(spec: Said, size: int, place: str) -> Said:
    """The model with the tokenizer's vocabulary; further rows are padding."""
    if size > spec.tokens:
        raise ConfigError(
            f"{place}: vocab_size",
            f"{spec.tokens}, but the tokenizer has {size} ids",
            "use the tokenizer of this model",
        )
    return spec.model_copy(update={"vocab": size, "vocab_padding": spec.tokens - size})


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code; one JSON line reports the end."""
    return run_verb("adopt", arguments, adopt)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
