"""The command line: `atelier <flow> ...` runs a flow, `atelier <command> ...` looks at things."""

import os
import shlex
import sys
from collections.abc import Sequence


def run(arguments: Sequence[str]) -> int:
    """Dispatch; every user's error becomes one line on stderr and exit code 2 (bad input) or 1 (a task failed)."""
    from flows.cli.run import run_command

    from engine.spec.error import AtelierError

    try:
        return run_command(list(arguments), "atelier " + shlex.join(arguments))
    except AtelierError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
