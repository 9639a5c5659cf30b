"""Convert a finished model to another shape: python -m atelier.engine.convert run.json

run.json: config is a ConvertConfig, inputs {"model"}, {"tokens"} of its training text, for a rule to another
tokenizer {"tokenizer", "tokens.main"}, and the rule's further parents by role; output "model": a model
artifact with its parent's or the new tokenizer, and `ancestry.json` with the origin of each weight's numbers.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from atelier.engine.checkpoint.reader import load_full
from atelier.engine.config.base import Json, canonical, parse
from atelier.engine.config.conversions import (
    ANCESTRY,
    OPTIMIZER,
    OPTIMIZER_KIND,
    ConversionSpec,
    GrowingSpec,
    keeps_states,
)
from atelier.engine.config.error import ConfigError
from atelier.engine.config.kind_files import kind_module
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.run_file import FILE_BYTES, RunFile
from atelier.engine.config.task.convert import ConvertConfig
from atelier.engine.conversion.contract import Converted, Parent
from atelier.engine.conversion.measure import comparable, held_out, mean_loss, old_in_new
from atelier.engine.data.corpus import TRAIN
from atelier.engine.data.tokens import Windows
from atelier.engine.data.vocabulary import Vocabulary, copy_carried, copy_tokenizer
from atelier.engine.inference.sampling import num_positions
from atelier.engine.io.process import Progress, input_of, leave, output_of, run_verb
from atelier.engine.model.contract import Model
from atelier.engine.model.load import blank, build, read_model, read_weights, write_model
from atelier.engine.model.weights import Weight, entries_of, write_files
from atelier.engine.parallel.gang import start_gang

SEQUENCE = 128  # tokens per row
ROWS = 16
OPTIMIZERS = "optimizer."  # prefix of optimiser states in a checkpoint


def convert(run: RunFile) -> dict[str, Json]:
    """Write the converted model; returns the summary."""
    asked = parse(ConvertConfig, run.config, "config")
    gang = start_gang(Parallel(shard=1, threads=run.layout.threads, device=run.layout.device), run.gpu)
    scratch, source, rule = Path(run.scratch), input_of(run, "model"), asked.rule
    weights, spec = read_weights(source, scratch)

    def model() -> Model:
        return read_model(source, scratch, device=gang.device)[0].eval()

    old = new = Vocabulary.of(source, scratch)
    if rule.needs_tokenizer:
        new = Vocabulary.of(input_of(run, "tokenizer"), scratch)
    text = _text(run, rule, spec, gang.device)
    others = {role: input_of(run, role) for role in rule.others}
    parent = Parent(weights, spec, model, text, old, new, others, scratch)
    made = rule.converted(spec)
    made = made.resolved(new.size) if made.vocab == "auto" else made
    found = _converted(rule, parent, made)
    output = output_of(run, "model")
    write_model(found.weights, made, output.add_parts, most=FILE_BYTES)
    if asked.states:
        states = _states(load_full(asked.states, OPTIMIZERS), rule, parent, made)
        if not states:
            problem = "grown, but the parent's last checkpoint has only an adapter's states"
            raise ConfigError("convert.optimizer", problem, "optimizer=dropped")
        write_files({OPTIMIZER: entries_of(states)}, states, output.add_parts)
        output.add_json(OPTIMIZER_KIND, keeps_states(asked.optim))
        found.about["states"] = len(states)
    pieces = {name: [piece.plain() for piece in each] for name, each in found.ancestry.items()}
    output.add_bytes(ANCESTRY, canonical(pieces))
    copy_tokenizer(input_of(run, "tokenizer") if rule.needs_tokenizer else source, output, scratch)
    copy_carried(source, output, scratch)
    summary: dict[str, Json] = {"params": made.num_params(), "rule": rule.kind, **found.about}
    if asked.measured and "tokens" in run.inputs:
        summary |= _measured(run, asked.measured, parent, found, made, gang.device)
    output.close(summary)
    return summary


def _converted(rule: ConversionSpec, parent: Parent, made: ModelSpec) -> Converted:
    return kind_module("conversion", rule.kind, "convert").convert(rule, parent, made)


def _states(
    saved: Mapping[str, Tensor], rule: ConversionSpec, parent: Parent, made: ModelSpec
) -> dict[str, Weight]:
    """The states of a checkpoint's optimiser, `optimizer.<weight>.<state>`, converted by the rule; new
    weights have none. A state that is one number is taken from the weight's first source.
    """
    assert isinstance(rule, GrowingSpec)  # only these have `optimizer`
    own = {
        name.removeprefix(OPTIMIZERS): state for name, state in saved.items() if name.startswith(OPTIMIZERS)
    }
    result: dict[str, Weight] = {}
    for state in sorted({name.rpartition(".")[2] for name in own}):
        of_weights = {
            name: own.get(f"{name}.{state}", torch.zeros_like(weight))
            for name, weight in parent.weights.items()
        }
        found = _converted(rule.of_states(state), replace(parent, weights=of_weights), made)
        for name, weight in found.weights.items():
            source = next((piece.source for piece in found.ancestry[name] if piece.source), "")
            if (one := own.get(f"{source}.{state}")) is not None:
                result[f"{name}.{state}"] = (
                    weight if one.dim() else Weight((), one.dtype, partial(torch.clone, one))
                )
    return result


def _measured(
    run: RunFile, tokens: int, parent: Parent, found: Converted, made: ModelSpec, device: torch.device
) -> dict[str, Json]:
    """The loss before and after on the same held-out tokens, nats per token, and their name; with several
    parents, `before` is the first's and each has its own.
    """
    scratch, sequence = Path(run.scratch), min(SEQUENCE, num_positions(parent.spec) or SEQUENCE)
    rows, name = held_out(input_of(run, "tokens"), scratch, sequence, tokens)
    ids = None
    if parent.old is not None and parent.new is not None and parent.new is not parent.old:
        ids = old_in_new(parent.old, parent.new)
        rows = comparable(rows, ids)
    if not rows:  # the new tokenizer has all tokens of no row
        return {}
    result: dict[str, Json] = {"held_out": name, "loss_before": mean_loss(parent.model(), rows, device)}
    others = [other for other in parent.others.values() if other.record.kind == "model"]
    if others:
        models = (read_model(other, scratch, device=device)[0].eval() for other in others)
        losses = [mean_loss(model, rows, device) for model in models]
        result["losses"] = [result["loss_before"], *losses]
    with blank():
        model = build(made)
    whole = {weight: one.gather() for weight, one in found.weights.items()}
    state = {weight: value.to(device) for weight, value in whole.items() if value is not None}
    model.load_state_dict(state, assign=True)
    result["loss_after"] = mean_loss(model.eval(), rows, device, ids)
    return result


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


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code; one JSON line reports the end."""
    return run_verb("convert", arguments, convert)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
