"""What a teacher keeps of its lessons for students that are steps behind. A lesson other than its answers is
an extension's file config/lesson/<name>.py. Torch-free.
"""

from atelier.engine.config.base import ANSWERS
from atelier.engine.config.kind_files import kind_module

LESSONS = "config/lesson"  # of extensions


def state_of(lesson: str) -> str:
    """The name of what a teacher's checkpoint keeps for its students; '' = nothing."""
    return str(kind_module(LESSONS, lesson, "STATE").STATE) if lesson != ANSWERS else ""
