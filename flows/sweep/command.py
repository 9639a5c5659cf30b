"""`atelier <flow> -m ...`: run a sweep with Hydra's multirun."""

import re
import shlex
import sys
import tempfile
import threading
from typing import TYPE_CHECKING

from atelier.engine.config.direction import which_is_better
from atelier.engine.config.error import ConfigError, StoppedError, printable
from atelier.engine.config.tested import require
from atelier.engine.io.storage import is_local, local_path
from atelier.engine.io.user_folders import own_folder
from atelier.flows.deployments.start import run_to_end
from atelier.flows.run.catalog import CONF, parameters
from atelier.flows.run.compose import SETTINGS
from atelier.flows.run.hydra_document import explained, prepared
from atelier.flows.run.outcome import RunOutcome
from atelier.flows.run.overrides import DRY, check_overrides
from atelier.flows.run.sweep_ledger import FAILED, Ledger, PointEntry, SweepInfo
from atelier.flows.run.sweep_point import SweepPoint
from atelier.flows.run.table import print_table
from atelier.flows.sweep.report import show
from atelier.flows.sweep.session import Session
from atelier.infra.store.store import Store, default_root

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override  # late: 0.15 s


HYDRA = "hydra"
SWEEP_DIR = re.compile(r"\+{0,2}hydra\.sweep\.dir=")  # a folder that the command line gives
LAUNCHER, SWEEPER = "hydra/launcher", "hydra/sweeper"
OUTSIDE = ("pool", "tracker", "parallel")  # where and how points run; not in a sweep's identity


def run_sweep(flow: str, overrides: list[str], command: str) -> int:
    """Run every point, even if others fail. Returns the exit code."""
    words = [word for word in overrides if word != DRY]
    check_overrides([word for word in words if not _is_hydra(word)], is_sweep=True)
    parsed = parse(words, flow)
    chosen = {key: _value(parsed, key) for key in (LAUNCHER, SWEEPER)}
    about = about_of(flow, parsed, chosen[SWEEPER] or "grid")
    store = Store(default_root())
    ledger = Ledger(store, about.id, is_dry=True) if DRY in overrides else Ledger.begin(store, about)
    session = Session(
        flow=flow,
        keys=tuple(key for key, is_swept, _ in parsed if is_swept),
        store=store,
        ledger=ledger,
        command=command,
        run_here=lambda point, sweep, stop: _here(point, store, sweep, stop, ledger.entry(point.number).run),
        launcher=chosen[LAUNCHER] or "",
        is_dry=DRY in overrides,
    )
    defaults = {LAUNCHER: "prefect", SWEEPER: "grid"}
    own = [f"{key}={option}" for key, option in defaults.items() if not chosen[key]]
    if session.is_dry:
        _multirun(flow, words + own, session)
        return _say_plan(session)
    with ledger.held(command):
        try:
            _multirun(flow, words + own, session)
        except StoppedError as error:
            session.say(str(error))
            _finish(session)
            return 1
        return _finish(session)


def parse(words: list[str], flow: str) -> list[tuple[str, bool, str]]:
    """(key, whether it has several values, the word) of each override. Raises ConfigError for unreadable
    overrides and empty ranges.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    found = []
    for word in words:
        try:
            override = parser.parse_override(word)
            key = override.get_key_element().lstrip("+")
            is_swept = override.is_sweep_override()
            is_empty = is_swept and override.is_discrete_sweep() and _is_empty(override)
        except HydraException as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                word,
                f"cannot be read ({reason})",
                "write e.g. train.seed=1,2,3 or optim.lr=choice(1e-3,2e-3)",
            ) from None
        if is_empty:
            raise ConfigError(word, "has no value", "give at least one value to every key")
        if not _is_hydra(word):
            prepared(word, flow, _known(flow), is_sweep=is_swept)
        found.append((key, is_swept, word))
    return found


def _is_empty(override: "Override") -> bool:
    from hydra.core.override_parser.types import Glob

    value = override.value()
    return not isinstance(value, Glob) and next(iter(override.sweep_iterator()), None) is None


def about_of(flow: str, parsed: list[tuple[str, bool, str]], sweeper: str) -> SweepInfo:
    """The identity of the sweep that the overrides describe. With a searching sweeper it has the search
    space. A grid has only the keys, so more values are more points of the same sweep.
    """
    own = [one for one in parsed if not _is_hydra(one[2])]
    fixed = sorted(word for key, is_swept, word in own if not is_swept and _is_inside(key))
    searches = sweeper not in ("grid", "basic")
    keys = sorted(word if searches else key for key, is_swept, word in own if is_swept)
    return SweepInfo(flow=flow, fixed=tuple(fixed), keys=tuple(keys), sweeper=sweeper)


def _is_inside(key: str) -> bool:
    """Whether a key affects results."""
    return key.split("@")[0] not in OUTSIDE and not key.startswith("tracker.")


def _multirun(flow: str, words: list[str], session: Session) -> None:
    """Hydra's multirun with the session as its task function. Raises ConfigError for Hydra's errors,
    and for a version of it that was not tested."""
    require("sweeps")
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    known = _known(flow)
    ready = [word if _is_hydra(word) else prepared(word, flow, known, is_sweep=True) for word in words]
    ready += ["hydra/job_logging=none", "hydra/hydra_logging=none"]
    GlobalHydra.instance().clear()
    with tempfile.TemporaryDirectory(prefix="atelier-") as spare:
        folder = spare if session.is_dry else _folder(session.ledger)
        if not any(SWEEP_DIR.match(word) for word in ready):
            ready += [f"hydra.sweep.dir={_literal(folder)}"]  # Hydra's own files about the sweep
        try:
            driver = Hydra.create_main_hydra2(flow, create_config_search_path(str(CONF)))
            driver.multirun(flow, session, ready, with_log_configuration=False)
        except (HydraException, OmegaConfBaseException) as error:
            raise explained(error) from None
        finally:
            GlobalHydra.instance().clear()


def _folder(ledger: Ledger) -> str:
    if is_local(ledger.folder):
        return str(local_path(ledger.folder))
    return str(own_folder() / "sweeps" / ledger.id)


def _literal(text: str) -> str:
    """`text` as a value of an override that Hydra and OmegaConf read back unchanged."""
    uncalled = re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", text)
    return "'" + re.sub(r"(\\*)'", lambda found: found[1] * 2 + r"\'", uncalled) + "'"


def _here(point: SweepPoint, store: Store, sweep: str, stop: threading.Event, run_id: str) -> RunOutcome:
    frozen = point.frozen
    command = "atelier " + shlex.join([frozen.flow, *frozen.overrides])
    print(f"> #{point.number} {command}")
    return run_to_end(frozen, store, command, sweep, stop, run_id)


def _finish(session: Session) -> int:
    """Print the table of all points, the best one and its command. Returns the exit code."""
    session.revalue()
    entries = session.ledger.entries()
    ours = [entry for entry in entries if entry.number in session.points]
    _print(entries, session)
    failed = [entry for entry in ours if entry.state == FAILED]
    best = session.best()
    for line in show(session, is_failed=bool(failed)):
        print(line)
    for note in session.notes:
        print(note)
    if problem := session.unranked():
        print(f"no best  {problem}")
    if best is not None:
        print(f"ranked   by {best.metric}: {which_is_better(best.direction)}")
        print(f"best     atelier {session.flow} {shlex.join(best.words)}")
    done = sum(entry.state == "done" for entry in ours)
    print(f"sweep {session.ledger.id}: {done} of {len(ours)} points finished")
    return 1 if failed or done + sum(e.state == "pruned" for e in ours) < len(ours) else 0


def _print(entries: list[PointEntry], session: Session) -> None:
    best = session.best()
    print_table(
        ("", "#", "state", "value", "words"),
        [
            (
                "*" if best is not None and entry.number == best.number else "",
                str(entry.number),
                entry.state,
                "" if entry.value is None else f"{entry.value:.4f}",
                " ".join(entry.words) + (f"   {entry.error}" if entry.error else ""),
            )
            for entry in entries
        ],
        right=("#", "value"),
        flexible="words",
    )


def _say_plan(session: Session) -> int:
    """Print what would run, for each point and in all; an artifact of several points counts once. Returns the
    exit code, 2 if a point's plan is refused.
    """
    from atelier.flows.run.plan import make_plan

    seen: set[str] = set()
    rows, run, reuse, hours = [], 0, 0, 0.0
    refused: list[str] = []
    for point in session.points.values():
        plan = make_plan(point.frozen, session.store)
        if plan.refusals:
            refused += [f"#{point.number} {' '.join(point.words)}: {refusal}" for refusal in plan.refusals]
            rows.append((str(point.number), "refused", "", "", " ".join(point.words)))
            continue
        new = [r for r in plan.rows if r["state"] != "reuse" and r["fingerprint"] not in seen]
        seen |= {row["fingerprint"] for row in plan.rows}
        left = sum(row["state"] != "reuse" for row in plan.rows)
        cost = sum(row["device_hours"] for row in new)
        run, reuse, hours = run + len(new), reuse + len(plan.rows) - left, hours + cost
        state = "finished" if not left else "run"
        rows.append((str(point.number), state, str(len(new)), f"{60 * cost:.1f}", " ".join(point.words)))
    print_table(
        ("#", "state", "to make", "min", "words"), rows, right=("#", "to make", "min"), flexible="words"
    )
    to_run = sum(row[1] == "run" for row in rows)
    turned_down = sum(row[1] == "refused" for row in rows)
    print(
        f"sweep {session.ledger.id}: {len(rows)} points, {to_run} to run"
        f"{f', {turned_down} refused' if turned_down else ''}; {run} artifacts to make, {reuse} to reuse,"
        f" about {60 * hours:.1f} min of device time"
    )
    for refusal in refused:
        print(printable(refusal, 0), file=sys.stderr)
    return ConfigError.exit_code if refused else 0


def _is_hydra(word: str) -> bool:
    return word.lstrip("+~").startswith((f"{HYDRA}.", f"{HYDRA}/"))


def _known(flow: str) -> list[str]:
    return [*parameters(flow).model_fields, *SETTINGS]


def _value(parsed: list[tuple[str, bool, str]], key: str) -> str:
    return next((word.partition("=")[2] for found, _, word in parsed if found == key), "")
