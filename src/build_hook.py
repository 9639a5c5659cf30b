"""Write the built commit into a wheel or sdist: records name it, and frozen code equals the checkout's."""

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NOTE = ".code.json"  # as in infra/code/provenance.py
PLACES = {"wheel": f"atelier/{NOTE}", "sdist": f"src/{NOTE}"}


class CommitStamp(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the note; an sdist passes on its own, and without a git checkout there is none."""
        if version == "editable" or self.target_name not in PLACES:
            return
        note = Path(self.root) / PLACES["sdist"]
        if not note.exists():
            if Path(self._git("rev-parse", "--show-toplevel") or "/") != Path(self.root).resolve():
                return  # no git, or a folder inside another repository
            commit = self._git("rev-parse", "HEAD")
            diff = self._git("diff", "HEAD") + "".join(self._new_files())
            about = {"commit": commit, "diff": hashlib.sha256(diff.encode()).hexdigest()[:16] if diff else ""}
            self._folder = tempfile.TemporaryDirectory()
            note = Path(self._folder.name) / NOTE
            note.write_text(json.dumps(about, sort_keys=True))
        build_data["force_include"][str(note)] = PLACES[self.target_name]

    def _new_files(self) -> Iterator[str]:
        """As in infra/code/provenance.py, so that a wheel and its checkout say the same."""
        for name in self._git("ls-files", "--others", "--exclude-standard").splitlines():
            yield name
            if name.endswith((".py", ".yaml")):
                yield hashlib.sha256((Path(self.root) / name).read_bytes()).hexdigest()

    def _git(self, *words: str) -> str:
        try:
            done = subprocess.run(
                ["git", "-C", self.root, *words], capture_output=True, text=True, check=False
            )
        except OSError:
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""
