"""Attention by plain products against torch's kernels."""

import torch

from atelier.engine.model import attention


def test_products_in_slices_of_rows_equal_torch_attention() -> None:
    num_tokens = 2 * attention.ROWS + 37
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, num_tokens, 8, generator=generator, dtype=torch.float64, requires_grad=True)
        for heads in (4, 2, 2)
    )
    documents = torch.arange(num_tokens)[None] // 300
    mask = attention.attention_mask(documents, documents)
    results = []
    for kind in (mask, attention.additive(mask, torch.float64)):
        mixed = attention.attend(query, key, value, kind)
        results.append((mixed, *torch.autograd.grad(mixed.square().sum(), (query, key, value))))
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).abs().max() < 1e-12
