"""Sites of a training in which a small model learns from a pretrained one. Torch-free."""

from atelier.engine.config.base import Spec
from atelier.engine.config.tune import STUDENT, TEACHER
from atelier.engine.extensions.sites.config.train.link import Link


class TuneLink(Link):
    """The site of each role, and the form of the teacher's answers. Over `sites` the student is at home, the
    teacher at another site.
    """

    def check_section(self, section: Spec) -> None:
        """As in Link, for a training too."""
        super().check_section(section)
        if self.rows:
            raise ValueError("link.rows: its roles live at different sites; use link.roles")
        if strange := sorted({role for roles in self.roles.values() for role in roles} - {TEACHER, STUDENT}):
            raise ValueError(f"link.roles: {strange[0]} is neither {TEACHER} nor {STUDENT}")
