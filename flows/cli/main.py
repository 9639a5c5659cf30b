"""The command line: `atelier <flow> ...` runs a flow, `atelier <command> ...` another command."""

import importlib
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence

from atelier.engine.config.error import (
    AtelierError,
    ConfigError,
    DamageError,
    check_utf8,
    nearest,
    of_system,
    printable,
)
from atelier.engine.io.proxies import exempt_loopback
from atelier.engine.io.user_folders import complete_user, drop_unreadable
from atelier.flows.cli import help, syntax
from atelier.flows.cli.config_dirs import take_config_dirs
from atelier.flows.run import catalog
from atelier.flows.run.catalog import CONF, parameters

# numpy's matrix products here are tiny; on a busy machine several threads slow them down
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

FLAGS = ("--help", "--version", "--completion", "--hydra-help")
SWEEP = ("-m", "--multirun", "--dry-run")
RESUME = ("--accept-code", "--fresh")
FAULT = "a fault in the program, or in a kind that was added"
MOST = 400  # characters of another library's error
ASK_HYDRA = ("--cfg", "-c", "--info", "-i", "--hydra-help")
BESIDE_THESE = (
    "--resolve",
    "--package",
    "-p",
    "--config-name",
    "-cn",
    "--config-path",
    "-cp",
    "--shell-completion",
    "-sc",
    "--run",
    "-r",
)


def run(arguments: Sequence[str]) -> int:
    """Run the command. A user's error is one line on stderr; exit code 2 (bad input) or 1 (failed)."""
    complete_user(os.environ)
    notes = [*exempt_loopback(os.environ), *drop_unreadable(os.environ)]
    if arguments and not arguments[0].startswith("-"):
        sys.stderr.writelines(f"note: {note}\n" for note in notes)
    try:
        return _dispatch(list(arguments))
    except AtelierError as error:
        text = f"{error}; {error.way_out}" if isinstance(error, DamageError) else str(error)
        print(printable(text, 0, keep="\n"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(printable(of_system(error), MOST), file=sys.stderr)
        return 1
    except Exception as error:  # a bug: write the traceback to a file, print one line
        from atelier.engine.config.kind_files import where_and_why  # late: pydantic, 0.1 s

        with tempfile.NamedTemporaryFile("w", prefix="atelier-", suffix=".trace", delete=False) as file:
            traceback.print_exc(file=file)
        text = printable(where_and_why(error), MOST)
        print(f"atelier: {text} ({FAULT}; trace: {file.name})", file=sys.stderr)
        return 1


def _dispatch(arguments: list[str]) -> int:
    """Help, completion and answers to typos import nothing slow; other branches import their needs."""
    for word in arguments:
        check_utf8(word, "atelier", "the word")
    first, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if first == "help":
        first, rest = (rest[0], ["--help"]) if rest else ("--help", [])
    if arguments[:2] == ["corpus", "explain"]:
        first, rest = "explain", arguments[2:]
    if first in syntax.HELP:
        print(help.overview())
    elif first == "--version":
        print(help.version())
    elif first in ("--completion", "--complete"):
        from atelier.flows.cli import complete  # late: only the Tab key needs it

        print(complete.script(rest) if first == "--completion" else "\n".join(complete.candidates(*rest)))
    elif first == "--hydra-help":
        return _answer_by_hydra(catalog.flow_names()[0], arguments)
    elif first in syntax.COMMANDS:
        command = syntax.COMMANDS[first]
        if syntax.asks_help(rest, command.options):
            print(help.of_command(command))
            if first in catalog.flow_names():
                from atelier.flows.cli.help import of_flow  # late: pydantic, 0.1 s

                print(f"\nas a flow:\n{of_flow(first, ())}")
            return 0
        if first in catalog.flow_names() and rest and all("=" in word for word in rest):
            return _flow(first, rest, arguments)
        options = syntax.parse_words(command, rest)
        return importlib.import_module(f"atelier.flows.cli.commands.{first}").run(options)
    elif first in catalog.flow_names():
        if syntax.asks_help(rest):
            from atelier.flows.cli.help import of_flow  # late: pydantic, 0.1 s

            print(of_flow(first, tuple(rest)))
            return 0
        return _flow(first, rest, arguments)
    else:
        known = [*catalog.flow_names(), *syntax.COMMANDS]
        is_flag = first.startswith("-")
        raise syntax.unknown_option("atelier", first, list(FLAGS)) if is_flag else _no_such(first, known)
    return 0


def _flow(flow: str, words: list[str], arguments: list[str]) -> int:
    words = take_config_dirs(words)
    if _asks_hydra(words):
        return _answer_by_hydra(flow, words)
    strange = [
        word for word in words if word.startswith("-") and word.partition("=")[0] not in (*SWEEP, *RESUME)
    ]
    if strange:
        known = [*SWEEP, *RESUME, *ASK_HYDRA]
        word = strange[0].partition("=")[0]
        is_flag = nearest(word, [*known, *syntax.HELP], least=0.8)
        if not is_flag and (keys := catalog.keys_called(flow, word.lstrip("-").replace("-", "_"))):
            way_out = f"a key is written without dashes: {keys[0]}=<value>"
            raise ConfigError(f"atelier {flow}", f"no option {strange[0]!r}", way_out)
        raise syntax.unknown_option(f"atelier {flow}", strange[0], known)
    from atelier.flows.cli.flow_command import run_command
    from atelier.flows.run.overrides import resuming
    from atelier.flows.run.store_check import check_root  # late: pydantic and fsspec, 0.2 s

    words = resuming(words)
    check_root(will_write=True)
    return run_command([flow, *words], "atelier " + shlex.join(arguments))


def _no_such(word: str, known: list[str]) -> ConfigError:
    catalog.check_settings(word, "atelier")
    near = nearest(word, known)
    way_out = (f"did you mean {near}? " if near else "") + f"there are: {', '.join(known)}"
    return ConfigError("atelier", f"no flow or command {word!r}", way_out)


def _asks_hydra(words: list[str]) -> bool:
    """Whether the words have a flag that Hydra must answer. Raises ConfigError for a flag that works only
    beside one of those.
    """
    names = [word.split("=", 1)[0] for word in words]
    if any(name in ASK_HYDRA for name in names):
        return True
    alone = [name for name in names if name in BESIDE_THESE]
    if alone:
        raise ConfigError(
            f"atelier {alone[0]}",
            "works only with --cfg, --info or --hydra-help",
            "a flow's own options are yaml files in conf/<group>/",
        )
    return False


def _answer_by_hydra(flow: str, words: list[str]) -> int:
    """Run hydra.main on the flow's configuration, with overrides as in a run. Returns the exit code."""
    import hydra  # late: 0.15 s that help and completion do not need

    from atelier.flows.run.hydra_document import prepared as prepared

    known = [*parameters(flow).model_fields, "pool", "tracker"]
    ready = [
        prepared(word, flow, known) if "=" in word and not word.startswith("-") else word for word in words
    ]
    before, sys.argv = sys.argv, [f"atelier {flow}", *ready]
    try:
        hydra.main(config_path=str(CONF), config_name=flow, version_base="1.3")(lambda config: None)()
    except SystemExit as left:
        return 2 if left.code else 0
    finally:
        sys.argv = before
    return 0
