"""The state that a forked process starts with, as JSON on its standard output: `python -m
tests.engine.io.forked [act]`. `act`: die (by SIGKILL), fail (exit code 3), raise, or wait (for its end).
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

if "THREADED" in os.environ:  # a module that starts a thread when it is imported
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def main(arguments: list[str]) -> int:
    names = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    found = {
        "env": {key: value for key, value in os.environ.items() if key not in ("PIPE", "LC_CTYPE")},
        "cwd": os.getcwd(),
        "open": len([n for n in names if Path(f"/proc/self/fd/{n}").exists()]),
        "input": os.readlink("/proc/self/fd/0"),
        "leads": os.getsid(0) == os.getpid(),
        "pipe": os.fstat(int(os.environ["PIPE"])).st_ino,
        "argv": sys.argv[1:],
        "shown": Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0")[1:],
        "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "sigint": signal.getsignal(signal.SIGINT) == signal.default_int_handler,
        "sigpipe": signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN,
        "threads": len(os.listdir("/proc/self/task")),
    }
    print(json.dumps(found), flush=True)
    act = arguments[0] if arguments else ""
    if act == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if act == "raise":
        raise RuntimeError("told to")
    if act == "wait":
        time.sleep(600)
    return 3 if act == "fail" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
