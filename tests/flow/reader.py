"""A reader of the documentation: a machine with a clone that was set up, and a shell to type commands in."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.chat_templates import write_talks
from tests.checkout import TOP
from tests.flow import small
from tests.ports import free_port
from tests.prefect_server import started

FOREIGN = ("ATELIER_", "PREFECT_HOME", "PREFECT_API", "MLFLOW_TRACKING", "PYTHONPATH", "VIRTUAL_ENV")
OWN_MODEL = ("engine/config/model/gpt.py", "engine/model/gpt.py", "conf/model/gpt_nano.yaml")
ROW = {
    "model": {"kind": "gpt", "num_layers": 12, "hidden": 768, "num_heads": 12, "vocab": 50304},
    "parallel": {"shard": 8},
    "train": {"steps": 100, "global_batch": 512, "sequence": 2048},
    "pool": {"gpu": "h100"},
}
LABELLED = {
    "english": {"good": "praise", "bad": "blame"},
    "german": {"gut": "praise", "schlecht": "blame"},
}
NEWEST = {"<id>": "runs/*.json", "<run>": "runs/*.json", "<its id>": "sweeps/*", "3f2a": "sweeps/*"}


class Machine:
    """A repository of this checkout as it is now, a clone of it, and what `make setup` makes there."""

    def __init__(self, base: Path) -> None:
        self.base, self.source, self.checkout = base, base / "source", base / "checkout"
        listed = ["git", "-C", str(TOP), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0"):
            if name and (TOP / name).exists():
                (self.source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(TOP / name, self.source / name, follow_symlinks=False)
        commit = ["-c", "user.name=reader", "-c", "user.email=reader@localhost", "commit", "-qm", "as it is"]
        for words in (["init", "-q"], ["add", "--all"], commit):
            subprocess.run(["git", "-C", str(self.source), *words], check=True)
        subprocess.run(["git", "clone", "-q", str(self.source), str(self.checkout)], check=True)
        self._give_inputs(self.checkout)
        self._set_up()
        self.prefect = started(base / "prefect")

    def _set_up(self) -> None:
        """`make setup` as it is, where every library is there already: pip asks no index."""
        venv = self.checkout / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        [site] = venv.glob("lib/python*/site-packages")
        (site / "libraries.pth").write_text("\n".join(p for p in sys.path if "site-packages" in p) + "\n")
        offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}  # 0: there is none
        subprocess.run(["make", "setup"], cwd=self.checkout, env=self.env | offline, check=True)
        command, python = venv / "bin" / "atelier", venv / "bin" / "python"
        command.rename(whole := command.with_stem("atelier-whole"))
        scripts = {command: f"{small.__file__} {whole}", command.with_stem("prefect"): "-m prefect"}
        for script, words in scripts.items():
            script.write_text(f'#!/bin/sh\nexec {python} {words} "$@"\n')
            script.chmod(0o755)

    @property
    def env(self) -> dict[str, str]:
        """Of a shell in which nothing is activated and no server is known."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
        own = str(Path(sys.executable).parent)
        return kept | {"PATH": os.pathsep.join(p for p in kept["PATH"].split(os.pathsep) if p != own)}

    def _give_inputs(self, checkout: Path) -> None:
        """What the pages speak of as the reader's: texts, labels, a row to plan, a model kind `own`."""
        (checkout / "texts").mkdir()
        pages = [page.read_text() for page in sorted((TOP / "docs").rglob("*.md"))]
        for name, texts in {"pages": pages, "prose": map(prose, pages)}.items():
            lines = [json.dumps({"text": text}) for text in texts]
            (checkout / "texts" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        (checkout / "talks").mkdir()
        write_talks(checkout / "talks" / "depths.jsonl", 40)
        (checkout / "row.json").write_text(json.dumps(ROW))
        for language, words in LABELLED.items():
            rows = [
                {"text": f"{number} {word}", "label": label, "group": str(number)}
                for number in range(60)
                for word, label in words.items()
            ]
            (checkout / f"{language}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
        for name in OWN_MODEL:
            text = (checkout / name).read_text()
            own = text.replace('"gpt"', '"own"').replace("kind: gpt", "kind: own")
            (checkout / name).with_stem("own").write_text(own)

    def entered(self, folder: Path) -> None:
        """A new clone gets the environment, as new as its own `make setup` would make it, and the inputs."""
        if (folder / "Makefile").exists() and not (folder / ".venv").exists():
            self._give_inputs(folder)
            (folder / ".venv").symlink_to(self.checkout / ".venv")
            (self.checkout / ".venv" / ".installed").touch()

    def reader(self, name: str, clones: bool = False, *, has_server: bool = True) -> "Reader":
        """Has a store of his own, and begins in the activated checkout if he does not clone it himself. One
        who does not clone is given a Prefect server, unless he starts one: no command waits for its own.
        """
        home = self.base / re.sub(r"\W", "-", name)
        home.mkdir()
        ports = f"--prefect-port {free_port()} --mlflow-port {free_port()}"
        env = self.env | {"ATELIER_ROOT": str(home / "store"), small.PORTS: ports}
        if has_server and not clones:
            env |= self.prefect.client()
        found = Reader(self, home if clones else self.checkout, env)
        assert clones or found(". .venv/bin/activate").returncode == 0
        return found


@dataclass
class Reader:
    """A shell: what a command exports, and the folder that it leads to, are the next one's."""

    machine: Machine
    folder: Path
    env: dict[str, str]

    def __call__(self, text: str) -> subprocess.CompletedProcess[str]:
        state = self.machine.base / "state"
        script = f"set -o pipefail\n{self.filled(text)}\ncode=$?\n{{ pwd; env -0; }} >'{state}'\nexit $code\n"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.env, input="y\n" * 9, capture_output=True,
            text=True,
        )  # fmt: skip
        folder, _, variables = state.read_text().partition("\n")
        self.folder = Path(folder)
        self.env = dict(one.split("=", 1) for one in variables.split("\0") if one)
        self.machine.entered(self.folder)
        return done

    def filled(self, text: str) -> str:
        """The command with what a reader puts in: names of his own, ids of the newest in his store."""
        store = Path(self.env["ATELIER_ROOT"])
        for mark, pattern in NEWEST.items():
            there = sorted(store.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in there[: text.count(mark)]:
                text = text.replace(mark, path.stem, 1)
        text = text.replace("<this repository>", str(self.machine.source))
        return text.replace("<name>", "own").replace("<pool>", "slurm")


def prose(page: str) -> str:
    """The plain paragraphs of a page, which filters of web text keep."""
    found = [" ".join(part.split()) for part in page.split("\n\n") if part[:1].isupper() and "|" not in part]
    return re.sub("`[^`]*`", "it", "\n\n".join(found))
