"""The roles that a gang trains: all, unless an extension trains some at other sites. Torch-free."""

from collections.abc import Callable, Collection, Mapping

from atelier.engine.config.kind_files import extension_class
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Member
from atelier.engine.config.sections import extensions_of
from atelier.engine.config.train import Train
from atelier.engine.config.trajectory import Segment

Segments = Mapping[str, list[Segment]]
CodeMap = dict[str, dict[str, str]]  # digests of the parts of files


class RolePlacement:
    """All roles in one gang. Extensions define subclasses in placement.py.

    `roles`: all roles of the training. `parts`: the gangs of a divided training, by name; empty = one gang.
    """

    def __init__(self, train: Train, roles: Mapping[str, Role]) -> None:
        self.train, self.roles = train, roles

    @property
    def parts(self) -> dict[str, Train]:
        """The trainings that this one is divided into, by name, with the settings of each gang."""
        return {}

    def part_of(self, role: str) -> str:
        """The part that trains a role."""
        return ""

    @property
    def claim(self) -> str:
        """The purpose of a claim that keeps other runs from training a trajectory; '' = no claim."""
        return ""

    def roles_here(self) -> dict[str, Role]:
        """The roles of this gang, without teachers at other sites."""
        return {**self.roles}

    def check_finished(self, section: str) -> None:
        """Raise ConfigError for finished models on a site where nothing runs. `section`: configuration
        section of the settings.
        """

    def asked_from(self, segments: Segments) -> dict[str, int]:
        """The roles here that other sites still need, each with the step from which to train it again."""
        return {}

    def tell_finished(self, finished: Collection[str], segments: Segments) -> None:
        """Tell the teachers at other sites which roles here are finished."""

    def with_others(
        self,
        members: Mapping[str, Member],
        segments: Segments,
        vocab: int,
        maps: Mapping[str, CodeMap],
        digest_of: Callable[[CodeMap], str],
        *,
        accept_code: bool,
        section: str,
    ) -> dict[str, Member]:
        """The gang's members plus the roles at other sites that teach them or learn from them. `maps`: code
        of all roles; `accept_code`: lessons may come from other code. Raises ConfigError if something does
        not fit the vocabulary.
        """
        return {**members}


def placement_of(train: Train, roles: Mapping[str, Role]) -> RolePlacement:
    """The placement of these roles, from an extension if one defines it."""
    classes = (extension_class(name, "placement", RolePlacement) for name in sorted(extensions_of(train)))
    return next((each for each in classes if each), RolePlacement)(train, roles)


def with_teachers(members: Mapping[str, Member], roles: Mapping[str, Role], vocab: int) -> dict[str, Member]:
    """The gang's members plus teachers without part in it, for finished roles that need no steps: such a role
    may have weights of its teacher's size.
    """
    away = {
        teacher: roles[teacher]
        for name in members
        for teacher in (roles[name].teachers if name in roles else ())
        if teacher in roles and teacher not in members
    }
    return {**members} | {
        name: Member(
            role=role.model_copy(update={"model": role.model.resolved(vocab), "teacher": ""}),
            mode="elsewhere",
        )
        for name, role in away.items()
    }
