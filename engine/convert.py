"""Make a finished model into one of another shape: python -m atelier.engine.convert run.json

run.json: config is {"rule": a Conversion}, inputs {"model"} and, for a rule that reads
text, {"tokens"}; output "model": a model artifact with the tokenizer of its parent.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from atelier.engine.config.base import Spec, parse
from atelier.engine.config.conversions import Conversion, ConversionSpec
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.run_file import FILE_BYTES, RunFile
from atelier.engine.data.corpus import TRAIN
from atelier.engine.data.tokens import Windows
from atelier.engine.data.vocabulary import copy_carried, copy_tokenizer
from atelier.engine.inference.sampling import num_positions
from atelier.engine.io.process import Progress, input_of, leave, output_of, run_verb, say
from atelier.engine.model.load import read_model, write_model
from atelier.engine.model.weights import in_memory
from atelier.engine.parallel.gang import start_gang

SEQUENCE = 128  # tokens of a row that the model reads
ROWS = 16


class Converting(Spec):
    """The config of this command."""

    rule: Conversion


def convert(run: RunFile) -> dict[str, int]:
    """Write the converted model; returns the summary."""
    rule = parse(Converting, run.config, "config").rule
    gang = start_gang(Parallel(shard=1, threads=run.layout.threads, device=run.layout.device))
    scratch, source = Path(run.scratch), input_of(run, "model")
    model, spec = read_model(source, scratch, device=gang.device)
    made = rule.converted(spec)
    module = importlib.import_module(f"atelier.engine.conversion.{rule.kind}")
    weights, about = module.convert(rule, model.eval(), made, _text(run, rule, spec, gang.device))
    output = output_of(run, "model")
    write_model(in_memory(weights), made, output.add_parts, most=FILE_BYTES)
    copy_tokenizer(source, output, scratch)
    copy_carried(source, output, scratch)
    summary = {"params": made.num_params(), "rule": rule.kind, **about}
    output.close(summary)
    return summary


def _text(
    run: RunFile, rule: ConversionSpec, spec: ModelSpec, device: torch.device
) -> Iterator[dict[str, Tensor]]:
    """Batches of windows, evenly spread over the training text."""
    if not rule.num_tokens:
        return
    sequence = min(SEQUENCE, num_positions(spec) or SEQUENCE)
    windows = Windows(input_of(run, "tokens"), Path(run.scratch), TRAIN, sequence)
    count = min(len(windows), -(-rule.num_tokens // sequence))
    progress = Progress(sys.stdout)
    progress.start(count * sequence, "tokens")
    numbers = np.arange(count) * len(windows) // count
    for first in range(0, count, ROWS):
        some = windows.batch(numbers[first : first + ROWS])
        yield {name: torch.from_numpy(values).to(device) for name, values in some.items()}
        progress.advance(len(some["tokens_BT"]) * sequence)


def act(run: RunFile) -> None:
    say(sys.stdout, {"done": convert(run)})


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code; one JSON line reports how it ended."""
    return run_verb("convert", arguments, act)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
