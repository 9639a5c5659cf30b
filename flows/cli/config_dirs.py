"""Folders of settings that a command line adds: `--config-dir DIR` and `hydra.searchpath=[DIR,...]`, as in
other programs with Hydra. Each has conf's groups: DIR/model/mine.yaml is the option model=mine. They hold no
code.
"""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from atelier.engine.config.error import ConfigError
from atelier.engine.io.user_folders import with_home
from atelier.flows.run.catalog import SETTINGS, settings_folders

FLAGS = ("--config-dir", "-cd")
KEY = re.compile(r"\+{0,2}hydra\.searchpath=(?P<value>.*)", re.DOTALL)
LIST = re.compile(r"\[(?P<items>.*)\]", re.DOTALL)
FILE = "file://"


def take_config_dirs(words: Sequence[str]) -> list[str]:
    """The words without those that name folders; this process and those that it starts read these folders.
    Raises ConfigError for a folder that does not exist.
    """
    rest, folders, left = list[str](), list[str](), iter(words)
    for word in left:
        flag, is_given, value = word.partition("=")
        if flag in FLAGS:
            value = value if is_given else next(left, "")
            if not value:
                raise ConfigError(flag, "needs a value", f"{flag}=<folder>")
            folders.append(value)
        elif match := KEY.fullmatch(word):
            folders += _listed(match["value"])
        else:
            rest.append(word)
    add_config_dirs(folders)
    return rest


def add_config_dirs(folders: Iterable[str]) -> None:
    """Read these folders from now on, after those that are read already."""
    places = [_folder(one) for one in folders]
    if places:
        every = dict.fromkeys([*settings_folders(), *places])
        os.environ[SETTINGS] = os.pathsep.join(map(str, every))


def _listed(value: str) -> list[str]:
    match = LIST.fullmatch(value.strip())
    if match is None:
        raise ConfigError("hydra.searchpath", f"{value} is not a list", "hydra.searchpath=[file://<folder>]")
    return [item.strip().strip("'\"") for item in match["items"].split(",") if item.strip()]


def _folder(text: str) -> Path:
    if "://" in text and not text.startswith(FILE):
        way_out = f"write {FILE}<folder>; a package with settings is a project (docs/extend/own-project.md)"
        raise ConfigError("hydra.searchpath", f"{text} is not a folder", way_out)
    folder = Path(with_home(text.removeprefix(FILE))).absolute()
    if not folder.is_dir():
        raise ConfigError(FLAGS[0], f"{folder} is not a folder", "give one with folders such as model/")
    if os.pathsep in str(folder):
        raise ConfigError(FLAGS[0], f"{folder} has a {os.pathsep}", "rename the folder")
    return folder
