"""What a student's ranks get of their teacher's outputs: its own rows, tokens and slice of the vocabulary.

A student may lie otherwise on the ranks that hold the teacher's outputs: then these are put together first
and dealt out anew. B rows, T tokens, D hidden, V vocabulary
"""

from torch import Tensor

from engine.loop.learner import Forward
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


def side_for(student: Grid, teacher: Grid, result: Forward, length: int) -> TeacherSide:
    """The teacher's side of the student's tokens. A collective of the teacher's ranks where they lie
    otherwise; `length`: tokens of a row.
    """
    if lies_alike(student, teacher):
        return TeacherSide(result.hidden_BTD, result.head_weight_VD)
    hidden_BTD, head_VD = _whole(result, teacher)
    parts = student.axes.data // teacher.axes.data
    hidden_BTD = hidden_BTD.chunk(parts)[student.data_index % parts]
    if student.axes.context > 1:
        hidden_BTD = hidden_BTD.index_select(1, places(length, student).to(hidden_BTD.device))
    if student.axes.tensor > 1:
        head_VD = head_VD.chunk(student.axes.tensor)[student.places["tensor"]]
    return TeacherSide(hidden_BTD, head_VD)


def _whole(result: Forward, teacher: Grid) -> tuple[Tensor, Tensor]:
    hidden_BTD, head_VD = result.hidden_BTD, result.head_weight_VD
    group = teacher.group("context")
    if group is not None:
        hidden_BTD = in_order(all_parts(hidden_BTD, group), teacher.axes.context, dim=1)
    group = teacher.group("tensor")
    if group is not None:
        head_VD = all_parts(head_VD, group).flatten(0, 1)
    return hidden_BTD, head_VD
