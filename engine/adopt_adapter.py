"""Convert a peft low-rank adapter to an artifact, and its merge with the base to a model: python -m
atelier.engine.adopt_adapter run.json

run.json: config is an AdoptAdapterConfig, inputs {"base": a model artifact}; outputs "adapter" and "model".
Weights are merged and written one by one.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from torch import Tensor

from atelier.engine.config.base import Json, parse
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.foreign.adapters import CONFIG, WEIGHTS, scaled
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.run_file import FILE_BYTES, RunFile
from atelier.engine.config.task.adopt import AdoptAdapterConfig
from atelier.engine.data.vocabulary import copy_carried, copy_tokenizer
from atelier.engine.io import storage
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.io.origin import origin
from atelier.engine.io.process import Progress, input_of, leave, output_of, run_verb
from atelier.engine.io.source_files import content_id, local_copy
from atelier.engine.model.load import read_weights, write_model
from atelier.engine.model.lora import Addition, of_base, with_addition
from atelier.engine.model.weights import StoredWeights, Weight


def adopt_adapter(run: RunFile) -> dict[str, Json]:
    """Write both artifacts; returns the summary. Raises ConfigError for unsupported settings, DataError if
    the adapter does not fit the base.
    """
    asked, scratch = parse(AdoptAdapterConfig, run.config, "config"), Path(run.scratch)
    known = {url.rsplit("/", 1)[-1]: url for url, _ in asked.files}
    here = {url.rsplit("/", 1)[-1]: local_copy(url, digest, scratch) for url, digest in asked.files}
    config = storage.read_object(str(here[CONFIG]), "an adapter's configuration")
    how, source = scaled(config, known[CONFIG]), input_of(run, "base")
    stored, spec = read_weights(source, scratch)
    if not isinstance(spec, GPT):
        raise ConfigError(asked.source, f"its base is of kind {spec.kind}", "use a base of kind gpt")
    family, additions = of_base(StoredWeights(here[WEIGHTS]), spec, how, known[WEIGHTS])
    for url, digest in asked.files:
        if content_id(url, "source") != digest:
            raise DataError(f"source: {url} has changed since it was planned; start again")
    about: dict[str, Json] = {"family": family, "rank": how.rank, **origin(asked.source, known)}
    if "adapter" in run.outputs:  # not made earlier
        adapter = output_of(run, "adapter")
        for name in (CONFIG, WEIGHTS):
            adapter.add(name, here[name])
        adapter.close(about)
    if "model" in run.outputs:
        merge(run, source, stored, spec, additions, str(about["source"]))
    return {"params": spec.num_params(), **about}


def merge(
    run: RunFile,
    source: ArtifactInput,
    stored: StoredWeights,
    spec: GPT,
    additions: Mapping[str, Addition],
    where: str,
) -> None:
    """Write the base with its additions."""
    progress, output, scratch = Progress(sys.stdout), output_of(run, "model"), Path(run.scratch)
    progress.start(len(stored), "weights")
    weights = stored.weights()
    for name, addition in additions.items():
        plain = weights[name]
        weights[name] = plain._replace(gather=partial(_merged, plain, addition))
    counted = {name: weight._replace(gather=_counted(weight, progress)) for name, weight in weights.items()}
    write_model(counted, spec, output.add_parts, most=FILE_BYTES)
    copy_tokenizer(source, output, scratch)
    copy_carried(source, output, scratch)
    output.close({"params": spec.num_params(), "adapter": where})


def _merged(plain: Weight, addition: Addition) -> Tensor:
    weight = plain.gather()
    assert weight is not None  # there is only one rank
    return with_addition(weight, *addition)


def _counted(weight: Weight, progress: Progress) -> Callable[[], Tensor | None]:
    def gather() -> Tensor | None:
        progress.advance(1)
        return weight.gather()

    return gather


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code; one JSON line reports the end."""
    return run_verb("adopt_adapter", arguments, adopt_adapter)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
