"""Compose a flow's configuration with Hydra, and explain Hydra's errors by place, problem and way out."""

import copy
import re
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError, nearest
from atelier.flows.run import catalog
from atelier.flows.run.catalog import CONF, OWN_KEYS, conf_folders, groups, keys_called, options

if TYPE_CHECKING:
    from omegaconf import DictConfig

_lock = threading.Lock()  # Hydra's global state allows one composition at a time
KEY = re.compile(r"^(?P<mark>\+{0,2}|~)(?P<key>[^=@~+]+)(?P<package>@[^=]+)?(?P<rest>=.*)?$", re.DOTALL)
CALL = re.compile(r"^\w+\(.*\)$", re.DOTALL)
FEW = 3  # suggestions for an unknown key


def composed_document(flow: str, overrides: list[str]) -> dict[str, Json]:
    """A flow's configuration under overrides that `prepared` returned. Raises ConfigError."""
    from hydra.errors import HydraException  # late: 0.15 s
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        composed = _from_groups(flow, overrides)
        if composed is None:
            composed = _composed(flow, overrides)
        document = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
        return cast(dict[str, Json], document)
    except (HydraException, OmegaConfBaseException) as error:
        raise explained(error) from None


def _composed(flow: str, overrides: Sequence[str]) -> "DictConfig":
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    with _lock:
        callers = GlobalHydra.instance().hydra  # a calling program may use Hydra itself
        GlobalHydra.instance().clear()
        try:
            with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
                return hydra_compose(flow, [*overrides])
        finally:
            GlobalHydra.instance().hydra = callers


def _from_groups(flow: str, overrides: list[str]) -> "DictConfig | None":
    """What Hydra composes, in a twentieth of its time: Hydra's composition of the groups is kept, and values
    are set in a copy. None if the overrides are not as simple, or have a mistake.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    chosen, values = list[str](), list[str]()
    for text in overrides:
        match = KEY.match(text)
        is_group = match is not None and catalog.is_group(match["key"].strip("/"))
        if text.startswith("++hydra") or is_group == text.startswith("++"):  # ++train={...} is a value
            return None
        (chosen if is_group else values).append(text)
    try:
        parsed = OverridesParser.create().parse_overrides(values)
        if any(one.is_sweep_override() or one.package is not None for one in parsed):
            return None
        composed = copy.deepcopy(_of_groups(flow, tuple(chosen), _files()))
        for one in parsed:
            OmegaConf.update(composed, one.key_or_group, one.value(), merge=True, force_add=True)
    except (HydraException, OmegaConfBaseException):
        return None
    return composed


@lru_cache(maxsize=64)
def _of_groups(flow: str, chosen: tuple[str, ...], files: int) -> "DictConfig":
    return _composed(flow, chosen)


def _files() -> int:
    """Another number when a file of conf/ of a root is another."""
    states = [
        (str(path), path.stat())
        for conf in (CONF, *conf_folders()[1:])
        for path in sorted(conf.rglob("*.yaml"))
    ]
    return hash(tuple((path, state.st_mtime_ns, state.st_size) for path, state in states))


def prepared(text: str, flow: str, known: list[str], *, is_sweep: bool = False) -> str:
    """One override for Hydra. A key that the yaml lacks is added; the spec, which knows every key, validates
    it. In a sweep a group may have several options. Raises ConfigError for an unknown key, group or option.
    """
    match = KEY.match(text)
    if not match or (match["rest"] is None and match["mark"] != "~"):
        raise ConfigError(
            text, "is not an override", "write key=value, group=option, +group@roles.name=option or ~key"
        )
    key, first = match["key"], match["key"].split(".")[0]
    is_group = "." not in key and catalog.is_group(key.strip("/"))
    if match["package"] and not is_group:
        raise ConfigError(
            text,
            f"there is no group {key!r}",
            f"did you mean {nearest(key, groups()) or groups()[0]}? there are: {', '.join(groups())}",
        )
    if is_group:
        _check_option(match, text, is_sweep=is_sweep)
        return text
    if first not in known and first != "hydra":
        raise unknown_key(first, flow, known)
    if match["mark"] or key.startswith("hydra"):
        return text
    return f"++{text}"


def _check_option(match: re.Match[str], text: str, *, is_sweep: bool) -> None:
    group, value = match["key"].strip("/"), (match["rest"] or "=")[1:]
    found = options(group)
    if is_sweep and CALL.search(value):
        return  # glob(gpt*), choice(a,b): Hydra expands these
    if is_sweep and "," in value and not value.startswith("["):
        for one in value.split(","):
            _check_option(KEY.match(f"{group}={one.strip()}") or match, text, is_sweep=False)
        return
    if match["mark"] != "~" and value not in found and not value.startswith("["):
        if set(value.split(",")) <= set(found):
            raise ConfigError(match["key"], "several values are a sweep", "add -m")
        raise _no_option(text, group, value, found)


def _no_option(place: str, group: str, value: str, found: list[str]) -> ConfigError:
    near = nearest(value, found)
    way_out = (f"did you mean {near}? " if near else "") + f"there are: {', '.join(found)}"
    return ConfigError(place, f"no option {value!r} in group {group}", way_out)


def unknown_key(key: str, flow: str, known: list[str]) -> ConfigError:
    known = [*known, "experiment"]
    near = nearest(key, known)
    if catalog.is_group(key):
        return ConfigError(key, f"the flow {flow} has no {key}", f"it has: {', '.join(sorted(known))}")
    meant = " or ".join(keys_called(flow, key)[:FEW]) or near
    return ConfigError(
        key,
        "no such key",
        (f"did you mean {meant}? " if meant else "") + f"known here: {', '.join(sorted(known))}",
    )


def explained(error: Exception) -> ConfigError:
    """An error of Hydra or OmegaConf as a ConfigError with place, problem and way out."""
    cause = error.__cause__ or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    text = " ".join(lines[:2])
    missing = re.search(r"Missing mandatory value: (\S+)", text)
    if missing:
        key = getattr(cause, "full_key", None) or missing[1]
        about, example = OWN_KEYS.get(key, ("", ""))
        way_out = f"give {about}; e.g. {example}" if about else f"give {key}=<value>"
        return ConfigError(key, "a value is required", way_out)
    absent = re.search(r"Could not find '([^']+)/([^'/]+)'", text)
    if absent:
        found = [line for line in lines[2:] if "=" not in line and not line.endswith(":")]
        return _no_option(f"{absent[1]}={absent[2]}", absent[1], absent[2], found)
    strange = getattr(cause, "full_key", None) if "is not in struct" in text else None
    if strange:
        return ConfigError(str(strange), "no such key", "`atelier --hydra-help` lists Hydra's own keys")
    unreadable = getattr(error, "override", None)
    if unreadable and "Ambiguous value" not in text:
        reason = text.split(" See https")[0]
        return ConfigError(
            unreadable.lstrip("+"),
            f"cannot be read ({reason})",
            "quote special characters twice: 'key=\"a,b\"'",
        )
    sweep = re.search(r"Ambiguous value for argument '([^']+)'", text)
    if sweep:
        key, _, values = sweep[1].lstrip("+").partition("=")
        if key in ("sites", "models"):
            return ConfigError(key, "several of them are a list", f"{key}=[{values}]")
        return ConfigError(key, "several values are a sweep", "add -m, or quote the value")
    return ConfigError("configuration", text, "`atelier list` shows what can be chosen")
