"""`python -m atelier`: the command line; see `atelier --help`."""

import sys


def main() -> int:
    """Entry point. Help, completion and answers to typos import nothing slow."""
    from atelier.flows.cli.main import run  # late, so that the script and `python -m` start alike

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
