"""What an override may not do: run code of a resolver, name a class, reach into Hydra."""

import re
from collections.abc import Iterable

from engine.spec.error import ConfigError

SPECIAL = re.compile(r"(?<![\w-])_(?!here_|global_|group_|self_)[a-z]+_(?![\w-])")
HYDRA = re.compile(r"^[+~]*hydra(?=[./@=:]|$)")


def check_overrides(overrides: Iterable[str], *, is_sweep: bool = False, from_form: bool = False) -> None:
    """Refuse resolvers (`${oc.env:HOME}`; a reference like `${train.seed}` is fine), `_target_` and its kin.

    Hydra's own settings are for a sweep that a person types, not for a form.
    """
    for text in overrides:
        if calls_resolver(text):
            raise ConfigError(
                text,
                "calls a resolver",
                "only references to other keys are allowed in ${...}, such as ${train.seed}",
            )
        special = SPECIAL.search(text)
        if special:
            raise ConfigError(text, f"{special[0]} is not allowed", "kind=<name> chooses what is built")
        if HYDRA.match(text) and (from_form or not is_sweep):
            way_out = "settings of Hydra cannot be given in a form" if from_form else "give it with -m"
            raise ConfigError(text, "Hydra's own settings matter only in a sweep", way_out)


def calls_resolver(text: str) -> bool:
    """True when a colon stands inside `${...}`: only a resolver's name is followed by one."""
    depth = 0
    for number, letter in enumerate(text):
        if letter == "{" and text[number - 1 : number] == "$":
            depth += 1
        elif letter == "}" and depth:
            depth -= 1
        elif letter == ":" and depth:
            return True
    return False
