"""Base of objectives that classify rows. Torch-free."""

from typing import ClassVar

from atelier.engine.config.error import ConfigError
from atelier.engine.config.own_rows import OwnRows
from atelier.engine.config.registry import ModelSpec

Comparisons = tuple[tuple[tuple[int, int, int], ...], ...]  # by class: (relation, segment, other segment)


class RowClasses(OwnRows):
    """An objective that predicts a row's class: from its first token, with a head of its kind's name, and
    from how its segments fit together if the model has a head for that.
    """

    term: ClassVar[str] = "classes"

    @property
    def comparisons(self) -> Comparisons:
        """For each class, the true relations between segments: (relation, segment, other segment) by number;
        () for rows without segments.
        """
        return ()

    @property
    def num_relations(self) -> int:
        """The number of relations between segments."""
        return 1 + max((relation for said in self.comparisons for relation, _, _ in said), default=-1)

    def check(self, place: str, key: str, model: ModelSpec, teacher: tuple[str, ModelSpec] | None) -> None:
        heads: dict[str, int] = getattr(model, "classes", {})
        self._check_pairs(place, getattr(model, "pairs", {}).get(self.kind, 0))
        if heads.get(self.kind) == self.num_classes:
            return
        known = ", ".join(f"{name}: {size}" for name, size in heads.items()) or "none"
        raise ConfigError(
            f"{place}model.classes",
            f"objective {self.kind} needs a head with {self.num_classes} classes; heads: {known}",
            f"+{place}model.classes.{self.kind}={self.num_classes}"
            if hasattr(model, "classes")
            else "model=ernie_tiny",
        )

    def _check_pairs(self, place: str, width: int) -> None:
        number, field = self.num_relations, f"{place}model.pairs.{self.kind}"
        if width and not number:
            raise ConfigError(
                field, f"rows of objective {self.kind} have no segments to compare", f"~{field}"
            )
        if number and width % number:
            raise ConfigError(
                field, f"{width} is not divisible by the {number} relations of {self.kind}",
                f"{field}={width - width % number + number}",
            )  # fmt: skip
