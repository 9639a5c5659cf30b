"""The state that a teacher's checkpoint keeps for students that are steps behind. Torch-free.

A lesson is a teacher's answers, or a kind that an extension defines in config/lesson/<name>.py.
"""

from atelier.engine.config.base import ANSWERS
from atelier.engine.config.kind_files import kind_module

LESSONS = "config/lesson"  # group of extensions' lessons


def state_of(lesson: str) -> str:
    """The name of the state that a teacher's checkpoint keeps for its students; '' = none."""
    return str(kind_module(LESSONS, lesson, "STATE").STATE) if lesson != ANSWERS else ""
