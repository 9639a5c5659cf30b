"""A rank that records the GPUs that it sees, `begin` and `end`; it ends once its file `go` exists."""

import json
import os
import sys
import time
from pathlib import Path

from atelier.engine.io.artifact import ArtifactOutput


def main(arguments: list[str]) -> int:
    run = json.loads(Path(arguments[0]).read_text())
    config = run["config"]
    note(config["log"], "begin", run["ids"]["flow"])
    while not Path(config["go"]).exists():
        time.sleep(0.02)
    note(config["log"], "end", run["ids"]["flow"])
    for url in run["outputs"].values() if os.environ["RANK"] == "0" else ():
        output = ArtifactOutput(url)
        output.add_bytes("done", b"1")
        output.close({})
    return 0


def note(log: str, what: str, flow: str) -> None:
    line = json.dumps([what, flow, os.environ["CUDA_VISIBLE_DEVICES"], os.environ["LOCAL_RANK"]])
    with open(log, "a") as file:
        file.write(f"{line}\n")


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)
