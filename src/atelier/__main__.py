"""`python -m atelier`: the command line; see `atelier --help`."""

import gc
import sys


def main() -> int:
    """Entry point. Help, completion and answers to typos import nothing slow."""
    from atelier.flows.cli.main import run  # late, so that the script and `python -m` start alike

    code = run(sys.argv[1:])
    gc.freeze()  # the interpreter's end would search all that Prefect and MLflow have loaded: a second
    return code


if __name__ == "__main__":
    sys.exit(main())
