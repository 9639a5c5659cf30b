"""Stamps the commit that a wheel is built from into it: records name it, and the code that runs freeze is
that of the checkout.
"""

import hashlib
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NOTE = ".code.json"  # as in infra/code/provenance.py


class CommitStamp(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put `atelier/.code.json` into the wheel, unless this is no git checkout or an editable install."""
        if self.target_name != "wheel" or version == "editable":
            return
        commit = self._git("rev-parse", "HEAD")
        if not commit:
            return
        diff = self._git("diff", "HEAD") + self._git("ls-files", "--others", "--exclude-standard")
        about = {"commit": commit, "diff": hashlib.sha256(diff.encode()).hexdigest()[:16] if diff else ""}
        self._folder = tempfile.TemporaryDirectory()
        note = Path(self._folder.name) / NOTE
        note.write_text(json.dumps(about, sort_keys=True))
        build_data["force_include"][str(note)] = f"atelier/{NOTE}"

    def _git(self, *words: str) -> str:
        done = subprocess.run(["git", "-C", self.root, *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""
