"""Texts of `--help`, from the same tables and specs that the program uses. A flow's help lists its groups and
keys with type, meaning and present value.
"""

from typing import TYPE_CHECKING

from atelier.flows.cli.command_table import COMMANDS, Command
from atelier.flows.run import catalog

if TYPE_CHECKING:
    from atelier.engine.config.base import FieldPlace, Given

WIDTH = 22


def version() -> str:
    from atelier.infra.code.provenance import version as found  # late: 0.03 s

    return found()


def overview() -> str:
    """Text of `atelier --help`."""
    flows = [row(name, catalog.flow_text(name)[0]) for name in catalog.flow_names()]
    commands = [row(command.name, command.about) for command in COMMANDS.values()]
    return "\n".join([
        "Atelier: experiments with language models as DAGs of tasks. Finished results are reused.", "",
        "usage: atelier <flow> [group=option] [key=value] ...   run a flow, or continue it where it stopped",
        "       atelier <command> ...", "", "flows", *flows, "", "commands", *commands, "",
        "examples",
        "  atelier titan experiment=tiny                          the whole DAG in a minute or two",
        "  atelier plan pretrain model=gpt_mini train.steps=400   what would run, and why",
        "  atelier pretrain --help                                a flow's groups and keys", "", "options",
        row("--completion bash|zsh", "for the Tab key: put  eval \"$(atelier --completion bash)\""),
        row("", "into ~/.bashrc (or zsh, into ~/.zshrc)"),
        row("--hydra-help", "the flags of Hydra, which composes the configuration"),
        row("--version", "the version"), "", "environment",
        row("ATELIER_ROOT", "the store: a folder or an fsspec URL [./.atelier]"),
        row("MLFLOW_TRACKING_URI", "MLflow's server [`atelier up`'s while it runs, else in the store]"),
        row("PREFECT_API_URL", "Prefect's server [`atelier up`'s while it runs, else one for each run]"),
    ])  # fmt: skip


def of_command(command: Command) -> str:
    """Text of `atelier <command> --help`."""
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


def of_flow(flow: str, words: tuple[str, ...] = ()) -> str:
    """The flow's groups and keys, with the groups chosen in `words`."""
    about, example = catalog.flow_text(flow)
    shape = catalog.FlowShape(flow, tuple(word for word in words if not word.startswith("-")))
    return "\n".join([
        f"{flow}: {about}", "", f"usage:   atelier {flow} [group=option] [key=value] ...",
        f"example: {example}", "", "groups (now)", *_group_lines(shape), "",
        "keys: type, meaning [value]", *_key_lines(shape), "", "options",
        row("-m, --multirun", "a sweep: a run for every combination of  key=1,2  (docs/run/sweeps.md)"),
        row("--dry-run", "with -m: print what would run and its cost"),
        row("--accept-code", "continue trainings that other code started"),
        row("--fresh <task>", "restart the unfinished training of a task"),
        row("--cfg job", "print the composed configuration and stop"), row("--info", "how Hydra composed it"),
    ])  # fmt: skip


def _group_lines(shape: catalog.FlowShape) -> list[str]:
    choices = list(catalog.used_choices(shape))
    width = max(len(choice.key) for choice in choices) + 1
    lines = []
    for choice in choices:
        others = [f"({name})" if name == choice.option else name for name in catalog.options(choice.group)]
        lines.append(row(choice.key, " ".join(others), width))
    if isinstance(shape.document.get("roles"), dict):
        lines.append(row("+role@roles.<name>", "adds a role: " + " ".join(catalog.options("role")), width))
    return lines


def _key_lines(shape: catalog.FlowShape) -> list[str]:
    from atelier.engine.config.base import FieldPlace  # late: pydantic, 0.1 s
    from atelier.engine.config.sites import Sites

    lines: list[str] = []
    for name, place in catalog.places(shape).items():
        lines += _places(place, name)
    sites = FieldPlace("sites", Sites, shape.document.get("sites"))
    return [*lines, *(_line(one, one.name, one.about) for one in sites.below())]


def _places(place: "FieldPlace", name: str, above: str = "") -> list[str]:
    """One line per key. A mapping with several similar entries (roles) is shown once, as `<name>`, with the
    meaning of the mapping on each line.
    """
    below, about = list(place.below()), catalog.OWN_KEYS.get(name, ("",))[0] or place.about or above
    if len(below) > 1 and place.spec is None and len({one.spec for one in below}) == 1:
        names = ", ".join(one.name.rsplit(".", 1)[-1] for one in below)
        return [row(f"{name}.<name>", f"one of: {names}"), *_places(below[-1], f"{name}.<name>", about)]
    if below or place.spec is not None:
        return [
            line for one in below for line in _places(one, f"{name}.{one.name.rsplit('.', 1)[-1]}", about)
        ]
    one = place.down("<name>")
    if one is not None and one.spec is not None:
        return _places(one, one.name)
    has_choice = place.choices() != [place.type_text()]  # false if there is only one kind
    return [_line(place, name, about)] if has_choice else []


def _line(place: "FieldPlace", name: str, about: str) -> str:
    value: Given = place.value
    if value is None and place.field is not None and not place.field.is_required():
        value = place.field.default
    now = "" if value in (None, "", {}, ()) else f" [{'required' if value == '???' else _written(value)}]"
    return row(name, f"{place.type_text():<14} {about}{now}", 42)


def _written(value: "Given") -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
