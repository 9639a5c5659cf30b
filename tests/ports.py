"""Ports of loopback for servers that tests start."""

import random
import socket

FIRST = 10_000
RANGE = "/proc/sys/net/ipv4/ip_local_port_range"


def free_port() -> int:
    """One on which nobody listens, below those that the kernel gives away by itself: of these, one that is
    free now can be another process's before a server has started.
    """
    with open(RANGE) as file:
        end = max(int(file.read().split()[0]), 2 * FIRST)  # where the kernel gives away nearly all of them
    draw = random.SystemRandom()
    while True:
        port = draw.randrange(FIRST, end)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
