"""The state that a teacher's checkpoint keeps for students that are steps behind. Torch-free.

A lesson is what a teacher sends: its answers, or what an extension defines in config/lesson/<name>.py.
"""

from atelier.engine.config.base import ANSWERS
from atelier.engine.config.kind_files import kind_module

LESSONS = "config/lesson"  # of extensions


def state_of(lesson: str) -> str:
    """The name of what a teacher's checkpoint keeps for its students; '' = nothing."""
    return str(kind_module(LESSONS, lesson, "STATE").STATE) if lesson != ANSWERS else ""
