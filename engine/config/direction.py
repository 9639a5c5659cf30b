"""The direction of each metric: whether higher or lower is better. Torch-free.

Nothing is guessed from names. Metrics without a direction (counts, sizes) are compared only if the user gives
one.
"""

from typing import Literal, get_args

from atelier.engine.config.error import ConfigError, nearest

Direction = Literal["minimize", "maximize"]
DIRECTIONS = get_args(Direction)
EVAL_LOSS = "eval_loss"  # in a model's summary
HELD_OUT_LOSS = "eval/loss"  # in its curve

TRAINED: dict[str, Direction] = {"loss": "minimize", EVAL_LOSS: "minimize"}  # engine/loop/publish.py
SCORED: dict[str, Direction] = {  # engine/evaluate.py
    "loss": "minimize",
    "bits_per_byte": "minimize",
    "accuracy": "maximize",
    "accuracy_normalised": "maximize",
    "f1": "maximize",
    "gzip": "minimize",  # bits per byte; also xz and trigram
    "xz": "minimize",
    "trigram": "minimize",
}
EXAMINED: dict[str, Direction] = {  # engine/config/exam.py
    "accuracy": "maximize",
    "accuracy_tokens": "maximize",
    "accuracy_bytes": "maximize",
    "accuracy_prior": "maximize",
    "exact_match": "maximize",
    "f1": "maximize",
    "all_right": "maximize",
    "same_answer": "maximize",
    "chrf": "maximize",
    "bleu": "maximize",
    "bits_per_byte": "minimize",
    "perplexity": "minimize",
    "byte_perplexity": "minimize",
    "word_perplexity": "minimize",
}
CONVERTED: dict[str, Direction] = {"loss_before": "minimize", "loss_after": "minimize"}  # engine/convert.py
TOKENIZED: dict[str, Direction] = {"bytes_per_token": "maximize"}  # engine/data/learn_tokenizer.py
TIMED: dict[str, Direction] = {"tokens_per_s": "maximize"}  # engine/data/encode.py
OF_SUMMARIES: dict[str, Direction] = {**TRAINED, **SCORED, **EXAMINED, **CONVERTED, **TOKENIZED, **TIMED}
OF_CURVES: dict[str, Direction] = {
    "loss": "minimize",
    HELD_OUT_LOSS: "minimize",
    "answers/kept": "maximize",  # engine/extensions/sites/answer_parts.py
}
# key of a model's summary -> metric of its curve that it is the last value of (engine/loop/publish.py)
RECORDED = {"loss": "loss", EVAL_LOSS: HELD_OUT_LOSS}
# prefixes of curve metrics that end with a name from the configuration (engine/loop/step.py, evaluation.py)
NAMED_IN_CURVES: dict[str, Direction] = {
    "objective/accuracy/": "maximize",
    "eval/objective/accuracy/": "maximize",
    "eval/objective/": "minimize",
    "eval/source/": "minimize",
}


def declared(metric: str) -> Direction | None:
    """The direction of a curve's metric or of `<name>.<summary key>`; None if none is declared."""
    if metric in OF_CURVES:
        return OF_CURVES[metric]
    for start, found in NAMED_IN_CURVES.items():
        if metric.startswith(start):
            return found
    return OF_SUMMARIES.get(metric.rpartition(".")[2])


def required(metric: str, place: str, way_out: str) -> Direction:
    """The declared direction. Raises ConfigError with `way_out` if none is declared."""
    found = declared(metric)
    if found is not None:
        return found
    near = nearest(metric.rpartition(".")[2], OF_SUMMARIES)
    raise ConfigError(
        place,
        f"no direction is declared for {metric!r}, so it is unknown whether higher or lower is better",
        way_out + (f"; or did you mean {near}?" if near else ""),
    )


def is_held_out_loss(metric: str) -> bool:
    """Whether the metric is `<model>.eval_loss`."""
    return metric.rpartition(".")[2] == EVAL_LOSS


def is_higher_better(direction: str) -> bool:
    return direction == "maximize"


def sign_of(direction: str) -> int:
    """1 if lower is better, -1 if higher is: the best value is the lowest after multiplication by it."""
    return -1 if is_higher_better(direction) else 1


def which_is_better(direction: str) -> str:
    return "higher is better" if is_higher_better(direction) else "lower is better"
