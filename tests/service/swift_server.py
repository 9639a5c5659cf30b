"""Servers, rings and users of Swift, run by the Python in which Swift is installed.

<python of swift> swift_server.py rings <folder> <port of account> <of container> <of object>
<python of swift> swift_server.py serve <program> <folder> <configuration>
"""

import fcntl
import json
import os
import runpy
import signal
import sys

import swift.common.utils


def users(_, **settings):
    """The filter `[filter:users]`: tempauth, whose users are read anew from a file for every request."""
    from swift.common.middleware.tempauth import TempAuth  # reads the folder that `serve` sets

    class Users(TempAuth):
        def __call__(self, environment, start_response):
            with open(settings["users"]) as file:
                self.users = json.load(file)
            return super().__call__(environment, start_response)

    return lambda app: Users(app, settings)


def rings(folder, *ports):
    """One ring for each kind of server: one device, one replica."""
    from swift.common.ring import RingBuilder

    for kind, port in zip(("account", "container", "object"), ports, strict=True):
        builder = RingBuilder(part_power=4, replicas=1, min_part_hours=0)
        device = {"ip": "127.0.0.1", "port": int(port), "device": "disk", "weight": 1.0}
        builder.add_dev({**device, "region": 1, "zone": 1, "replication_ip": "127.0.0.1",
                         "replication_port": int(port), "meta": ""})  # fmt: skip
        builder.rebalance()
        builder.get_ring().save(f"{folder}/{kind}.ring.gz")


def end_with_input():
    """Be killed when the pipe that is standard input is closed (a parent-death signal would come with the
    end of the thread that started this process).
    """
    pipe = os.dup(0)  # Swift's servers give 0 away
    os.set_inheritable(pipe, True)
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


def execute(program, *words):
    """Become another program."""
    end_with_input()
    os.execv(program, [program, *words])


def serve(program, folder, configuration):
    """Run one of Swift's servers in this process."""
    end_with_input()
    swift.common.utils.set_swift_dir(folder)
    sys.argv = [program, configuration, "-v"]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    {"rings": rings, "serve": serve, "execute": execute}[sys.argv[1]](*sys.argv[2:])
