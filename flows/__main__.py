"""`atelier`: run, plan and look at flows. `atelier --help` tells more."""

import sys


def main() -> int:
    """Entry point: help, completion and typo answers import nothing heavy."""
    from flows.cli.main import run  # here, so that `python -m flows` and the script start alike

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
