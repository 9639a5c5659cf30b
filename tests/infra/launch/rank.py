"""A rank without torch, `python -m tests.infra.launch.rank run.json`: makes checkpoint folders, dies as often
as its config asks, then writes its output.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from atelier.engine.io.artifact import ArtifactOutput
from atelier.engine.io.heartbeat import PULSE, RankProgress, heartbeat_file


def stand_still(rank: int) -> None:
    """Stop this process, with the heartbeat of a rank in its third step."""
    heartbeat_file(os.environ[PULSE], rank).write_bytes(RankProgress(3, 2, 0.5, "forward").pack())
    os.kill(os.getpid(), signal.SIGSTOP)


def main(arguments: list[str]) -> int:
    run = json.loads(Path(arguments[0]).read_text())
    config, rank = run["config"], int(os.environ["RANK"])
    if rank != config["who"]:
        time.sleep(600)  # until it is ended
    lives = Path(run["scratch"]) / "lives"
    life = int(lives.read_text()) if lives.exists() else 0
    lives.write_text(str(life + 1))
    if config["gains"]:
        (Path(config["trajectory"]) / "checkpoints" / f"step-{life + 1:08d}").mkdir(parents=True)
    if life < config["deaths"]:
        if config["hangs"]:
            stand_still(rank)
        if config["code"]:
            return config["code"]
        os.kill(os.getpid(), signal.SIGKILL)
    for url in run["outputs"].values():
        output = ArtifactOutput(url)
        output.add_bytes("lives", str(life + 1).encode())
        output.close({"lives": life + 1})
    return config.get("ends_with", 0)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)
