"""End roles whose training has diverged. A diverged role and its students take no more steps and are neither
checkpointed nor published, so their last good checkpoints stay. Other roles finish and are published; then
the training ends with an error that names the lost roles. A note in a diverged role's trajectory keeps a
resumed training from waiting for it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from atelier.engine.config.error import AllDivergedError, AtelierError, DivergedError
from atelier.engine.config.train import Health
from atelier.engine.io.storage import join, write_bytes
from atelier.engine.loop.report import ProgressReport
from atelier.engine.loop.resume import DIVERGED
from atelier.engine.loop.role_state import RoleState, is_finite

WAY_OUT = "lower its optim.lr or raise its optim.schedule.warmup; checkpoints before are kept"


class Diverged:
    """The roles of a training that were ended. `goes_on`: whether other roles can continue without them."""

    def __init__(
        self, members: Sequence[RoleState], health: Health, report: ProgressReport, *, goes_on: bool
    ) -> None:
        self._members, self._report = members, report
        self._goes_on = goes_on and health.nan != "stop"
        self._problems: dict[str, str] = {}  # by diverged role, without its students
        self._lost: list[str] = []

    def remember(self, ended: Mapping[str, str]) -> None:
        """Add roles that ended in an earlier run, with the reason."""
        self._problems |= ended
        self._lost += ended

    def check_held_out(self, member: RoleState, looks: Mapping[str, float]) -> None:
        """End the role if one of these held-out means is not finite. Raises as `end`."""
        wrong = [f"{name} {value}" for name, value in looks.items() if not is_finite(value)]
        if wrong:
            place = f"roles.{member.name}: step {member.step}"
            self.end(
                member, f"{place}: {', '.join(wrong)} is not finite, so its weights are unusable; {WAY_OUT}"
            )

    def end(self, member: RoleState, problem: str) -> None:
        """End the role and its unfinished students. Raises AllDivergedError if no role is left, another
        AtelierError if the others cannot continue without them.
        """
        ended = [each for each in self._members if each is member or self._needs(each, member.name)]
        left = [each for each in self._members if each.is_kept and not (each.has_diverged or each in ended)]
        may_go_on = self._goes_on and not any(each.taps for each in ended)
        if not (may_go_on and left):
            kind = AllDivergedError if may_go_on else AtelierError
            raise kind("; ".join(dict.fromkeys([*self._problems.values(), problem])))
        for each in ended:
            each.has_diverged = True
            if each.is_kept and each.gang.is_first:
                self._note(each, problem)
        others = [each.name for each in ended if each is not member]
        with_it = f" with its students {', '.join(others)}" if others else ""
        self._report.say(warning=f"{problem}; it ends here{with_it}; training continues with {_names(left)}")
        self._problems[member.name] = problem
        self._lost += [each.name for each in ended]

    def _note(self, member: RoleState, problem: str) -> None:
        place = join(member.spec.segments[-1].url, DIVERGED)
        try:
            write_bytes(place, problem.encode())
        except Exception as error:  # errors differ by store; without the note it diverges again when resumed
            self._report.say(warning=f"{place} could not be written: {error}")

    def clocks(self, begin: int, end: int) -> Iterator[int]:
        """The steps from `begin` to `end`, or until the last role that has not diverged ends."""
        clock = begin
        while clock < end:
            yield clock
            clock += 1
            if self._problems:
                end = max(each.end for each in self._members if each.is_kept and not each.has_diverged)

    def check(self) -> None:
        """Raise DivergedError, which names the unpublished roles, if roles were ended."""
        if self._lost:
            raise not_published(self._problems.values(), self._lost)

    def _needs(self, member: RoleState, teacher: str) -> bool:
        """Whether a role has steps left and learns from `teacher`, directly or not."""
        if member.has_diverged or not member.moves or member.step >= member.end:
            return False
        by_name = {each.name: each for each in self._members}
        above = member.role.teacher
        while above in by_name and above != teacher:
            above = by_name[above].role.teacher
        return above == teacher


def _names(members: Sequence[RoleState]) -> str:
    return ", ".join(each.name for each in members)


def together(errors: Mapping[str, AllDivergedError | DivergedError], num_trainings: int) -> AtelierError:
    """Combine the errors of several trainings, by their outputs' names; an AllDivergedError if nothing is
    published.
    """
    places = {names: f"{names}: " if num_trainings > 1 else "" for names in errors}
    text = "; ".join(f"{places[names]}{error}" for names, error in errors.items())
    is_any_published = len(errors) < num_trainings or any(
        isinstance(error, DivergedError) for error in errors.values()
    )
    return (DivergedError if is_any_published else AllDivergedError)(text)


def not_published(problems: Iterable[str], lost: Sequence[str]) -> DivergedError:
    said = "; ".join(dict.fromkeys(problems))
    return DivergedError(f"{said}; {', '.join(lost)}: not published, all other roles are")
