"""Heads that detect replaced tokens, in a report."""

from atelier.engine.config.metric import CurveLine
from atelier.engine.extensions.detection.report import rows


def line(step: int, **values: float | None) -> CurveLine:
    named = {"share": "objective/share/rtd", "right": "objective/accuracy/rtd", "loss": "objective/rtd"}
    return {"step": step, "values": {named[key]: value for key, value in values.items()}}


def test_steps_without_a_hidden_token_take_no_part_in_a_mean() -> None:
    early = [line(step, share=0.9, right=0.1, loss=9.0) for step in range(12)]
    late = [
        line(12, share=0.2, right=0.8, loss=0.5),
        line(13, share=None, right=None, loss=None),
        line(14),
        line(15, share=0.1, right=0.6, loss=0.3),
    ]
    (row,), (note,) = rows("d", early + late)
    assert (row["name"], row["head"], round(row["right"], 9), round(row["right_without"], 9)) == (
        "d",
        "rtd",
        0.7,
        0.85,
    )
    assert note.startswith("d: 0.400 nats per token in its last 4 steps, in which 15.0% of the tokens")


def test_a_model_that_detects_nothing_has_none() -> None:
    assert rows("plain", [{"step": 0, "values": {"train/loss": 1.0}}]) == ([], [])
