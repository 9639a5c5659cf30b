"""The interface of a model, and the one-line error if it is not met."""

from typing import Any

import pytest
import torch
from torch import nn

from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.model.gpt import GPT
from atelier.engine.loop.stage import _check_passed
from atelier.engine.model.contract import Model, Sum, stored
from atelier.engine.model.load import build
from atelier.engine.model.transformer import Block
from atelier.engine.parallel.pipeline import keep_stage

SPEC = GPT(num_layers=2, hidden=16, num_heads=2, vocab=32, dropout=0.1)


class Bare(Model):
    """A model with dropout that does not say how it changes."""

    def __init__(self, spec: Any) -> None:
        super().__init__()
        self.spec, self.blocks = spec, nn.ModuleList()
        self.register_buffer("bias", torch.zeros(3))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.weight = nn.Parameter(torch.zeros(2))

    def sums(self) -> dict[str, Sum]:
        return {"z": Sum(weight=1.0)}


def test_a_model_with_dropout_that_cannot_change_it_refuses_to_keep_it_silently() -> None:
    Bare(SPEC).set_dropout(1.0)
    Bare(SPEC.model_copy(update={"dropout": 0.0})).set_dropout(0.5)
    with pytest.raises(ConfigError, match=r"train.progressive: changes dropout.*kind gpt.*set_dropout"):
        Bare(SPEC).set_dropout(0.5)


def test_what_a_model_does_not_say_is_one_line_when_it_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"model.gpt: needs `splits`, but Bare does not define it.*gpt.py"):
        Bare(SPEC).splits()


def test_a_decoder_changes_the_dropout_of_all_its_blocks() -> None:
    model = build(SPEC)
    model.set_dropout(0.5)
    assert [block.dropout for block in model.blocks] == [0.05, 0.05]
    model.set_dropout(1.0)
    assert [block.dropout for block in model.blocks] == [0.1, 0.1]


NETS = {name: Net(num_layers=1, hidden=16, num_heads=2) for name in ("nlu", "nlg")}
DEEP = Ernie(num_layers=2, hidden=16, num_heads=2, vocab=32, dropout=0.1, **NETS)


@pytest.mark.parametrize(("is_first", "dropouts"), [(True, [0.05]), (False, [0.05, 0.05, 0.05])])
def test_every_stage_changes_the_dropout_of_the_blocks_that_it_has(
    is_first: bool, dropouts: list[float]
) -> None:
    """The last stage has the task nets too."""
    model = build(DEEP)
    keep_stage(model, range(1) if is_first else range(1, 2), is_first=is_first, is_last=not is_first)
    model.set_dropout(0.5)
    assert [block.dropout for block in model.modules() if isinstance(block, Block)] == dropouts


def test_kept_buffers_are_weights_of_the_model_and_others_are_not() -> None:
    assert [name for name, _ in stored(Bare(SPEC))] == ["weight", "bias"]


def test_a_stage_that_does_not_pass_on_what_the_next_one_reads_is_one_line() -> None:
    carried = {"hidden_BTD": torch.zeros(1)}
    with pytest.raises(
        ConfigError, match=r"model.gpt: its blocks do not pass on z, which the next stage needs"
    ):
        _check_passed(carried, ["hidden_BTD", "z"], Bare(SPEC))
