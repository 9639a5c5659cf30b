"""`hydra/sweeper=optuna`: Optuna proposes points; several run at once, and unpromising ones are pruned.

Values are written in Hydra's syntax: `optim.lr=tag(log, interval(1e-4, 1e-1))`, `train.seed=range(1, 9)`,
`model=choice(gpt_nano, gpt_mini)`; a plain `key=value` is fixed. Settings (`hydra.sweeper.<...>`):
  trials      number of points, those of earlier calls included
  metric      `<model>.<key of its summary>`, or a list of them (several objectives)
  direction   minimize or maximize, or a list; '' = the metric's declared direction
  sampler     tpe or random;  seed, of the sampler
  prune       whether to stop a point whose metric is worse than the median of the others at the same step;
              auto = if training records the metric
  startup     number of first points that are random and never pruned
  only_if     {key: {other: value}}: vary the key only where another has this value
The study's journal is in the sweep's folder, so the same command resumes it.
"""

from collections.abc import Mapping, Sequence
from typing import TypedDict, cast

import optuna
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from optuna.distributions import (
    BaseDistribution,
    CategoricalChoiceType,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from atelier.engine.config.base import Json, JsonObject
from atelier.engine.config.direction import (
    DIRECTIONS,
    EVAL_LOSS,
    HELD_OUT_LOSS,
    OF_CURVES,
    is_held_out_loss,
    sign_of,
)
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError
from atelier.engine.config.tested import require
from atelier.engine.io.storage import is_local, join, local_path
from atelier.flows.run.sweep_ledger import DONE, PRUNED, STOPPED, PointEntry
from atelier.flows.run.sweep_point import SweepPoint
from atelier.flows.sweep.executor import Ending
from atelier.flows.sweep.pruning import unrecorded
from atelier.flows.sweep.session import Session, direction_of, listed
from atelier.infra.report.held_out import WAY_OUT, differing
from atelier.infra.store.run_manifest import measured

NUMBER = "atelier.number"  # a trial's point number
WORDS = "atelier.words"
JOURNAL = "optuna.journal"
SAMPLERS = ("tpe", "random")
AUTO = "auto"


def sweep(session: Session, words: list[Override], settings: JsonObject, width: int) -> Sequence[FrozenTrial]:
    """Run the study until it has `trials` points. Returns the best trials."""
    require("suggestions")
    search = Search(session, words, settings)
    if session.is_dry:
        while search.ask() is not None:  # proposals without results
            pass
        return []
    session.drive(search.ask, search.tell, search.look, width)
    if len(search.metrics) > 1:
        session.notes += search.trade_offs()
    return search.study.best_trials


class OptunaSettings(TypedDict):
    """`hydra.sweeper` of this sweeper; metric and direction are single or lists."""

    metric: str | list[str]
    direction: str | list[str]
    trials: int
    seed: int
    sampler: str
    prune: bool | str
    startup: int
    only_if: dict[str, Json] | None


class Search:
    """An Optuna study whose trials are points of a sweep. Raises ConfigError for invalid settings and an
    unreadable journal.
    """

    def __init__(self, session: Session, words: list[Override], settings: JsonObject) -> None:
        self.session, self.settings = session, cast(OptunaSettings, settings)
        self.fixed = [one.input_line or "" for one in words if not one.is_sweep_override()]
        self.space = {one.get_key_element(): distribution(one) for one in words if one.is_sweep_override()}
        self.conditions = self._conditions()
        self.metrics = listed(settings["metric"])
        self.directions = self._directions()
        self.study = self._study()
        self.sets: dict[str, tuple[str, str | None]] = {}  # held-out set of the first point, by metric
        self.looked_at = ""
        self._restore()
        for known in self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            if (number := known.user_attrs.get(NUMBER)) is not None:
                self._problem(self.session.ledger.entry(number))
        self.prune: bool | None = None  # not known before the first point
        self.trials: dict[int, Trial] = {}
        self._again = [t for t in self.study.get_trials(deepcopy=False) if t.state == TrialState.RUNNING]

    def ask(self) -> SweepPoint | None:
        """The next point: an unfinished one of an earlier call, else a new proposal; None if there are
        enough.
        """
        while True:
            trial, words = self._next()
            if trial is None:
                return None
            [point] = self.session.enter([words])
            if self.prune is None:
                self.prune = self._prunes(point)
            trial.set_user_attr(NUMBER, point.number)
            trial.set_user_attr(WORDS, words)
            self.trials[point.number] = trial
            left = self.session.left([point])
            if left:
                return left[0]
            self.tell(point, Ending(DONE))  # finished for another trial, or earlier

    def tell(self, point: SweepPoint, ending: Ending) -> None:
        """Report a point's ending to the study. A point that the user stopped stays open."""
        if ending.state != DONE or self.session.ledger.entry(point.number).state != DONE:
            self.session.tell(point, ending)
        trial = self.trials.pop(point.number)
        if ending.state == STOPPED:
            return
        metrics = self._metrics_of(point)
        values = [value for metric in metrics if (value := point.value(metric)) is not None]
        if ending.state == DONE and (problem := self._problem(self.session.ledger.entry(point.number))):
            self.session.say(f"#{point.number} is left out: {problem}; {WAY_OUT}")
            self.study.tell(trial, state=TrialState.PRUNED)
        elif ending.state == DONE and len(values) == len(metrics):
            self.study.tell(trial, values)
        else:
            self.study.tell(trial, state=TrialState.PRUNED if ending.state == PRUNED else TrialState.FAIL)

    def trade_offs(self) -> list[str]:
        """The Pareto front, a line for each point: no other is better in every metric."""
        sign = sign_of(self.directions[0])
        front = sorted(self.study.best_trials, key=lambda trial: sign * trial.values[0])
        return [
            f"no point is better in every metric than #{trial.user_attrs[NUMBER]}: "
            + ", ".join(f"{name} {value:.4g}" for name, value in zip(self.metrics, trial.values, strict=True))
            for trial in front
        ]

    def _problem(self, entry: PointEntry) -> str:
        """The reason to leave a finished point's value out of the study, or '': it was measured on another
        held-out set than the first point's.
        """
        for metric in self._metrics_as(entry.metric):
            own = f"#{entry.number}", self.session.set_of(entry, metric)
            if problem := differing([self.sets.setdefault(metric, own), own]):
                return problem
        return ""

    def look(self, point: SweepPoint, step: int, value: float) -> bool:
        """Report the metric's value at a step to the study; False = stop the point."""
        trial = self.trials[point.number]
        self.looked_at = self.looked_at or point.looked_at
        is_of_set = is_held_out_loss(self._metrics_as(EVAL_LOSS)[0])
        if self.prune is False or (
            is_of_set and point.looked_at != self.looked_at
        ):  # nothing to compare with
            return True
        trial.report(value, step)
        return not trial.should_prune()

    def _prunes(self, point: SweepPoint) -> bool:
        """Whether points are pruned. Raises ConfigError for prune=true if no values are recorded."""
        place, given = "hydra.sweeper.prune", self.settings["prune"]
        if given not in (True, False, AUTO):
            raise ConfigError(place, f"is {given!r}", "give true, false or auto")
        if given is False:
            return False
        metrics = self._metrics_of(point)
        problem = unrecorded(point, metrics[0]) if len(metrics) == 1 else "there are several metrics"
        if problem and given is True:
            raise ConfigError(place, f"is true, but {problem}", "give auto or false, or one recorded metric")
        if problem:
            self.session.say(f"no point is pruned: {problem}")
        return not problem

    def _next(self) -> tuple[Trial | None, list[str]]:
        if self._again:
            frozen = self._again.pop(0)
            trial = Trial(self.study, frozen._trial_id)
            known = frozen.user_attrs.get(WORDS)
            return trial, list(known) if known else self._words(trial)
        open_or_good = [t for t in self.study.get_trials(deepcopy=False) if t.state != TrialState.FAIL]
        if len(open_or_good) >= int(self.settings["trials"]):
            return None, []
        trial = self.study.ask()
        return trial, self._words(trial)

    def _words(self, trial: Trial) -> list[str]:
        """The overrides that the trial proposes. Conditional keys come after the keys that they depend on."""
        chosen: dict[str, CategoricalChoiceType] = {}
        for key in sorted(self.space, key=lambda key: _plain(key) in self.conditions):
            wanted = self.conditions.get(_plain(key), {})
            if any(str(chosen.get(other)) != str(value) for other, value in wanted.items()):
                continue
            chosen[_plain(key)] = trial._suggest(key, self.space[key])
        marks = {_plain(key): key for key in self.space}
        return [*self.fixed, *(f"{marks[key]}={value}" for key, value in chosen.items())]

    def _conditions(self) -> dict[str, dict[str, Json]]:
        """For each key, values of other keys with which it is varied. Raises ConfigError for a key that is
        not varied itself.
        """
        found: dict[str, dict[str, Json]] = {}
        varied = {_plain(key) for key in self.space}
        for key, wanted in section_of(self.settings["only_if"]).items():
            if not isinstance(wanted, Mapping):
                raise ConfigError(
                    "hydra.sweeper.only_if",
                    f"{key}: {wanted!r}",
                    "give e.g. {optim.beta2: {optim: adamw}}",
                )
            for one in (key, *wanted):
                if one not in varied:
                    raise ConfigError(
                        "hydra.sweeper.only_if",
                        f"{one} is not varied",
                        "name a key that has several values",
                    )
            found[str(key)] = dict(wanted)
        return found

    def _metrics_of(self, point: SweepPoint) -> list[str]:
        return self._metrics_as(self.session.metric_of(point))

    def _metrics_as(self, own: str) -> list[str]:
        return self.metrics if self.metrics != [""] else [own]

    def _directions(self) -> list[str]:
        given = listed(self.settings["direction"])
        given = given * len(self.metrics) if len(given) == 1 else given
        if len(given) != len(self.metrics):
            raise ConfigError(
                "hydra.sweeper.direction",
                f"is {given}",
                f"give one of {', '.join(DIRECTIONS)} for each metric",
            )
        return [direction_of(metric, one) for metric, one in zip(self.metrics, given, strict=True)]

    def _study_name(self) -> str:
        """The study's name: another metric or direction is another study."""
        if self.metrics == [""] and self.directions == [OF_CURVES[HELD_OUT_LOSS]]:
            return self.session.ledger.id
        return " ".join((self.session.ledger.id, *self.metrics, *self.directions))

    def _study(self) -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        if self.settings["sampler"] not in SAMPLERS:
            raise ConfigError(
                "hydra.sweeper.sampler",
                f"is {self.settings['sampler']!r}",
                f"there are: {', '.join(SAMPLERS)}",
            )
        if not self.space:
            raise ConfigError(
                "sweep", "nothing is varied", "give a key values: optim.lr=interval(1e-4, 1e-2)"
            )
        startup, seed = int(self.settings["startup"]), int(self.settings["seed"])
        samplers = {
            "tpe": lambda: optuna.samplers.TPESampler(
                n_startup_trials=startup, seed=seed, constant_liar=True
            ),
            "random": lambda: optuna.samplers.RandomSampler(seed=seed),
        }
        return optuna.create_study(
            storage=self._storage(),
            study_name=self._study_name(),
            directions=[StudyDirection[one.upper()] for one in self.directions],
            load_if_exists=True,
            sampler=samplers[self.settings["sampler"]](),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=startup),
        )

    def _restore(self) -> None:
        """Rebuild a study that is new, or lost its journal, from the finished points."""
        done = [entry for entry in self.session.ledger.entries() if entry.state == DONE]
        if self.metrics == [""]:  # points compared by another metric are proposed again
            done = [entry for entry in done if is_held_out_loss(entry.metric)]
        if not done or self.study.get_trials(deepcopy=False):
            return
        for entry in done:
            found = [measured(self.session.store, entry.rows, m) for m in self._metrics_as(entry.metric)]
            params = self._params(entry.words)
            if params is None or None in found or self._problem(entry):
                continue
            trial = optuna.create_trial(
                params=params,
                distributions={key: self.space[key] for key in params},
                values=[value[0] for value in found if value is not None],
                user_attrs={NUMBER: entry.number, WORDS: entry.words},
            )
            self.study.add_trial(trial)
        if self.session.is_dry:  # a dry run has no journal
            return
        number = len(self.study.get_trials(deepcopy=False))
        self.session.say(
            f"{JOURNAL} lacks this study; {number} points were restored from the sweep's own files"
        )

    def _params(self, words: Sequence[str]) -> dict[str, int | float | str] | None:
        """The search-space values in a point's overrides; None if one is outside the space."""
        texts = {key: text for key, _, text in (word.partition("=") for word in words)}
        found: dict[str, int | float | str] = {}
        for key, space in self.space.items():
            text = texts.get(key, texts.get(_plain(key)))
            if text is None:
                continue
            kind = {IntDistribution: int, FloatDistribution: float}.get(type(space), str)
            value = kind(text)
            if not space._contains(space.to_internal_repr(value)):
                return None
            found[key] = value
        return found

    def _storage(self) -> BaseStorage:
        """A journal in the sweep's folder."""
        if self.session.is_dry:
            return InMemoryStorage()
        folder = self.session.ledger.folder
        if not is_local(folder):
            raise ConfigError(
                "ATELIER_ROOT",
                f"{folder} is not a local folder",
                "hydra/sweeper=grid works with any store",
            )
        path = str(local_path(join(folder, JOURNAL)))
        try:
            return JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))
        except (ValueError, KeyError, AssertionError) as error:
            raise ConfigError(
                JOURNAL,
                f"{path} cannot be read ({error})",
                "move it away; the study restarts with the finished points",
            ) from None


def distribution(override: Override) -> BaseDistribution:
    """Optuna's distribution of a swept override. Raises ConfigError for an empty interval."""
    value = override.value()
    place = override.get_key_element()
    if isinstance(value, IntervalSweep):
        assert value.start is not None and value.end is not None
        if value.start >= value.end:
            raise ConfigError(
                place, f"{override.input_line}: the interval is empty", "give interval(low, high)"
            )
        is_log = "log" in value.tags
        if isinstance(value.start, int) and isinstance(value.end, int):
            return IntDistribution(value.start, value.end, log=is_log)
        return FloatDistribution(float(value.start), float(value.end), log=is_log)
    if isinstance(value, RangeSweep | ChoiceSweep):
        return CategoricalDistribution(list(override.sweep_string_iterator()))
    return CategoricalDistribution(list(override.sweep_string_iterator()))  # for a glob over a group


def _plain(key: str) -> str:
    return key.lstrip("+")
