"""Helper: a small distillation whose roles live at different sites, with a folder each and a
shared mailbox.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import LessonMessages, Member, Training
from tests.engine.extensions.sites.at_sites import all_at_once
from tests.engine.trainings import ONE, TrainingSetup, model, role, student, train
from tests.parity.cases import finished_model

STEPS = 8
ANSWERS = hashlib.sha256(b"answers").hexdigest()
SIZES = {"precision": "fp64", "global_batch": 4, "micro_batch": 2, "checkpoint_every": 3, "eval_sequences": 2}


class Apart:
    """A teacher at site a, each student at a site of its own."""

    lesson = "answers"  # of the teacher
    sizes: Mapping[str, Any] = SIZES
    code = ""  # of the teacher, as the others compute its digest
    replayed = ""  # the digest of a finished teacher, which is trained again

    def __init__(
        self, folder: Path, text: dict[str, str], *, students: Mapping[str, Role], frozen: bool, **link: Any
    ) -> None:
        self.folder, self.students, self.frozen = folder, students, frozen
        sites = [chr(ord("b") + number) for number in range(len(students))]
        self.site_of = dict(zip(students, sites, strict=True))
        roles = {"a": ["teacher"]} | {site: [name] for name, site in self.site_of.items()}
        self.link = {"roles": roles, "mailbox": str(folder / "mail")} | link
        self.setups = {site: TrainingSetup(folder / site, dict(text)) for site in roles}

    def teacher(self, setup: TrainingSetup, steps: int) -> Member:
        if self.frozen:
            return finished_model(setup, "teacher", model(32), seed=1)
        if self.replayed:
            return setup.member(
                "teacher", role(32, lr=1e-2), steps, mode="replay", output=False, digest=self.replayed
            )
        return setup.member("teacher", role(32, lr=1e-2), steps)

    def whole(self, folder: Path, text: dict[str, str], steps: int = STEPS, **more: Any) -> TrainingSetup:
        """The same roles in one gang, trained."""
        setup = TrainingSetup(folder, dict(text))
        roles = {"teacher": self.teacher(setup, steps), **self.students}
        setup.train(setup.training(roles, train(steps, **({**self.sizes} | more))))
        return setup

    def lessons(self, code: str) -> dict[str, LessonMessages]:
        return {self.lesson: LessonMessages(trajectory=ANSWERS, code=code)}

    def training(self, site: str, steps: int = STEPS, **more: Any) -> Training:
        setup, link = self.setups[site], self.link | {"site": site}
        teacher = self.teacher(setup, steps)
        if site == "a":
            away = {
                name: Member(role=spec, mode="elsewhere", trajectory=setup.segment(name, 0, 1).fingerprint)
                for name, spec in self.students.items()
            }
            members = {"teacher": teacher.model_copy(update={"lessons": self.lessons(teacher.code)}), **away}
        else:
            setup.inputs.pop("teacher", None)
            here = {name: spec for name, spec in self.students.items() if self.site_of[name] == site}
            none = {"segments": (), "output": "", "init": ""}
            away = teacher.model_copy(
                update={"mode": "elsewhere", "lessons": self.lessons(self.code), "code": self.code, **none}
            )
            members = {"teacher": away, **here}
        return setup.training(members, train(steps, **({**self.sizes} | {"link": link} | more)))

    def write(self, site: str, layout: Parallel = ONE, **more: Any) -> str:
        """The run file of a site."""
        setup = self.setups[site]
        run = setup.run_file(self.training(site, **more), layout=layout)
        setup.folder.mkdir(exist_ok=True, parents=True)
        path = setup.folder / "run.json"
        path.write_text(run.model_dump_json(by_alias=True))
        return str(path)

    def train(self, **more: Any) -> None:
        """All sites at once, each in a thread."""
        all_at_once(self.setups, lambda site: self.setups[site].train(self.training(site, **more)))

    def losses(self, name: str, setup: TrainingSetup | None = None) -> list[float]:
        setup = setup or self.setups[self.site_of.get(name, "a")]
        return [line["values"]["loss"] for line in setup.curve(name)]


def taught(**more: Any) -> Role:
    """A student that learns mostly from its teacher."""
    return student(16, weight=2.0, lr=1e-2, **more)


def sent(site: Apart) -> list[Path]:
    """The folders of the messages that lie in the mailbox, in their order."""
    return sorted((site.folder / "mail" / ANSWERS[:16]).glob("round-*"))
