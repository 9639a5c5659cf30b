"""`atelier plan adopt`: what it reads of 42 public configurations, and of headers."""

import json
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.base import Json
from atelier.engine.config.error import DataError
from atelier.engine.config.foreign.families import UNUSED, family_of
from atelier.engine.io.survey import COMES_IN, IDLE, OPEN, REFUSED, Survey, survey, survey_adapter
from atelier.engine.io.tensorfile import TensorEntry, head
from atelier.engine.io.weight_headers import header

ROWS = Path(__file__).with_name("public_configs.jsonl").read_text().splitlines()
PUBLIC: dict[str, dict[str, Any]] = {row["model"]: row for row in map(json.loads, ROWS)}


def entries(config: dict[str, Json]) -> list[TensorEntry]:
    """The weights that a model of this config has, by the names of its family."""
    family = family_of(config, "")
    spec = family.spec(config, "")
    found: dict[str, TensorEntry] = {}
    for ours, shape in spec.shapes().items():
        part = family.foreign(ours, spec)
        assert part is not None and not ours.endswith(UNUSED)
        inner = shape[1:] if "{e}" in part.name else shape
        whole = (inner[0] * part.count, *inner[1:])
        for number in range(shape[0] if "{e}" in part.name else 1):
            name = part.name.replace("{e}", str(number))
            found[name] = TensorEntry(name, "BF16", whole[::-1] if part.turned else whole)
    return list(found.values())


def folder(place: Path, config: dict[str, Json], weights: list[TensorEntry]) -> Path:
    """A checkpoint whose weights have a header and the size, and no block on the disk behind it."""
    (place / "config.json").write_text(json.dumps(config))
    (place / "tokenizer.json").write_text("{}")
    with open(place / "model.safetensors", "wb") as file:
        file.write(begin := head(weights))
        file.truncate(len(begin) + sum(each.num_bytes for each in weights))
    return place


def states(found: Survey, state: str) -> dict[str, str]:
    return {row["what"]: row["why"] for row in found.rows if row["state"] == state}


@pytest.mark.parametrize("model", PUBLIC)
def test_of_a_public_configuration_all_that_is_refused_is_listed_at_once(model: str, tmp_path: Path) -> None:
    row = PUBLIC[model]
    (tmp_path / "config.json").write_text(json.dumps(row["config"]))
    found = survey(str(tmp_path))
    refused = states(found, REFUSED)
    beside = {name for name in refused if not name.startswith("config.json: ")}
    assert beside == {"source"}  # neither weights nor a tokenizer lie there
    assert [name.removeprefix("config.json: ") for name in refused if name not in beside] == row["refused"]
    if not row["refused"]:
        spec = family_of(row["config"], "").spec(row["config"], "")
        assert spec.num_params() == row["params"]
        said = {*states(found, COMES_IN), *states(found, IDLE)}
        assert {f"config.json: {name}" for name in row["config"]} <= said


@pytest.mark.parametrize("model", ["SmolLM2-135M", "Llama-3.2-1B", "distilgpt2", "flan-t5-small"])
def test_of_weights_the_headers_alone_are_read(model: str, tmp_path: Path) -> None:
    config = PUBLIC[model]["config"]
    place = folder(tmp_path, config, entries(config))
    found = survey(str(place))
    assert not found.refused
    assert states(found, COMES_IN)["weights"].endswith(f"{PUBLIC[model]['params']:,} parameters")
    assert (place / "model.safetensors").stat().st_blocks * 512 < 1 << 20  # what was read is the header


def test_keys_and_weights_that_are_refused_are_in_one_list(tmp_path: Path) -> None:
    config = PUBLIC["SmolLM2-135M"]["config"]
    first, second, *rest = entries(config)
    strange = TensorEntry("model.layers.0.self_attn.gate.weight", "BF16", (4, 4))
    small = first._replace(shape=(first.shape[0], first.shape[1] - 1))
    found = survey(str(folder(tmp_path, config, [small, *rest, strange])))
    assert len(found.refused) == 3
    refused = states(found, REFUSED)
    assert refused[first.name] == f"is {small.shape}; config.json implies {first.shape}"
    assert refused[second.name].startswith("is missing; there is ")
    assert refused[strange.name] == "unknown weight of the family llama"
    more = {"rope_interleaved": True, "gate_scale": 2, "hidden_size": "many", "auto_map": {"a": "b"}}
    found = survey(str(folder(tmp_path, {**config, **more}, [first])))
    assert {*states(found, REFUSED)} == {f"config.json: {name}" for name in more}
    assert [*states(found, OPEN)] == ["weights"]


@pytest.mark.parametrize("fault", ["longer", "shorter", "type", "nested", "no JSON", "long header"])
def test_a_header_that_lies_is_refused_and_no_more_of_the_file_is_read(fault: str, tmp_path: Path) -> None:
    begin = head([TensorEntry("a", "F32", (2, 3))])
    whole = {
        "longer": begin + bytes(25),
        "shorter": begin + bytes(23),
        "type": begin.replace(b"F32", b"F31") + bytes(24),
        "nested": begin.replace(b"[2,3]", b"[[2]]") + bytes(24),
        "no JSON": begin.replace(b"{", b"[") + bytes(24),
        "long header": (1 << 50).to_bytes(8, "little") + begin[8:],
    }[fault]
    (tmp_path / "model.safetensors").write_bytes(whole)
    with pytest.raises(DataError, match=r"model\.safetensors: not a weights file"):
        header(str(tmp_path / "model.safetensors"))


def test_all_that_is_refused_of_an_adapter_is_listed_at_once(tmp_path: Path) -> None:
    how = {"peft_type": "LORA", "r": 0, "lora_alpha": 4, "bias": "all", "use_dora": True, "task_type": "X"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(how))
    found = survey_adapter(str(tmp_path))
    refused = {name.removeprefix("adapter_config.json: ") for name in states(found, REFUSED)}
    assert refused == {"r", "bias", "use_dora", "source"}
    assert [*states(found, COMES_IN)] == ["adapter_config.json: lora_alpha"]
