"""`atelier down`: end what `atelier up` started; running tasks write a checkpoint first."""

import argparse

from flows.cli.root import open_store
from infra.stack.stack import Stack


def run(options: argparse.Namespace) -> int:
    ended = Stack(open_store().root).down(print)
    print(f"{ended} processes ended" if ended else "nothing was running")
    return 0
