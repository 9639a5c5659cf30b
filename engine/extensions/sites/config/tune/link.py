"""Sites of a training of two roles, of which one learns from messages of the other. Torch-free."""

from typing import ClassVar

from atelier.engine.config.base import Spec
from atelier.engine.config.tune import FULL_STUDENT, STUDENT, TEACHER
from atelier.engine.extensions.sites.config.train.link import Link


class TuneLink(Link):
    """The site of each role, and the form of the teacher's answers. Over `sites` the student is at home, the
    teacher at another site.
    """

    ROLES: ClassVar[tuple[str, ...]] = (TEACHER, STUDENT, FULL_STUDENT)

    def check_section(self, section: Spec) -> None:
        """As in Link, for a training too."""
        super().check_section(section)
        if self.rows:
            raise ValueError("link.rows: its roles live at different sites; use link.roles")
        if strange := sorted({role for roles in self.roles.values() for role in roles} - {*self.ROLES}):
            raise ValueError(f"link.roles: {strange[0]} is none of {', '.join(self.ROLES)}")
