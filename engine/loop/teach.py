"""What a student's ranks get of their teacher's outputs: its own rows, tokens and slice of the vocabulary.

A student may lie otherwise on the ranks that hold the teacher's outputs: then these are put together first
and dealt out anew. B rows, T tokens, D hidden, V vocabulary
"""

import torch
from torch import Tensor

from engine.loop.learner import Forward
from engine.model.output import Relations
from engine.objective.chunked import TeacherSide
from engine.parallel.collective import all_parts
from engine.parallel.context import in_order, places
from engine.parallel.grid import Grid


def lies_alike(student: Grid, teacher: Grid) -> bool:
    mine, theirs = student.axes, teacher.axes
    return (mine.data, mine.context, mine.tensor) == (theirs.data, theirs.context, theirs.tensor)


def own_rows(batch: dict[str, Tensor], student: Grid, teacher: Grid) -> dict[str, Tensor]:
    """The student's rows of a micro-batch of its teacher, of which several ranks have the same."""
    parts = student.axes.data // teacher.axes.data
    if parts == 1:
        return batch
    index = student.data_index % parts
    return {name: value.chunk(parts)[index] for name, value in batch.items()}


def side_for(
    student: Grid, teacher: Grid, result: Forward, length: int, *, with_relations: bool
) -> TeacherSide:
    """The teacher's side of the student's tokens. A collective of the teacher's ranks where they lie
    otherwise; `length`: tokens of a row.
    """
    if lies_alike(student, teacher):
        return TeacherSide(result.hidden_BTD, result.head_weight_VD, result.relations, result.said)
    hidden_BTD = _own(_whole_tokens(result.hidden_BTD, teacher, 1), student, teacher, 1, length)
    group, head_VD = teacher.group("tensor"), result.head_weight_VD
    if group is not None:
        head_VD = all_parts(head_VD, group).flatten(0, 1)
    if student.axes.tensor > 1:
        head_VD = head_VD.chunk(student.axes.tensor)[student.places["tensor"]]
    if result.relations is None or not with_relations:
        return TeacherSide(hidden_BTD, head_VD)
    query, key = result.relations
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)  # else heads could not be dealt out anew
    dealt = (
        _own_heads(_own(_whole_tokens(x, teacher, 2), student, teacher, 2, length), student, teacher)
        for x in (query, key)
    )
    return TeacherSide(hidden_BTD, head_VD, Relations(*dealt))


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


def _own_heads(part_BHTE: Tensor, student: Grid, teacher: Grid) -> Tensor:
    """Of all the teacher's heads the run that this rank's relation heads are cut from."""
    group = teacher.group("tensor")
    if group is not None:
        part_BHTE = torch.cat(list(all_parts(part_BHTE, group)), dim=1)
    size = student.axes.tensor
    return part_BHTE if size == 1 else part_BHTE.chunk(size, dim=1)[student.places["tensor"]]
