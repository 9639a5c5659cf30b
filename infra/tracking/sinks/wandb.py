"""Weights & Biases: a run per trajectory, with the same id in every session.

Without WANDB_API_KEY, with WANDB_MODE=offline or while the server is unreachable, a session is a folder
`offline-run-*-<id>` for `wandb sync`, under $WANDB_DIR or the store. W&B buffers these writes, so a killed
session lacks its last rows; and it uploads each folder from its first row. So every session's folder has the
whole curve, and replaces earlier folders that were not uploaded. W&B accepts no row of an earlier step than
its last one.
"""

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from atelier.engine.io.storage import is_local, local_path
from atelier.engine.io.user_folders import home
from atelier.infra.store.store import SHORT, Store
from atelier.infra.tracking.about import RunInfo
from atelier.infra.tracking.curve import CurveRow
from atelier.infra.tracking.retry_worker import first_line
from atelier.infra.tracking.sink import CurveInfo

KEY, MODE, DIR, PROJECT = "WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"
SERVICE = "WANDB_SERVICE"  # W&B's log-writing process, inherited by child processes; here each has its own
DEFAULTS = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
for _name, _value in DEFAULTS.items():
    os.environ.setdefault(_name, _value)  # before the import, which reads them
os.environ.pop(SERVICE, None)

import wandb  # noqa: E402

EXIT = {"FINISHED": 0, "FAILED": 1, "KILLED": 143}  # W&B tells a finished run from others by its exit code
ANSWER_S = 30.0
REACH_S = 5.0
WRITTEN_S = 5.0
LAST = b"atelier_status"  # the summary's key that is written last
COMPLETE = "atelier-complete"  # its files have the number of written points of a trajectory


class Board:
    """W&B's project for a flow."""

    label = "W&B"

    def __init__(self, folder: Path, about: RunInfo) -> None:
        self.folder, self.about = folder, about
        self.project = os.environ.get(PROJECT) or about.flow
        is_wanted = bool(os.environ.get(KEY)) and os.environ.get(MODE, "online") == "online"
        self.is_online = is_wanted and _answers()
        self.problem = ""  # why W&B refused a run: it allows no second try in one process
        self.written: dict[str, str] = {}

    @property
    def runs(self) -> Path:
        """The folder for W&B's runs."""
        return self.folder / "wandb"

    def curve(self, about: CurveInfo) -> "WandbCurve":
        return WandbCurve(self, about)

    def complete(self, run: str) -> Path:
        return self.runs / COMPLETE / run

    def sessions(self, run: str) -> list[Path]:
        """Folders of earlier sessions of a run that were not uploaded."""
        found = self.runs.glob(f"offline-run-*-{run}")
        return [path for path in found if not (path / f"run-{run}.wandb.synced").exists()]

    def forget(self, fingerprint: str) -> None:
        run = fingerprint[:SHORT]
        self.complete(run).unlink(missing_ok=True)
        for path in self.sessions(run):
            shutil.rmtree(path)

    def places(self) -> list[str]:
        return list(self.written.values())

    def ping(self) -> None: ...

    def is_lasting(self, error: Exception) -> bool:
        return True


class WandbCurve:
    """One run of W&B."""

    def __init__(self, board: Board, about: CurveInfo) -> None:
        self.board, self.about = board, about
        self.id = about.fingerprint[:SHORT]
        self._run: wandb.Run | None = None
        self._rows: list[CurveRow] = []  # offline: the whole curve
        self._num_points = 0
        self._there = -1  # online: the server has the curve up to this step

    def add(self, rows: Sequence[CurveRow]) -> None:
        known = [*self._rows, *rows]
        num_points = sum(len(row.values) for row in known)
        if self._run is None and num_points > self._num_complete():
            self._log(self._open(), known)
        elif self._run is not None:
            self._log(self._run, rows)
        self._rows, self._num_points = known, num_points

    def _log(self, run: wandb.Run, rows: Sequence[CurveRow]) -> None:
        for row in rows:
            if row.step > self._there:
                run.log({**row.values, "_timestamp": row.time}, step=row.step)

    def _num_complete(self) -> int:
        with suppress(OSError, ValueError):
            return int(self.board.complete(self.id).read_text())
        return 0

    def _open(self) -> wandb.Run:
        board = self.board
        before = [] if board.is_online else board.sessions(self.id)
        board.folder.mkdir(parents=True, exist_ok=True)
        if board.problem:
            raise ConnectionError(board.problem)
        try:
            self._run = run = self._init()
            os.environ.pop(SERVICE, None)  # only for this process, not for its children
        except Exception as error:  # any error of wandb
            board.problem = first_line(error).replace(os.environ.get(KEY) or "\n", "***")
            raise ConnectionError(board.problem) from None
        if board.is_online:
            self._there = run.step - 1 if run.resumed else -1
            board.written[self.id] = str(run.url)
            return run
        board.written[self.id] = f"wandb sync {Path(run.dir).parent}"
        for path in before:
            shutil.rmtree(path, ignore_errors=True)
        return run

    def _init(self) -> wandb.Run:
        board, about = self.board, self.about
        return wandb.init(
            id=self.id,
            name=about.name,
            project=board.project,
            group=board.about.sweep or board.about.run_id,
            config={**about.params, "atelier": about.tags},
            dir=str(board.folder),
            mode="online" if board.is_online else "offline",
            resume="allow" if board.is_online else None,
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                save_code=False,
                disable_git=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
                init_timeout=ANSWER_S,
                finish_timeout=ANSWER_S,
            ),
        )

    def finish(self, status: str, last: CurveRow | None) -> None:
        if self._run is not None:
            self.add([last] if last else [])
            self._run.log(
                {}, step=self._rows[-1].step, commit=True
            )  # else the last row comes after the summary
            self._run.summary[LAST.decode()] = status
            log = Path(self._run.dir).parent / f"run-{self.id}.wandb"
            self._run.finish(exit_code=EXIT.get(status, 1))
            self._run = None
            if not self.board.is_online and not _is_written(log):
                return
            complete = self.board.complete(self.id)
            complete.parent.mkdir(parents=True, exist_ok=True)
            complete.write_text(str(self._num_points))


def open_sink(store: Store, about: RunInfo) -> Board:
    base = local_path(store.root) if is_local(store.root) else home()
    return Board(Path(os.environ.get(DIR) or base), about)


def _is_written(log: Path) -> bool:
    """Whether W&B's process, for which `finish` does not wait, has written the end of the run."""
    deadline = time.monotonic() + WRITTEN_S
    while LAST not in log.read_bytes():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _answers() -> bool:
    """Whether W&B's server can be reached, through a proxy too."""
    url = os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"
    try:
        urlopen(url, timeout=REACH_S).close()
    except HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True
