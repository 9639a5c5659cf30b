"""Requests a second of `mlflow models serve`: one client that waits for each answer, and 32 at once.

python benchmarks/serve.py [--rounds 5] [--tokens 64] [--tiny]      about 5 minutes

Byte-level models of random weights, one server each, greedy decoding. In each round the one client sends all
prompts in turn, then the 32 send one each; the next round has the other order. All answers to a prompt must
be equal.
"""

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP)]

from machine import keep, use_own_code

from tests.flow.served import wait_for
from tests.infra.tracking.served_version import Server
from tests.infra.tracking.tiny_version import registered, tiny_files

CLIENTS = 32
MODELS = {
    "1 block of 16": {},
    "4 blocks of 128": {"num_layers": 4, "hidden": 128, "num_heads": 4},
    "6 blocks of 384": {"num_layers": 6, "hidden": 384, "num_heads": 6},
}


def rates(server: Server, rounds: int, tokens: int) -> dict[str, list[float]]:
    """Requests a second of each round, one client's and all clients'."""
    asked = [
        {"prompt": f"def f{number}(", "max_tokens": tokens, "temperature": 0.0} for number in range(CLIENTS)
    ]
    found: dict[str, list[float]] = {"one": [], "all": []}
    said: list[Any] = []
    server.ask(**asked[0])  # starts the generator
    with ThreadPoolExecutor(CLIENTS) as pool:
        for turn in range(rounds):
            for who in ("one", "all") if turn % 2 else ("all", "one"):
                began = time.monotonic()
                run = map if who == "one" else pool.map
                answers = list(run(lambda one: server.ask(**one), asked))
                found[who].append(round(CLIENTS / (time.monotonic() - began), 2))
                said = said or answers
                if answers != said or any(status != 200 for status, _ in answers):
                    raise SystemExit(f"answers differ: {who}, round {turn}")
    return found


def measured(settings: dict[str, Any], rounds: int, tokens: int) -> dict[str, Any]:
    """Of one model, in a server of its own."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), registered(Path(folder), tiny_files(**settings)))
        try:
            wait_for(server.is_up, 120, "the server")
            found = rates(server, rounds, tokens)
        finally:
            server.process.terminate()
            server.process.wait(60)
    one, together = median(found["one"]), median(found["all"])
    return {"one client, requests/s": one, f"{CLIENTS} clients, requests/s": together} | {
        "ratio": round(together / one, 2),
        "all": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--tiny", action="store_true", help="a trial: the smallest model, one round")
    chosen = parser.parse_args()
    use_own_code()
    models = dict([next(iter(MODELS.items()))]) if chosen.tiny else MODELS
    rounds = 1 if chosen.tiny else chosen.rounds
    numbers = {name: measured(settings, rounds, chosen.tokens) for name, settings in models.items()}
    numbers |= {"clients": CLIENTS, "tokens": chosen.tokens}
    keep("serve", numbers, is_trial=chosen.tiny or rounds < 3)


if __name__ == "__main__":
    main()
