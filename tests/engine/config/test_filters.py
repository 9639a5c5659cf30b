"""Filters are found by their folder, and the sets of conf/filter are mappings of their specs."""

from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from atelier import PROJECT
from atelier.engine.config.filters import Filter, FilterSpec
from atelier.engine.config.kind_files import kind_module
from atelier.engine.config.registry import kinds, spec_class

SETS = sorted((PROJECT / "conf" / "filter").glob("*.yaml"))
FILTERS: TypeAdapter[dict[str, FilterSpec]] = TypeAdapter(dict[str, Filter])


def test_every_kind_has_a_spec_and_a_function_and_every_limit_a_description() -> None:
    for kind in kinds("filter"):
        spec = spec_class("filter", kind)
        assert issubclass(spec, FilterSpec) and callable(kind_module("data/filter", kind, "build").build)
        fields = {name: field for name, field in spec.model_fields.items() if name != "kind"}
        assert fields and all(field.description for field in fields.values()), kind


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_a_set_has_only_fields_of_its_kinds(path: Path) -> None:
    found = FILTERS.validate_python(yaml.safe_load(path.read_text()))
    assert found and all(type(spec) is spec_class("filter", spec.kind) for spec in found.values())


def test_an_unknown_kind_or_field_is_refused_with_a_near_one() -> None:
    with pytest.raises(ValidationError, match="did you mean fineweb"):
        FILTERS.validate_python({"a": {"kind": "finewebb"}})
    with pytest.raises(ValidationError, match="min_wordz"):
        FILTERS.validate_python({"a": {"kind": "gopher_quality", "min_wordz": 3}})


def test_a_filter_is_identified_by_its_limits_and_survives_json() -> None:
    found = FILTERS.validate_python({"a": {"kind": "c4", "min_sentences": 3}})
    again = FILTERS.validate_json(FILTERS.dump_json(found))
    assert again == found and found["a"].as_identity()["min_sentences"] == 3
