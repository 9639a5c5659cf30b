"""What sites exchange of a role: the weights that are trained, as entries of a message, from its
configuration alone. Torch-free.
"""

from collections.abc import Mapping

from atelier.engine.config.foreign.adapters import INNER, OUTER
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role
from atelier.engine.io.tensorfile import TensorEntry
from atelier.engine.link.encoded import Layout

Shapes = dict[str, tuple[int, ...]]
MATRIX = ".weight"


def exchanged(role: Role, model: ModelSpec, *, precision: str, widths: Mapping[str, int]) -> Layout | None:
    """The trained weights of a role whose model, with a vocabulary that is known, is `model`. `widths`: of
    roles, its teachers among them; None where a weight has that of a teacher which is not there.
    """
    found = _trained(role, model)
    for key, spec in role.objective.items():
        if teacher := role.teacher_of(key):
            added = spec.added(model, widths.get(teacher, 0))
            if any(0 in shape for shape in added.values()):
                return None
            found |= added
    dtype = "F64" if precision == "fp64" else "F32"
    return {name: TensorEntry(name, dtype, found[name]) for name in sorted(found)}


def _trained(role: Role, model: ModelSpec) -> Shapes:
    how, shapes = role.trainable, model.shapes()
    if how.kind == "none":
        return {}
    if how.kind == "parts":
        return {name: shape for name, shape in shapes.items() if name.split(".")[0] in how.parts}
    if how.kind == "prompt":
        return {"soft.weight": (how.length, model.hidden)}
    if how.kind == "full":
        return dict(shapes)
    found: Shapes = {}
    for name, shape in shapes.items():
        path = name.removesuffix(MATRIX)
        is_target = "blocks." in name and path.rsplit(".", 1)[-1] in how.targets
        if is_target and name.endswith(MATRIX) and len(shape) == 2:
            found[path + INNER], found[path + OUTER] = (how.rank, shape[1]), (shape[0], how.rank)
    return found
