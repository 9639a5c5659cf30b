"""What `--help` prints, from the same tables and specs that the program runs by."""

from atelier.flows.cli import catalog
from atelier.flows.cli.syntax import COMMANDS, Command

WIDTH = 22


def version() -> str:
    from importlib import metadata  # 0.03 s that only this needs

    try:
        return f"atelier {metadata.version('atelier-lm')}"
    except metadata.PackageNotFoundError:  # run from a checkout
        return "atelier (not installed)"


def overview() -> str:
    flows = [row(name, catalog.flow_text(name)[0]) for name in catalog.flow_names()]
    commands = [row(command.name, command.about) for command in COMMANDS.values()]
    return "\n".join([
        "Atelier: experiments with language models as DAGs of tasks. What is finished is reused.", "",
        "usage: atelier <flow> [group=option] [key=value] ...   run a flow, or go on where it stopped",
        "       atelier <command> ...", "", "flows", *flows, "", "commands", *commands, "",
        "examples",
        "  atelier titan experiment=tiny                          the whole DAG in under a minute",
        "  atelier plan pretrain model=gpt_mini train.steps=400   what would run, and why",
        "  atelier pretrain --help                                a flow's groups and keys", "", "options",
        row("--completion bash|zsh", "words for the Tab key: put  eval \"$(atelier --completion bash)\""),
        row("", "into ~/.bashrc (or zsh, into ~/.zshrc)"),
        row("--hydra-help", "the flags of Hydra, which composes the configuration"),
        row("--version", "the version"), "", "environment",
        row("ATELIER_ROOT", "the store: a folder or an fsspec URL [./.atelier]"),
        row("MLFLOW_TRACKING_URI", "where runs are tracked [a database in the store]"),
        row("PREFECT_API_URL", "a Prefect server [one inside the run]"),
    ])  # fmt: skip


def of_command(command: Command) -> str:
    words = [row(word.name, word.about) for word in command.words]
    options = [row(f"{option.flag} {option.value}".strip(), option.about) for option in command.options]
    return "\n".join(
        [
            f"{command.about}",
            "",
            f"usage:   {command.usage}",
            f"example: {command.example}",
            "",
            *words,
            *options,
        ]
    )


def row(name: str, about: str, width: int = WIDTH) -> str:
    return f"  {name:<{width}} {about}".rstrip()
