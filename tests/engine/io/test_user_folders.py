"""Find the user's home folder and name without environment variables, for example in a container."""

import getpass
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.io import user_folders
from atelier.engine.io.user_folders import (
    cache_folder,
    complete_user,
    drop_unreadable,
    expanded,
    home,
    own_folder,
    user_name,
)
from atelier.infra.stack.settings import pages_folder
from tests.checkout import TOP

NOBODY = ("unshare", "--user", "--map-user=54321", "--map-group=54321")  # no entry in passwd has this number


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process has no HOME and no entry in passwd; its folder of temporary files is returned."""
    for key in ("HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR", *user_folders.NAMES):
        monkeypatch.setenv(key, "")  # so that what a test adds is gone after it
        monkeypatch.delenv(key)
    monkeypatch.setattr(user_folders, "_entry", lambda: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_without_home_and_passwd_the_folder_is_a_private_one_beside_temporary_files(nobody: Path) -> None:
    spare = nobody / f"atelier-{os.getuid()}"
    assert (home(), own_folder(), cache_folder()) == (spare, *[spare / ".cache" / "atelier"] * 2)
    assert stat.S_IMODE(spare.stat().st_mode) == 0o700 and user_name() == f"uid-{os.getuid()}"


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_a_folder_there_that_others_may_have_made_is_refused(nobody: Path, kind: str) -> None:
    spare = nobody / f"atelier-{os.getuid()}"
    if kind == "open":
        spare.mkdir()
        spare.chmod(0o777)
    elif kind == "link":
        (nobody / "elsewhere").mkdir(mode=0o700)
        spare.symlink_to(nobody / "elsewhere")
    else:
        spare.touch()
    with pytest.raises(ConfigError, match=r"HOME: no folder for this user.*set HOME"):
        home()


@pytest.mark.parametrize("given", ["/dev/null", "/nonexistent/home", ".", ""])
def test_a_home_that_is_no_folder_is_neither_used_nor_made(
    nobody: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("HOME", given)
    complete_user(os.environ)
    assert Path.home() == home() == nobody / f"atelier-{os.getuid()}"
    assert not Path("/nonexistent").exists()


def test_a_home_and_a_cache_folder_that_can_be_written_are_used(
    nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nobody / "me").mkdir()
    monkeypatch.setenv("HOME", str(nobody / "me"))
    assert (home(), cache_folder()) == (nobody / "me", nobody / "me" / ".cache" / "atelier")
    monkeypatch.setenv("XDG_CACHE_HOME", str(nobody / "cache"))
    assert cache_folder() == nobody / "cache" / "atelier" and cache_folder() in pages_folder().parents
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == own_folder()


def test_libraries_get_a_home_and_a_name(nobody: Path) -> None:
    complete_user(os.environ)
    spare = nobody / f"atelier-{os.getuid()}"
    assert Path.home() == spare and os.environ["USER"] == f"uid-{os.getuid()}"
    assert getpass.getuser() == user_name()


def test_matplotlib_gets_a_folder_where_the_home_is_read_only(
    nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(nobody))
    monkeypatch.setattr(os, "access", lambda place, mode: not str(place).startswith(str(nobody)))
    complete_user(os.environ)
    assert os.environ["HOME"] == str(nobody)
    assert Path(os.environ["MPLCONFIGDIR"]).is_relative_to(nobody / f"atelier-{os.getuid()}")


def test_what_the_user_has_set_stays(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(nobody))
    monkeypatch.setenv("LOGNAME", "ada")
    before = dict(os.environ)
    complete_user(os.environ)
    assert os.environ == before and user_name() == "ada"


def test_a_path_with_a_tilde_is_refused_in_one_line_where_no_home_is_known(nobody: Path) -> None:
    with pytest.raises(ConfigError, match="~nobody-knows/site: no home folder is known"):
        expanded("~nobody-knows/site", "--keys")


def test_no_other_file_asks_for_the_home_or_the_users_name() -> None:
    words = ("Path.home(", "getuser(", ".expanduser(")
    folders = ("engine", "flows", "infra", "tasks", "src")
    asking = [
        path
        for folder in folders
        for path in (TOP / folder).rglob("*.py")
        if path != Path(user_folders.__file__).resolve() and any(word in path.read_text() for word in words)
    ]
    assert asking == []


def without_passwd(folder: Path, *words: str, **given: str) -> subprocess.CompletedProcess[str]:
    """`atelier <words>` as a user without entry in passwd, with the environment `given` and little more."""
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(folder), "ATELIER_ROOT": str(folder / "s"), **given}
    environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    settings = [f"{key}={value}" for key, value in environment.items()]
    command = [*NOBODY, "env", "-i", *settings, sys.executable, "-m", "atelier", *words]
    if subprocess.run([*NOBODY, "true"], capture_output=True, check=False).returncode:
        pytest.skip("user namespaces are not allowed here")
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("given", [{}, {"HOME": "/proc"}])
def test_a_user_without_passwd_entry_plans(given: dict[str, str], tmp_path: Path) -> None:
    done = without_passwd(tmp_path, "plan", "corpus", **given)
    assert done.returncode == 0 and "trace" not in done.stderr, done.stderr


@pytest.mark.slow
def test_a_user_without_passwd_entry_trains_and_gets_pictures(tmp_path: Path) -> None:
    words = ("pretrain", "experiment=tiny", "train.steps=4", "score.baselines=false")
    done = without_passwd(tmp_path, *words, HOME="/proc")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("s/report/*/payload-*/*.png"))


def test_a_date_that_libraries_cannot_read_is_left_out_with_a_note() -> None:
    """numpy reads it when it is imported: nothing would reach MLflow."""
    for text in ("true", "", "-1", "1,2", "\u0661"):
        environment = {"SOURCE_DATE_EPOCH": text}
        [note] = drop_unreadable(environment)
        assert "need a whole number" in note and not environment
    assert not drop_unreadable({}) and not drop_unreadable({"SOURCE_DATE_EPOCH": "315532800"})
