"""Draw tokens from a model's distribution: the largest of logits + Gumbel noise (Gumbel, 1954), which is a
hash of the place's key and the token's number.

A draw depends only on logits and key, on every layout and device. If two layouts' logits differ in last bits,
very few draws differ. (Inverting the cumulative distribution would be sensitive at each of its V steps.)

N places, C of a chunk, D hidden, V vocabulary (of this rank's slice, if it is split over ranks)
"""

import torch
from torch import Tensor

from atelier.engine.model.contract import compute_dtype
from atelier.engine.model.hashing import A, mixed
from atelier.engine.model.products import with_padding
from atelier.engine.objective.top import exact_type
from atelier.engine.objective.vocab_slice import VocabSlice

LOGITS = 1 << 21  # logits per chunk
BITS = 52  # bits of a uniform number


@torch.no_grad()
def drawn(
    hidden_ND: Tensor, head_weight_VD: Tensor, keys_N: Tensor, *, num_ids: int, part: VocabSlice | None = None
) -> Tensor:
    """The tokens drawn at these places [N], below `num_ids`; further rows of the head are padding."""
    compute, vocab = compute_dtype(head_weight_VD), len(head_weight_VD)
    head_DV = head_weight_VD.to(compute).t()
    ids_V = torch.arange(vocab, device=keys_N.device) + (0 if part is None else part.begin)
    found = [torch.empty_like(keys_N[:0])]
    for rows_C in torch.arange(len(keys_N), device=keys_N.device).split(max(1, LOGITS // vocab)):
        hidden_CD = hidden_ND.index_select(0, rows_C).to(compute)
        logits_CV = (with_padding(hidden_CD) @ head_DV)[: len(rows_C)].to(exact_type(compute)).double()
        noisy_CV = (logits_CV + noise(keys_N[rows_C], ids_V)).masked_fill(ids_V >= num_ids, -torch.inf)
        noisy_CV = noisy_CV.where(~noisy_CV.isnan(), -torch.inf)  # in a step that is skipped: any token
        best_C, place_C = noisy_CV.max(1)
        id_C = ids_V[place_C]
        if part is not None:
            own_C = best_C.clone()
            id_C = part.max(torch.where(own_C == part.max(best_C), id_C, -1))
        found.append(id_C.clamp(max=num_ids - 1))
    return torch.cat(found)


def noise(keys_N: Tensor, ids_V: Tensor) -> Tensor:
    """-log(-log u) [N, V] in float64, u uniform within (0, 1)."""
    bits_NV = mixed(mixed(keys_N)[:, None] + ids_V * A) & ((1 << BITS) - 1)
    uniform_NV = (bits_NV.double() + 0.5) * 2.0**-BITS
    return uniform_NV.log_().neg_().log_().neg_()
