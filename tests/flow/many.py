"""Several commands, one after another in one process: `python -m tests.flow.many <words as JSON> ...` prints
their exit codes and what each wrote on stdout, as a list.
"""

import io
import json
import sys
from contextlib import redirect_stdout

from atelier.flows.cli.main import run


def said(words: list[str]) -> tuple[int, str]:
    with redirect_stdout(io.StringIO()) as out:
        code = run(words)
    return code, out.getvalue()


if __name__ == "__main__":
    print(json.dumps([said(json.loads(text)) for text in sys.argv[1:]]))
