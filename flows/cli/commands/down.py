"""`atelier down`: stop the processes that `atelier up` started; running tasks write a checkpoint first."""

import argparse

from atelier.flows.run.store_check import open_store
from atelier.infra.stack.stack import Stack


def run(options: argparse.Namespace) -> int:
    ended = Stack(open_store().root).down(print)
    print(f"{ended} processes ended" if ended else "nothing was running")
    return 0
