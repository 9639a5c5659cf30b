import subprocess
from pathlib import Path

import pytest

from tests.checkout import TOP


@pytest.mark.parametrize("patch", sorted(Path(__file__).parent.glob("*.patch")), ids=lambda path: path.stem)
def test_a_mutant_still_applies(patch: Path) -> None:
    """Whether its test turns red is `make mutants`' to say."""
    done = subprocess.run(["git", "apply", "--check", str(patch)], cwd=TOP, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
