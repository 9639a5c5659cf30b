"""The form that Prefect's page shows for a flow, as a JSON schema, and its translation to overrides."""

import copy
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from atelier.engine.config.base import Json, JsonObject
from atelier.engine.config.document import section_of
from atelier.engine.config.error import UNSEEN, ConfigError, nearest
from atelier.flows.deployments.form_fields import BOUNDS, Field, FieldSchema, FormSchema, basic, fields_of
from atelier.flows.run.overrides import MOST_LETTERS, SHOWN, check_overrides, shown

ADVANCED = "advanced"
FOLDERS = ("source", "chats.source", "tune.chats.source")  # keys whose value is always a path
LOOKS_LIKE_A_PATH = re.compile(r"[/*?]|\.[a-z]+$")
KINDS = {
    "integer": "a whole number",
    "boolean": "true or false",
    "number": "a number",
    "string": "a text",
    "array": "a list of texts",
}
LARGEST = 2**63
PLAIN = re.compile(r"(?!(true|false|null|nan|inf)$)[a-z][a-z0-9_./-]*", re.IGNORECASE | re.ASCII)


def form(flow: str) -> FormSchema:
    """The parameter schema of `flow` for Prefect: the basic fields, and a group with all others. Every field
    is optional; the order is that of the page.

    Raises ConfigError when there is no such flow.
    """
    fields, first = fields_of(flow), basic(flow)
    properties = _properties({name: fields[name] for name in first})
    properties[ADVANCED] = {
        "title": ADVANCED,
        "type": "object",
        "description": "all other settings; blank = the experiment's value",
        "properties": _properties({name: field for name, field in fields.items() if name not in first}),
        "position": len(first),
    }
    return {"title": "Parameters", "type": "object", "properties": properties, "required": []}


def parameter_names(flow: str) -> tuple[str, ...]:
    """Names of a run's possible parameters: the fields, alone or in their group."""
    return (*fields_of(flow), ADVANCED)


def _properties(fields: Mapping[str, Field]) -> dict[str, FieldSchema]:
    return {
        name: {"title": field.title, **copy.deepcopy(field.schema), "position": number}
        for number, (name, field) in enumerate(fields.items())
    }


def to_overrides(flow: str, parameters: JsonObject) -> list[str]:
    """The overrides of a filled form, in the form's order; None and '' are blank. A field of the advanced
    group may be given outside it, as the command line submits it.

    Raises ConfigError with key, value and way out for a value that a field does not accept, even if the
    server has checked it. `compose` checks whether the values fit each other.
    """
    fields = fields_of(flow)
    group = parameters.get(ADVANCED) or {}
    if not isinstance(group, Mapping):
        raise ConfigError(ADVANCED, f"must be a group of fields (given: {shown(group)})", "leave it out")
    flat = {**section_of(dict(group)), **{key: one for key, one in parameters.items() if key != ADVANCED}}
    for name in flat:
        if name not in fields:
            raise _unknown(name, fields)
    given = {name: value for name, value in flat.items() if not _is_blank(value)}
    words = list(_words(fields, given))
    own = [str(text) for text in _texts(given.get("overrides", ())) if not _is_blank(text)]
    check_overrides([*words, *own], from_form=True)
    for word in (*words, *own):
        _check_path(word)
    return [*words, *own]


def _words(fields: Mapping[str, Field], given: JsonObject) -> Iterator[str]:
    for name, field in fields.items():
        if name not in given:
            continue
        fault = _fault(given[name], field.schema)
        if fault:
            raise ConfigError(
                field.title,
                f"{fault} (given: {shown(given[name])})",
                _way_out(given[name], field.schema),
            )
        if field.key:
            yield _word(field, given[name])


def _check_path(word: str) -> None:
    """Raises ConfigError for a relative path: a worker runs in another folder than the user."""
    key, _, value = word.lstrip("+").partition("=")
    path = value.strip("'\"")
    is_name = path.startswith(("stdlib", "catalogues"))
    is_path = key in FOLDERS or (key.endswith(".source") and bool(LOOKS_LIKE_A_PATH.search(path)))
    if is_path and path and not is_name and "://" not in path and not path.startswith(("/", "~")):
        problem = f"{shown(path)} is a relative path, but a worker runs in its own folder"
        raise ConfigError(key, problem, "give an absolute path")


def _unknown(name: str, fields: Mapping[str, Field]) -> ConfigError:
    word = str(name)[:SHOWN]
    near = nearest(word, fields) or nearest(word, [field.title for field in fields.values()])
    advice = f"did you mean {near}? " if near else ""
    return ConfigError(shown(name), "the form has no such field", f"{advice}it has: {', '.join(fields)}")


def _texts(value: Json) -> Sequence[Json]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _is_blank(value: Json) -> bool:
    if isinstance(value, list | tuple):
        return all(one is None or one == "" for one in value)
    return value is None or value == ""


def _fault(value: Json, schema: FieldSchema) -> str:
    """The error of a value that is not blank, or ''."""
    if not _is_kind(value, schema["type"]):
        return f"must be {KINDS[schema['type']]}"
    if "enum" in schema and value not in schema["enum"]:
        return "is not one of the options"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number_fault(value, schema)
    for text in [value] if schema["type"] in ("string", "boolean") else filter(None, _texts(value)):
        fault = _text_fault(str(text), schema.get("pattern", ""))
        if fault:
            return fault
    return ""


def _number_fault(value: float, schema: FieldSchema) -> str:
    if not abs(value) < LARGEST:
        return "must be a finite number in range"
    bounds = {key: bound for key, bound in schema.items() if isinstance(bound, int | float)}
    for key, (_, words, holds) in BOUNDS.items():
        if key in bounds and not holds(value, bounds[key]):
            return f"must be {words} {bounds[key]:g}"
    return ""


def _text_fault(text: str, pattern: str) -> str:
    if len(text) > MOST_LETTERS:
        return f"has {len(text)} characters, more than {MOST_LETTERS}"
    if UNSEEN.search(text):
        return "must be on one line, without control characters"
    return "" if re.search(pattern, text) else f"must match {pattern}"


def _is_kind(value: Json, kind: str) -> bool:
    if kind == "array":
        return isinstance(value, list | tuple) and all(one is None or isinstance(one, str) for one in value)
    if kind in ("string", "boolean"):
        return isinstance(value, str if kind == "string" else bool)
    return isinstance(value, int if kind == "integer" else int | float) and not isinstance(value, bool)


def _way_out(value: Json, schema: FieldSchema) -> str:
    if "enum" not in schema:
        return schema["description"]
    near = nearest(value[:SHOWN], schema["enum"]) if isinstance(value, str) else ""
    return (f"did you mean {near}? " if near else "") + f"there are: {', '.join(map(str, schema['enum']))}"


def _word(field: Field, value: Json) -> str:
    if isinstance(value, list | tuple):
        given = [str(text) for text in value if not _is_blank(text)]
        if field.is_mapping:
            return f"{field.key}={{{','.join(_items(field, given))}}}"
        texts = [_text(field, text) for text in given]
        return f"{field.key}=[{','.join(texts)}]"
    if isinstance(value, bool):
        return f"{field.key}={str(value).lower()}"
    return f"{field.key}={_text(field, value) if isinstance(value, str) else repr(value)}"


def _items(field: Field, given: Sequence[str]) -> list[str]:
    pairs = [text.partition("=") for text in given]
    if twice := {name for name, count in Counter(name for name, _, _ in pairs).items() if count > 1}:
        raise ConfigError(field.title, f"names {', '.join(sorted(twice))} twice", "give each once")
    return [f"{name}: {value}" for name, _, value in pairs]


def _text(field: Field, text: str) -> str:
    """`text` in Hydra's syntax, quoted where needed."""
    if "${" in text or text == "???":
        way_out = "write the value itself; references to other keys are possible in overrides"
        raise ConfigError(field.title, f"must be a plain text (given: {shown(text)})", way_out)
    if PLAIN.fullmatch(text):
        return text
    escaped = re.sub(r"(?<!\\)(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"
