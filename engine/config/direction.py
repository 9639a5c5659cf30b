"""Whether a higher or a lower value of a metric is better, declared for each metric by what computes it;
nothing is guessed from a name. A metric without a direction (a count, a size) is compared where a person
gives one. Torch-free.
"""

from typing import Literal, get_args

from atelier.engine.config.error import ConfigError, nearest

Direction = Literal["minimize", "maximize"]
DIRECTIONS = get_args(Direction)
EVAL_LOSS = "eval_loss"  # of a model's summary
HELD_OUT_LOSS = "eval/loss"  # of its curve

TRAINED: dict[str, Direction] = {"loss": "minimize", EVAL_LOSS: "minimize"}  # engine/loop/publish.py
SCORED: dict[str, Direction] = {  # engine/evaluate.py
    "loss": "minimize",
    "bits_per_byte": "minimize",
    "accuracy": "maximize",
    "accuracy_normalised": "maximize",
    "gzip": "minimize",  # bits per byte, as xz and trigram
    "xz": "minimize",
    "trigram": "minimize",
}
CONVERTED: dict[str, Direction] = {"loss_before": "minimize", "loss_after": "minimize"}  # engine/convert.py
TOKENIZED: dict[str, Direction] = {"bytes_per_token": "maximize"}  # engine/data/learn_tokenizer.py
TIMED: dict[str, Direction] = {"tokens_per_s": "maximize"}  # engine/data/encode.py
OF_SUMMARIES: dict[str, Direction] = {**TRAINED, **SCORED, **CONVERTED, **TOKENIZED, **TIMED}
OF_CURVES: dict[str, Direction] = {
    "loss": "minimize",
    HELD_OUT_LOSS: "minimize",
    "answers/kept": "maximize",  # engine/extensions/sites/answer_parts.py
}
# word of a model's summary -> the metric of its curve that it is the last value of (engine/loop/publish.py)
RECORDED = {"loss": "loss", EVAL_LOSS: HELD_OUT_LOSS}
# metrics of a curve that end with a name of the configuration (engine/loop/step.py, evaluation.py)
NAMED_IN_CURVES: dict[str, Direction] = {
    "objective/accuracy/": "maximize",
    "eval/objective/accuracy/": "maximize",
    "eval/objective/": "minimize",
    "eval/source/": "minimize",
}


def declared(metric: str) -> Direction | None:
    """The direction of `<name>.<word of a summary>` or of a metric of a curve; None where there is none."""
    if metric in OF_CURVES:
        return OF_CURVES[metric]
    for start, found in NAMED_IN_CURVES.items():
        if metric.startswith(start):
            return found
    return OF_SUMMARIES.get(metric.rpartition(".")[2])


def required(metric: str, place: str, way_out: str) -> Direction:
    """The declared direction. Raises ConfigError with `way_out` where none is declared."""
    found = declared(metric)
    if found is not None:
        return found
    near = nearest(metric.rpartition(".")[2], OF_SUMMARIES)
    raise ConfigError(
        place,
        f"no direction is declared for {metric!r}: whether higher or lower is better is not known",
        way_out + (f"; or did you mean {near}?" if near else ""),
    )


def is_held_out_loss(metric: str) -> bool:
    """Whether the metric is `<model>.eval_loss`."""
    return metric.rpartition(".")[2] == EVAL_LOSS


def is_higher_better(direction: str) -> bool:
    return direction == "maximize"


def sign_of(direction: str) -> int:
    """1 where lower is better, -1 where higher is: the best value times it is the lowest."""
    return -1 if is_higher_better(direction) else 1


def which_is_better(direction: str) -> str:
    return "higher is better" if is_higher_better(direction) else "lower is better"
