"""The teacher outputs for a student's rank: its own rows, tokens and vocabulary slice.

If layouts differ, outputs are gathered and split again.

B rows, T tokens, D hidden, V vocabulary, H heads, E head width, W = H E
"""

import torch
from torch import Tensor

from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import ModelSpec
from atelier.engine.loop.stage import ForwardResult
from atelier.engine.model.contract import Relations
from atelier.engine.objective.chunked import TeacherSide
from atelier.engine.parallel.collective import all_parts
from atelier.engine.parallel.context import in_order, places
from atelier.engine.parallel.grid import Grid


def lies_alike(student: Grid, teacher: Grid) -> bool:
    mine, theirs = student.axes, teacher.axes
    return (mine.data, mine.context, mine.tensor) == (theirs.data, theirs.context, theirs.tensor)


def check_same_ids(student: ModelSpec, teacher: ModelSpec) -> None:
    """Raise ConfigError for models with different numbers of tokens; padding rows may differ."""
    if student.ids != teacher.ids:
        sizes = f"{teacher.ids} tokens, the student's {student.ids}"
        raise ConfigError(
            "objective", f"the teacher's vocabulary has {sizes}", "give both the same tokenizer"
        )


def own_rows(batch: dict[str, Tensor], student: Grid, teacher: Grid) -> dict[str, Tensor]:
    """The student's rows of a teacher's micro-batch, if several student data ranks share one teacher data
    rank.
    """
    parts = student.axes.data // teacher.axes.data
    if parts == 1:
        return batch
    index = student.data_index % parts
    return {name: value.chunk(parts)[index] for name, value in batch.items()}


def teacher_side_for(
    student: Grid, teacher: Grid, result: ForwardResult, length: int, *, rows: int, with_relations: bool
) -> TeacherSide:
    """The teacher's outputs for the student's tokens. A collective of the teacher's ranks if layouts differ.
    `length`: tokens per row; `rows`: of the student's whole head.
    """
    if lies_alike(student, teacher):
        head_VD, logit_cache = result.head_weight_VD, result.logit_cache
        if len(head_VD) * teacher.axes.tensor != rows:  # the cache has logits of other rows
            head_VD, logit_cache = _own_head(head_VD, student, teacher, rows), None
        return TeacherSide(result.hidden_BTD, head_VD, result.relations, logit_cache)
    hidden_BTD = _own(_whole_tokens(result.hidden_BTD, teacher, 1), student, teacher, 1, length)
    head_VD = _own_head(result.head_weight_VD, student, teacher, rows)
    if result.relations is None or not with_relations:
        return TeacherSide(hidden_BTD, head_VD)
    dealt = (_own(whole, student, teacher, 1, length) for whole in _whole_heads(result.relations, teacher))
    return TeacherSide(hidden_BTD, head_VD, Relations(*(_own_heads(x_BTW, student) for x_BTW in dealt)))


def _own_head(head_VD: Tensor, student: Grid, teacher: Grid, rows: int) -> Tensor:
    """The student's slice of the teacher's head, with as many rows as its own: they may differ in padding
    rows, which are not compared.
    """
    group, size = teacher.group("tensor"), student.axes.tensor
    if group is not None:
        head_VD = all_parts(head_VD, group).flatten(0, 1)
    head_VD = head_VD[:rows]
    if missing := rows - len(head_VD):
        head_VD = torch.cat([head_VD, head_VD.new_zeros(missing, head_VD.shape[1])])
    return head_VD if size == 1 else head_VD.chunk(size)[student.places["tensor"]]


def _whole_tokens(part: Tensor, teacher: Grid, dim: int) -> Tensor:
    group = teacher.group("context")
    return part if group is None else in_order(all_parts(part, group), teacher.axes.context, dim=dim)


def _own(whole: Tensor, student: Grid, teacher: Grid, dim: int, length: int) -> Tensor:
    """The student's rows and tokens."""
    parts = student.axes.data // teacher.axes.data
    whole = whole.chunk(parts)[student.data_index % parts]
    if student.axes.context == 1:
        return whole
    return whole.index_select(dim, places(length, student).to(whole.device))


def _whole_heads(relations: Relations, teacher: Grid) -> list[Tensor]:
    """Queries and keys of all tokens, all heads side by side [B, T, W].

    Gathered before rows and tokens are split: ranks that share the teacher's heads may hold different rows or
    tokens of the student.
    """
    query, key = relations
    copies, group = query.shape[1] // key.shape[1], teacher.group("tensor")
    found = []
    for part_BHTE, repeated in ((query, 1), (key, copies)):
        whole = _whole_tokens(part_BHTE, teacher, 2)
        if group is not None:
            whole = torch.cat(list(all_parts(whole, group)), dim=1)
        found.append(whole.repeat_interleave(repeated, 1).transpose(1, 2).flatten(2))
    return found


def _own_heads(whole_BTW: Tensor, student: Grid) -> Tensor:
    """The slice of the teacher's width from which this rank's relation heads are cut, as one head."""
    size = student.axes.tensor
    part_BTW = whole_BTW if size == 1 else whole_BTW.chunk(size, dim=2)[student.places["tensor"]]
    return part_BTW.unsqueeze(1)
