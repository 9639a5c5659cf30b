"""What may be lost at any time: files that save work, never the only copy of anything."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/atelier, ~/.cache/atelier without one. It need not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "atelier"
