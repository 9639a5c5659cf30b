"""Objectives that compare more than logits: attention distributions and hidden states."""

import math

import pytest
import torch
from torch import Tensor

from atelier.engine.config.objective.attention import Attention
from atelier.engine.config.objective.hidden import Hidden
from atelier.engine.model.contract import Relations
from atelier.engine.objective.attention import ROWS, resplit, state_sum
from atelier.engine.objective.hidden import state_sum as hidden_sum

B, T, R = 2, 6, 2


def relations(heads: int, key_heads: int, width: int, seed: int, tokens: int = T) -> Relations:
    generator = torch.Generator().manual_seed(seed)

    def draw(number: int) -> Tensor:
        return torch.randn(B, number, tokens, width, generator=generator, dtype=torch.float64)

    return Relations(draw(heads).requires_grad_(), draw(key_heads).requires_grad_())


def causal(tokens: int = T) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).tril().expand(B, 1, tokens, tokens)


def distribution(side: Relations, b: int, r: int, t: int) -> list[float]:
    query, key = side.detached()
    scores = [float(query[b, r, t] @ key[b, r, s]) / math.sqrt(query.shape[-1]) for s in range(t + 1)]
    whole = sum(map(math.exp, scores))
    return [math.exp(score) / whole for score in scores]


def test_the_divergence_is_that_of_the_definition_over_visible_tokens() -> None:
    mine, theirs = relations(R, R, 4, 1), relations(R, R, 4, 2)
    scored = torch.ones(B, T, dtype=torch.bool)
    scored[0, 3] = False
    expected = 0.0
    for b in range(B):
        for t in range(T):
            for r in range(R if scored[b, t] else 0):
                p, q = distribution(theirs, b, r, t), distribution(mine, b, r, t)
                expected += sum(x * math.log(x / y) for x, y in zip(p, q, strict=True)) / R
    total, value = state_sum(Attention(), mine, theirs.detached(), causal(), scored)
    assert float(total.detach()) == pytest.approx(expected, abs=1e-12)
    assert float(value) == pytest.approx(expected, abs=1e-12)


def test_the_gradient_is_that_of_finite_differences() -> None:
    mine, theirs = relations(R, 1, 4, 1), relations(R, R, 4, 2).detached()
    scored = torch.ones(B, T, dtype=torch.bool)

    def divergence(query: Tensor, key: Tensor) -> Tensor:
        return state_sum(Attention(), Relations(query, key), theirs, causal(), scored)[0]

    assert torch.autograd.gradcheck(divergence, tuple(mine))


def test_equal_attention_costs_nothing_whatever_the_scale_of_what_is_hidden() -> None:
    mine = relations(R, R, 4, 1)
    total, _ = state_sum(Attention(), mine, mine.detached(), causal(), torch.ones(B, T, dtype=torch.bool))
    assert float(total.detach()) == 0.0
    total.backward()
    assert mine.query_BHTE.grad is not None
    assert float(mine.query_BHTE.grad.abs().max()) < 1e-15


def test_a_long_row_in_pieces_gives_the_same_as_an_additive_mask_and_whole() -> None:
    tokens = ROWS + 3
    mine, theirs = relations(R, R, 4, 1, tokens), relations(R, R, 4, 2, tokens).detached()
    scored = torch.ones(B, tokens, dtype=torch.bool)
    may = causal(tokens)
    additive = torch.zeros(may.shape).masked_fill(~may, float("-inf"))
    pieces, _ = state_sum(Attention(), mine, theirs, additive, scored)
    each = [
        state_sum(Attention(), Relations(mine.query_BHTE[:, :, t : t + 1], mine.key_BKTE),
                  Relations(theirs.query_BHTE[:, :, t : t + 1], theirs.key_BKTE),
                  may[:, :, t : t + 1], scored[:, t : t + 1])[0]
        for t in range(tokens)
    ]  # fmt: skip
    assert float(pieces.detach()) == pytest.approx(float(sum(each).detach()), rel=1e-12)


def test_other_numbers_of_heads_are_split_anew_into_relation_heads() -> None:
    mine, theirs = relations(2, 2, 4, 1), relations(8, 2, 6, 2).detached()
    split = resplit(theirs, 2)
    assert split.query_BHTE.shape == (B, 2, T, 24)
    flat = theirs.query_BHTE.transpose(1, 2).flatten(2)
    assert torch.equal(split.query_BHTE[:, 1], flat[:, :, 24:])
    total, _ = state_sum(Attention(), mine, theirs, causal(), torch.ones(B, T, dtype=torch.bool))
    assert float(total.detach()) > 0


def test_hidden_states_are_compared_after_the_projection() -> None:
    hidden, teacher = torch.randn(B, T, 3, dtype=torch.float64), torch.randn(B, T, 5, dtype=torch.float64)
    projection = torch.randn(5, 3, dtype=torch.float64)
    scored = torch.rand(B, T) > 0.5
    total, _ = hidden_sum(Hidden(), hidden, projection, teacher, scored)
    expected = ((hidden @ projection.t() - teacher) ** 2).mean(-1)[scored].sum()
    assert float(total.detach()) == pytest.approx(float(expected), rel=1e-12)
