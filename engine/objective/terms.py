"""The objectives of one micro-batch: token objectives together, in chunks; others each by `terms(spec, state,
teacher, rows)`.

B rows, T tokens, D hidden, V vocabulary (of this rank's slice, if the vocabulary is split over ranks)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor

from atelier.engine.model.contract import Output, Relations
from atelier.engine.objective.chunked import Mix, Side, objective_sums
from atelier.engine.objective.load import is_of_tokens, module_of
from atelier.engine.objective.vocab_slice import LogitCache, VocabSlice


@dataclass(frozen=True)
class State:
    """Inputs of objectives: a model's output on this rank's tokens, and their layout."""

    output: Output
    hidden_BTD: Tensor  # of all this rank's tokens, as the head needs them
    head_weight_VD: Tensor
    batch: Mapping[str, Tensor]
    weight: Callable[[str], Tensor]  # this rank's shard of a weight, by its name in the model
    whole_keys: Callable[[Relations], Relations]  # adds the keys of whole rows
    over_context: Callable[[Tensor], Tensor]  # sums over ranks with tokens of the same rows
    group: dist.ProcessGroup | None = None  # ranks over which matrices and vocabulary are split
    part: VocabSlice | None = None
    ids: int | None = None  # tokens of the vocabulary, if padding rows follow
    has_first: bool = True  # whether this rank has the rows' first tokens
    is_compiled: bool = False
    is_split: bool = False  # the backward pass has two parts


class Term(NamedTuple):
    """An objective's sum over this rank's rows or tokens. `total` is differentiable; in a group, it is this
    rank's share. `sums`: detached and complete, by suffix of the objective's name.
    """

    total: Tensor
    sums: Mapping[str, Tensor]


def mixed_terms(
    state: State,
    mix: Mix,
    teacher: Side | None,
    rows: Mapping[str, Tensor],
    logit_cache: LogitCache | None = None,
    text: str = "lm",
    others: Mapping[str, Side] = {},
) -> tuple[Tensor, dict[str, Tensor]]:
    """sum_k share_k objective_k over this rank's tokens, differentiable; and the plain sums by name,
    including `text`, the cross-entropy of all scored tokens (unless an objective of another kind has that
    name). `others`: teachers of objectives with another one than `teacher`. `rows` [B]: the rows that an
    objective reads, if not all. Raises as `objective_sums`, and ConfigError if an output that an objective
    needs is missing.
    """
    of_tokens = {name: part for name, part in mix.items() if is_of_tokens(part[0])}
    total, sums = state.hidden_BTD.new_zeros(()), dict[str, Tensor]()
    if text not in mix.keys() - of_tokens.keys():  # otherwise there is no token head to compute
        total, sums = _token_sums(state, of_tokens, teacher, rows, logit_cache, text, others)
    for name, (spec, share) in mix.items():
        if name in of_tokens:
            continue
        term: Term = module_of(spec).terms(spec, state, others.get(name, teacher), rows.get(name))
        total = total + share * term.total
        sums |= {name + suffix: value for suffix, value in term.sums.items()}
    return total, sums


def _token_sums(
    state: State,
    of_tokens: Mix,
    teacher: Side | None,
    rows: Mapping[str, Tensor],
    logit_cache: LogitCache | None,
    text: str,
    others: Mapping[str, Side],
) -> tuple[Tensor, dict[str, Tensor]]:
    return objective_sums(
        state.hidden_BTD,
        state.head_weight_VD,
        state.batch["labels_BT"],
        of_tokens,
        teacher,
        compiled=state.is_compiled,
        part=state.part,
        is_split=state.is_split,
        rows=rows,
        logit_cache=logit_cache,
        text=text,
        others={name: side for name, side in others.items() if name in of_tokens},
        ids=state.ids,
    )
