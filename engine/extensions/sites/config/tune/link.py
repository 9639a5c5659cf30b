"""Sites of a training in which one model learns from the outputs of another. Torch-free."""

from typing import ClassVar

from atelier.engine.config.tune import STUDENT, TEACHER
from atelier.engine.extensions.sites.config.two_roles import TwoRolesLink


class TuneLink(TwoRolesLink):
    """The site of each role, and the form of the teacher's answers. Over `sites` the student is at home, the
    teacher at another site.
    """

    ROLES: ClassVar[tuple[str, str]] = (TEACHER, STUDENT)
