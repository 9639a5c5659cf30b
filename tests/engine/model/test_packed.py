"""Attention by the ends of documents against masks: what it computes, and what the GPU's kernel is given."""

import random

import pytest
import torch
from torch import Tensor

from atelier.engine.model import packed
from atelier.engine.model.attention import attend, attention_mask, within


def drawn_heads(heads: int, length: int, rows: int) -> Tensor:
    return torch.randn(rows, heads, length, 8, dtype=torch.float64, requires_grad=True)


def drawn_documents(draw: random.Random, rows: int, length: int) -> Tensor:
    """Numbers of contiguous documents, the last of some rows padding."""
    found = []
    for _ in range(rows):
        row: list[int] = []
        while len(row) < length:
            row += [row[-1] + 1 if row else 0] * draw.randint(1, length)
        row = row[:length]
        found.append([-1 if draw.random() < 0.5 and number == row[-1] else number for number in row])
    return torch.tensor([sorted(row, key=lambda number: number < 0) for row in found])


@pytest.mark.parametrize("window", [0, 1, 5])
@pytest.mark.parametrize("begin", [0, 7])
def test_it_gives_what_masks_give(window: int, begin: int) -> None:
    draw = random.Random(f"{window}/{begin}")
    for _ in range(20):
        length = draw.randint(begin + 1, 24)
        documents_BS = drawn_documents(draw, 3, length)
        ends_BN = packed.document_ends(documents_BS)
        assert ends_BN is not None
        query = drawn_heads(4, length - begin, 3)
        key, value = drawn_heads(2, length, 3), drawn_heads(2, length, 3)
        mask = attention_mask(documents_BS[:, begin:], documents_BS)
        if window:
            at = torch.arange(length)[None]
            mask = within(mask, window, at[:, begin:], at)
        wanted = attend(query, key, value, mask)
        got = packed.attend_packed(query, key, value, ends_BN, window=window)
        direction = torch.randn_like(wanted)
        for mine, theirs in zip(
            [got, *torch.autograd.grad(got, (query, key, value), direction)],
            [wanted, *torch.autograd.grad(wanted, (query, key, value), direction)],
            strict=True,
        ):
            assert (mine - theirs).abs().max() < 1e-12


def test_ends_have_few_shapes_and_padding_ends_with_the_row() -> None:
    documents_BT = torch.tensor([[0, 0, 1, 2, 2, -1], [0, 0, 0, 0, 0, 0]])
    ends_BN = packed.document_ends(documents_BT)
    assert ends_BN is not None and ends_BN.tolist() == [[2, 3, 5, 6], [6, 6, 6, 6]]
    assert packed.flat_ends(ends_BN, 6).tolist() == [0, 2, 3, 5, 6, 12, 12, 12, 12]


def test_a_document_in_two_places_keeps_its_mask() -> None:
    assert packed.document_ends(torch.tensor([[0, 1, 0]])) is None


def test_the_kernel_gets_each_document_of_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's double computes sequence by sequence, queries against the last of their keys, as the
    kernel documents it.
    """
    monkeypatch.setattr(packed, "kernel", lambda: by_sequence)
    monkeypatch.setattr(packed, "_document_by_document", None)
    monkeypatch.setattr(packed, "is_on_gpu", lambda _: True)
    draw = random.Random(7)
    for begin, window in ((0, 0), (0, 3), (5, 0), (5, 4)):
        documents_BS = drawn_documents(draw, 2, 16)
        ends_BN = packed.document_ends(documents_BS)
        assert ends_BN is not None
        query = drawn_heads(4, 16 - begin, 2)
        key, value = drawn_heads(2, 16, 2), drawn_heads(2, 16, 2)
        at = torch.arange(16)[None]
        mask = attention_mask(documents_BS[:, begin:], documents_BS)
        mask = within(mask, window, at[:, begin:], at) if window else mask
        got = packed.attend_packed(query, key, value, ends_BN, window=window)
        assert (got - attend(query, key, value, mask)).abs().max() < 1e-12


def by_sequence(
    query_NHE: Tensor,
    key_NKE: Tensor,
    value_NKE: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    assert cu_q.dtype == cu_k.dtype == torch.int32 and len(cu_q) == len(cu_k)
    assert (cu_q[-1], cu_k[-1]) == (len(query_NHE), len(key_NKE)) and window_size[1] == 0
    assert enable_gqa == (key_NKE.shape[1] < query_NHE.shape[1])
    found: list[Tensor] = []
    begins_q: list[int] = cu_q.tolist()
    begins_k: list[int] = cu_k.tolist()
    for n in range(len(begins_q) - 1):
        q, k = slice(begins_q[n], begins_q[n + 1]), slice(begins_k[n], begins_k[n + 1])
        new, seen = begins_q[n + 1] - begins_q[n], begins_k[n + 1] - begins_k[n]
        assert 0 <= new <= max_q and new <= seen <= max_k
        far = torch.arange(seen - new, seen)[:, None] - torch.arange(seen)
        may = (far >= 0) & (far <= window_size[0]) if window_size[0] >= 0 else far >= 0
        heads = (query_NHE[q], key_NKE[k], value_NKE[k])
        if new:
            q_1HTE, k_1KSE, v_1KSE = (x.transpose(0, 1)[None] for x in heads)
            mixed = attend(q_1HTE, k_1KSE, v_1KSE, may[None, None], scale=scale)
            found.append(mixed[0].transpose(0, 1))
    return torch.cat(found)
