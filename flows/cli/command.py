"""What a command of the command line is: its name, help, arguments and options."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """`--flag`, or `--flag VALUE` if `value` is set."""

    flag: str
    about: str
    value: str = ""
    many: bool = False


@dataclass(frozen=True)
class Word:
    """A positional argument; `kind` selects its completion: flow, group, model, anything, override."""

    name: str
    about: str
    kind: str
    required: bool = False
    many: bool = False


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command: its name, help, example, positional arguments and options."""

    name: str
    about: str
    example: str
    words: tuple[Word, ...] = ()
    options: tuple[Option, ...] = ()

    @property
    def usage(self) -> str:
        dots = {True: " ...", False: ""}
        words = [(f"<{w.name}>" if w.required else f"[{w.name}]") + dots[w.many] for w in self.words]
        options = [f"[{o.flag}{' ' + o.value if o.value else ''}]" for o in self.options]
        return " ".join(["atelier", self.name, *words, *options])
