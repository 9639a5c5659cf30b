import signal
import subprocess
import sys
from pathlib import Path

import pytest

from atelier.infra.store.file_lock import file_lock

HOLD = """
import sys, time
from pathlib import Path
from atelier.infra.store.file_lock import file_lock
file = file_lock(Path(sys.argv[1]))
print("held" if file else "not", flush=True)
time.sleep(600)
"""


def test_one_process_has_it_until_it_is_dead(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        assert file_lock(path) is None
        other.send_signal(signal.SIGKILL)
        other.wait()
        with pytest.raises(FileNotFoundError):
            file_lock(tmp_path / "nowhere" / "lock")
        own = file_lock(path)
        assert own is not None and file_lock(path) is None
        own.write("kept")
        own.close()
        again = file_lock(path)
        assert again is not None and path.read_text() == "kept"
        again.close()
