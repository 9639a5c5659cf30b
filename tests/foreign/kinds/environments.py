"""Environment variables of foreign machines: a cheap command works in them, or is refused in one line."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.checkout import python_path
from tests.foreign.search import Case

COUNT, SLOW = 20, True
DEAD = "http://127.0.0.1:9"
HERE = "{folder}"  # an empty folder of the case
PLACES = (
    "",
    ".",
    "relative",
    "/dev/null",
    "/nonexistent/x",
    "/proc",
    HERE,
    HERE + "/a b",
    HERE + "/ü\n",
    "~",
)
PROXIES = (
    DEAD, "", "proxy:3128", "socks5://127.0.0.1:9", "SOCKS5h://u:p@h:1", "http://u:p%40@h:1", "http://h:port",
    "http://[bad", "ftp://x", "::1", " http://h:1 ", "http://", "https://h:1", "http://ü.example:1",
)  # fmt: skip
EXEMPT = (
    "",
    "*",
    "a,*",
    "[::1]",
    "::1/128",
    "localhost",
    "10.0.0.0/8, .corp",
    "a b",
    "foo:bar",
    "ü.example",
    ",,",
)
SWITCHES = ("", "0", "1", "true", "yes", "nope", "-1", "9999", "1,2")
LOCALES = ("C", "POSIX", "C.UTF-8", "de_DE.ISO-8859-1", "en_US.UTF-8", "tr_TR.UTF-8", "xx", "")
URIS = (
    "", DEAD, "databricks", "sqlite:///", "sqlite:////nonexistent/x.db", "file:///nonexistent", "ftp://x",
    "http://[bad", "mlflow.db", "http://u:p@127.0.0.1:9", "postgresql://h/db",
)  # fmt: skip
VARIABLES: dict[str, tuple[str, ...]] = {
    **{name: PLACES for name in (
        "HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
        "PREFECT_HOME", "MPLCONFIGDIR", "HF_HOME", "VIRTUAL_ENV", "GIT_DIR", "GIT_WORK_TREE", "PWD", "CDPATH",
        "FSSPEC_CONFIG_DIR", "ATELIER_LOCKS", "ATELIER_SITE", "PYTHONPYCACHEPREFIX",
    )},
    **{name: PROXIES for name in (
        "http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "grpc_proxy",
    )},
    **{name: EXEMPT for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy")},
    **{name: SWITCHES for name in (
        "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "HYDRA_FULL_ERROR", "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "COLUMNS", "LINES", "PYTHONUNBUFFERED", "DEBUG",
        "CI", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID",
        "PREFECT_DEBUG_MODE", "PREFECT_CLIENT_MAX_RETRIES", "PREFECT_RESULTS_PERSIST_BY_DEFAULT",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "ATELIER_THAWED", "SOURCE_DATE_EPOCH",
    )},
    **{name: LOCALES for name in ("LANG", "LC_ALL", "LC_CTYPE", "LANGUAGE")},
    "PYTHONUTF8": ("0", "1"),
    "PYTHONCOERCECLOCALE": ("0", "warn"),
    "PYTHONIOENCODING": ("latin-1", "ascii", "utf-8:strict", "utf-16", ":replace"),
    "PYTHONWARNINGS": ("error", "default", "ignore", "nope", "error::DeprecationWarning"),
    "PYTHONHASHSEED": ("0", "random", "4294967295"),
    "PYTHONOPTIMIZE": ("1", "2"),
    "PYTHONSAFEPATH": ("1",),
    "PYTHONDEVMODE": ("1",),
    "PYTHONDONTWRITEBYTECODE": ("1",),
    "PYTHONSTARTUP": ("/nonexistent",),
    "PYTHONINTMAXSTRDIGITS": ("640", "0"),
    "PYTHONMALLOC": ("malloc", "debug"),
    "TERM": ("", "dumb", "xterm-256color", "unknown", "ansi"),
    "TZ": ("", "UTC", "Nowhere/Bad", ":", "Asia/Kathmandu", "<+99>-99"),
    "PATH": ("", "/usr/bin:/bin", "relative", "/nonexistent"),
    "SHELL": ("", "/nonexistent"),
    "LOGNAME": ("", "ü", "a b"),
    "CUDA_VISIBLE_DEVICES": ("", "-1", "0,0", "abc", "GPU-", "7"),
    "MLFLOW_TRACKING_URI": URIS,
    "MLFLOW_REGISTRY_URI": URIS,
    "MLFLOW_EXPERIMENT_NAME": ("", "ü", "x" * 600),
    "MLFLOW_RUN_ID": ("gone",),
    "PREFECT_API_URL": ("", "nonsense", DEAD + "/api", "http://[bad", "ftp://x"),
    "PREFECT_PROFILE": ("gone", "", "default"),
    "PREFECT_API_KEY": ("pnu_gone",),
    "PREFECT_LOGGING_LEVEL": ("NOPE", "DEBUG", ""),
    "PREFECT_SERVER_API_PORT": ("x", "0"),
    "MASTER_ADDR": ("nowhere",),
    "AWS_PROFILE": ("gone",),
    "FSSPEC_S3": ("{bad", "{}"),
    "MPLBACKEND": ("TkAgg", "nope", "agg"),
    "GIT_CONFIG_COUNT": ("1", "x"),
    "ATELIER_LEASES": ("", "nonsense", "postgresql://127.0.0.1:9/x"),
    "ATELIER_MLFLOW_URL": ("nonsense",),
}  # fmt: skip
ABSENT = ("HOME", "PATH", "LANG", "USER")
COMMANDS = (
    ("plan", "pretrain", "experiment=tiny"), ("plan", "distill", "experiment=tiny", "--json"), ("list",),
    ("runs",), ("models",), ("help", "pretrain"), ("--version",),
    ("plan", "pretrain", "train.stepz=3"),
)  # fmt: skip
BASE = {"PATH": os.environ.get("PATH", ""), "HOME": HERE, "LANG": "C.UTF-8", "USER": "ada"}
NOBODY = ("unshare", "--user", "--map-user=54321", "--map-group=54321")
AS_IT_IS = "import sys; from atelier.__main__ import main; sys.exit(main())"
PROGRAM = [AS_IT_IS]
NOTES = ("note: ", "Invalid -W option")  # lines besides; the second is of Python itself


def draw(rng: random.Random) -> Case:
    names = rng.sample(sorted(VARIABLES), rng.choice((1, 1, 2, 3, 5, 8)))
    return {
        "set": {name: rng.choice(VARIABLES[name]) for name in names},
        "absent": rng.sample(ABSENT, rng.choice((0, 1, 1, 2))),
        "passwd": rng.random() < 0.4,
        "command": list(rng.choice(COMMANDS)),
    }


def environment(case: Case, folder: Path) -> dict[str, str]:
    """What the case's process has in its environment."""
    found = {key: value for key, value in BASE.items() if key not in case["absent"]} | case["set"]
    return {key: value.replace(HERE, str(folder)) for key, value in found.items()}


def check(case: Case, folder: Path) -> str:
    given = environment(case, folder) | {"ATELIER_ROOT": str(folder / "store"), "PYTHONPATH": python_path()}
    before = () if case["passwd"] or not _has_namespaces() else NOBODY
    command = [*before, sys.executable, "-c", PROGRAM[0], *case["command"]]
    done = subprocess.run(
        command, env=given, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, timeout=60,
        check=False, executable=shutil.which(command[0]),
    )  # fmt: skip
    said = done.stderr.decode(errors="backslashreplace")
    assert "Traceback" not in said and "a fault in the program" not in said, said
    if "train.stepz=3" in case["command"]:
        assert done.returncode == 2 and "did you mean steps" in said, said
    if done.returncode == 0:
        return "works"
    lines = [line for line in said.splitlines() if not line.startswith(NOTES)]
    assert done.returncode == 2 and len(lines) == 1, f"exit code {done.returncode}: {said}"
    return "refused"


@cache
def _has_namespaces() -> bool:
    """Whether a process here may get a user without an entry in passwd."""
    return not subprocess.run([*NOBODY, "true"], capture_output=True, check=False).returncode


@contextmanager
def broken() -> Iterator[None]:
    """Atelier asks Path.home() again, which fails where nothing names the home."""
    PROGRAM[0] = (
        "from pathlib import Path; import atelier.engine.io.user_folders as folders;"
        "folders.home = Path.home; folders.complete_user = lambda environment: None;" + AS_IT_IS
    )
    try:
        yield
    finally:
        PROGRAM[0] = AS_IT_IS
