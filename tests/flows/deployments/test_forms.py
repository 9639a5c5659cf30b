"""The form of each flow: its fields, equality with the command line, and refusals."""

import keyword
import re
import shlex
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as some
from jsonschema import Draft202012Validator

from atelier import PROJECT
from atelier.engine.config.error import UNSEEN, ConfigError
from atelier.engine.config.model.gpt import GPT
from atelier.flows.deployments.deploy import example
from atelier.flows.deployments.form_fields import is_of_a_paper
from atelier.flows.deployments.forms import form, to_overrides
from atelier.flows.run.catalog import CONF, flow_names, options
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.flows.run.overrides import check_overrides
from atelier.infra.launch.found_gpus import FoundGpus, report_gpus
from atelier.infra.store.store import Store
from tests.marks import quick
from tests.stored_models import store_with

FLOWS = flow_names()
NEEDED = {
    "init": "mine", "models": ["teacher"], "source": "/exported/student_a", "chats_source": "/talks",
    "evals": ["builtins"], "checkpoints": ["3f2a91c0@400"], "pose_data": "questions",
}  # fmt: skip
LOOKED_UP = {"pretrain": ("init",)}  # in the store, when a run is composed
BESIDE = {"nebula": ("sites=[]",)} | {  # a form's run is at one site; memory of their own models
    flow: ("score.memory_gb=0",) for flow in ("semoe", "cpm2")
}
DIGEST = "0123456789abcdef" * 2


@pytest.fixture(autouse=True, scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Has the model that a flow begins from which looks it up when it is composed, and GPUs of a worker."""
    root = tmp_path_factory.mktemp("store")
    found = FoundGpus(host="big", name="NVIDIA H100", total=1, free=1, memory_gb=80)
    report_gpus(str(root), "gpu", found, [])
    store_with(root, GPT(num_layers=2, hidden=64, num_heads=4, vocab=512), NEEDED["init"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATELIER_ROOT", str(root))
        yield


def properties(flow: str) -> dict[str, dict[str, Any]]:
    """All fields by name: the basic ones and those of the advanced group."""
    fields: dict[str, Any] = dict(form(flow)["properties"])
    return fields | fields.pop("advanced")["properties"]


def selects(flow: str) -> dict[str, dict[str, Any]]:
    return {name: one for name, one in properties(flow).items() if "enum" in one}


def needed(flow: str) -> dict[str, Any]:
    """What a flow does not go without."""
    names = properties(flow).keys() - {*LOOKED_UP.get(flow, ())}
    return {name: value for name, value in NEEDED.items() if name in names}


def refusal(flow: str, parameters: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        to_overrides(flow, parameters)
    assert caught.value.place and caught.value.problem and caught.value.way_out
    return str(caught.value)


def some_value(schema: dict[str, Any]) -> Any:
    """A value that is not the configuration's, for each kind of field."""
    if "enum" in schema:
        return next(name for name in schema["enum"] if name != "auto")  # which wants an init
    if schema["type"] == "integer":
        return max(16, schema.get("minimum", 0)) * 2
    listed = ["train=cpu", "score=local"] if "=" in schema.get("pattern", "") else ["one", "two"]
    return {"number": 0.25, "string": "mine", "array": listed, "boolean": True}[schema["type"]]


def filled(flow: str) -> dict[str, Any]:
    """The form with a value in every field but the last two."""
    found = {
        name: NEEDED.get(name) or ("/texts" if name.endswith("source") else some_value(one))
        for name, one in properties(flow).items()
        if name not in ("overrides", "code", "sweep", *LOOKED_UP.get(flow, ()))
    }
    return found | ({"experiment": "tiny"} if "experiment" in found else {})  # others have tokens for steps


def written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and "=" in str(value):
        return f"{{{','.join(each.replace('=', ': ') for each in value)}}}"
    listed = [repr(each) if "@" in each else each for each in value] if isinstance(value, list) else None
    text = str(value) if listed is None else f"[{','.join(listed)}]"
    return f"'{text}'" if text.startswith("/") else text


@pytest.mark.parametrize("flow", FLOWS)
def test_a_form_is_a_json_schema_of_optional_plain_fields(flow: str) -> None:
    schema = form(flow)
    Draft202012Validator.check_schema(schema)
    assert (schema["title"], schema["type"], schema["required"]) == ("Parameters", "object", [])
    fields, first = properties(flow), dict(schema["properties"])
    group = first["advanced"]["properties"]
    for part in (first, group):
        assert [one["position"] for one in part.values()] == list(range(len(part)))
    assert all(name.isidentifier() and not keyword.iskeyword(name) for name in fields)
    assert len({one["title"] for one in fields.values()}) == len(fields)
    for one in fields.values():
        assert one["type"] in ("string", "integer", "number", "array", "boolean") and one["description"]
        assert not {"anyOf", "allOf", "$ref"} & set(one)
    assert list(first)[:2] == ["experiment", "pool"] and list(group)[-3:] == ["overrides", "code", "sweep"]
    advanced = {name: value for name, value in filled(flow).items() if name in group}
    basic = {name: value for name, value in filled(flow).items() if name in first}
    Draft202012Validator(schema).validate(basic | {"advanced": advanced})
    assert to_overrides(flow, basic | {"advanced": advanced}) == to_overrides(flow, filled(flow))


@pytest.mark.parametrize("flow", FLOWS)
def test_the_first_screen_has_at_most_ten_fields_and_no_preset_of_a_papers_size(flow: str) -> None:
    first = dict(form(flow)["properties"])
    del first["advanced"]
    assert len(first) <= 10
    assert first["experiment"]["default"] == "tiny" and first["pool"]["default"] == "local"
    offered = {option for one in properties(flow).values() for option in one.get("enum", ())}
    assert not offered & {"titan_260b", "cpm2_198b", "semoe_207b", "ernie_titan_260b", "titan_paper"}


def test_a_field_says_the_default_of_each_experiment() -> None:
    steps = properties("pretrain")["train_steps"]["description"]
    assert "Default: 320" in steps and "tiny: 24" in steps and "laptop: 360" in steps
    assert "score_controls" in form("distill")["properties"]
    assert to_overrides("distill", {"score_controls": True}) == ["score.controls=true"]


@pytest.mark.parametrize(
    ("flow", "given"),
    [
        ("pretrain", {"data_source": "texts/*.jsonl"}),
        ("pretrain", {"overrides": ["data.source=texts.jsonl"]}),
        ("adopt", {"source": "guest"}),
        ("instruct", {"chats_source": "talks"}),
        ("pretrain", {"advanced": {"overrides": ["+data.source='a/b'"]}}),
    ],
)
def test_a_relative_path_is_refused_because_a_worker_runs_in_another_folder(flow: str, given: Any) -> None:
    assert "give an absolute path" in refusal(flow, given)


def test_paths_that_are_absolute_addresses_or_names_are_taken() -> None:
    for source in ("/texts/*.jsonl", "~/texts", "s3://bucket/texts/*.jsonl", "stdlib", "stdlib:json,email"):
        assert to_overrides("pretrain", {"data_source": source})


def test_types_bounds_and_help_are_those_of_the_specs() -> None:
    fields = properties("titan")
    steps, rate, start = (
        fields[name] for name in ("train_steps", "roles_teacher_optim_lr", "roles_student_a_start")
    )
    assert (steps["title"], steps["type"], steps["minimum"]) == ("train.steps", "integer", 0)
    assert "optimiser steps" in steps["description"]
    assert (rate["type"], rate["exclusiveMinimum"], rate["maximum"]) == ("number", 0, 1)
    assert (start["type"], start["minimum"]) == ("number", 0)
    assert fields["train_precision"]["enum"] == ["bf16", "fp32", "fp64", "fp8"]
    assert "anyOf" not in fields["parallel_shard"] and fields["parallel_shard"]["type"] == "integer"
    assert "pattern" in properties("pretrain")["name"]


ONLY_OF = {  # experiments
    "demo": ("distill", "titan"),
    "detector": ("distill", "titan"),
}


@pytest.mark.parametrize("flow", FLOWS)
def test_a_select_has_exactly_the_options_in_conf(flow: str) -> None:
    groups = {one["title"].split("@")[0]: one["enum"] for one in selects(flow).values()}
    of_conf = {group: names for group, names in groups.items() if (CONF / group).is_dir()}
    assert {"experiment", "pool"} <= set(of_conf)
    # objectives that need a teacher are offered to students alone
    taught = ["distill", "replaced", "titan_student"]
    untaught = [name for name in runnable("objective") if name not in taught]
    for group, names in of_conf.items():
        if group == "objective":
            assert names in (taught, untaught)
        elif group == "pool":  # those that workers can serve
            assert names == ["gpu", "local", "local_b", "pair"]
        elif group == "experiment":
            assert names == [name for name in runnable(group) if flow in ONLY_OF.get(name, (flow,))]
        else:
            assert names == runnable(group)


def runnable(group: str) -> list[str]:
    """The options without those of a paper's size."""
    return [name for name in options(group) if not is_of_a_paper(group, name)]


@pytest.mark.parametrize("flow", quick(sorted(FLOWS, key=lambda flow: flow != "distill")))
def test_every_choice_of_every_select_composes(flow: str) -> None:
    offered = {name: one["enum"] for name, one in selects(flow).items()}
    for number in range(max(map(len, offered.values()))):
        parameters = {name: names[number % len(names)] for name, names in offered.items()} | needed(flow)
        parameters = {name: value for name, value in parameters.items() if value != "auto"}  # wants an init
        if parameters.get("data") == "files":
            parameters["data_source"] = "/texts/*.jsonl"
        if parameters.get("train_precision") == "fp8":  # refused on a pool of CPUs
            parameters["train_precision"] = "bf16"
        if "spans" in parameters.values():  # whose sentinels the tokenizer needs
            parameters["tokenizer"] = "bpe4k_spans"
        words = [*to_overrides(flow, parameters), *BESIDE.get(flow, ())]
        assert compose(flow, words, from_form=True).document


@pytest.mark.parametrize("flow", FLOWS)
def test_a_filled_form_is_the_command_line(flow: str) -> None:
    parameters = filled(flow)
    fields = properties(flow)
    words = [f"{fields[name]['title']}={written(value)}" for name, value in parameters.items()]
    backwards = dict(reversed(list(parameters.items())))
    assert to_overrides(flow, backwards | {"code": DIGEST}) == words
    words += BESIDE.get(flow, ())
    from_form = compose(flow, words, from_form=True)
    assert from_form.document == compose(flow, words).document
    for name, value in parameters.items():
        title = fields[name]["title"]
        if "." in title and "@" not in title and not title.endswith((".start", ".queue", "pool.tasks")):
            found: Any = from_form.document
            for part in title.split("."):
                found = found[part]
            assert found == value, title


def test_a_filled_form_has_the_fingerprints_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    parameters = {
        "experiment": "tiny",
        "roles_student_a_model": "ernie_nano",
        "roles_student_a_optim_lr": 0.005,
        "train_seed": 7,
        "overrides": ["roles.student_b.start=0.25"],
    }
    line = (
        "experiment=tiny model@roles.student_a.model=ernie_nano train.seed=7 roles.student_a.optim.lr=0.005"
    )
    store = Store(str(tmp_path / "store"))
    of_form = compose("titan", to_overrides("titan", parameters), from_form=True)
    of_line = compose("titan", [*line.split(), "roles.student_b.start=0.25"])
    assert of_form.document == of_line.document
    prints = [
        {node.name: {key: one.fingerprint for key, one in node.products.items()} for node in nodes}
        for nodes in (collect_nodes(of_form, store), collect_nodes(of_line, store))
    ]
    assert prints[0] == prints[1] and len(prints[0]) > 5


@pytest.mark.parametrize("flow", FLOWS)
def test_a_blank_form_is_no_word(flow: str) -> None:
    names = list(properties(flow))
    for blank in (None, "", [], [""], [None]):
        assert to_overrides(flow, dict.fromkeys(names, blank)) == []
    assert to_overrides(flow, {}) == to_overrides(flow, {"code": DIGEST}) == []


@pytest.mark.parametrize("flow", FLOWS)
def test_boxes_stand_by_section_each_role_by_itself_and_rare_ones_last(flow: str) -> None:
    group: Any = form(flow)["properties"]["advanced"]
    places = [one["title"].partition("@")[2] or one["title"] for one in group["properties"].values()]
    assert places[-3:] == ["overrides", "code", "sweep"]
    rare = ("pool.queue", "pool.tasks", "train.precision", "train.checkpoint_every", "parallel.")
    is_rare = [place.startswith(rare) for place in places[:-3]]
    assert is_rare == sorted(is_rare)
    common = [place for place in places[:-3] if not place.startswith(rare)]
    sections = [".".join(place.split(".")[: 2 if place.startswith("roles.") else 1]) for place in common]
    assert [name for name, _ in groupby(sections)] == list(dict.fromkeys(sections))


def test_the_list_of_overrides_comes_last_and_wins() -> None:
    given = {"overrides": ["train.seed=3", "", "model=gpt_mini"], "train_seed": 2, "model": "gpt_nano"}
    words = to_overrides("pretrain", given)
    assert words == ["train.seed=2", "model=gpt_nano", "train.seed=3", "model=gpt_mini"]
    document = compose("pretrain", words, from_form=True).document
    assert document["train"]["seed"] == 3 and document["model"]["hidden"] == 192


WRONG = [
    # a field's name and value, then what the line has to say: key, fault, value, way out
    ("train_steps", -5, "train.steps: must be at least 0 (given: -5); optimiser steps"),
    ("train_steps", "many", "train.steps: must be a whole number (given: 'many'); optimiser steps"),
    ("train_steps", 1.5, "train.steps: must be a whole number (given: 1.5)"),
    ("train_steps", True, "train.steps: must be a whole number (given: True)"),
    ("train_steps", [1], "train.steps: must be a whole number (given: [1])"),
    ("train_steps", {"a": 1}, "train.steps: must be a whole number (given: {'a': 1})"),
    ("train_seed", 10**30, "train.seed: must be a finite number in range"),
    ("train_seed", 10**6000, "train.seed: must be a finite number in range (given: a number too"),
    ("optim_lr", 7, "optim.lr: must be at most 1 (given: 7); peak learning rate"),
    ("optim_lr", 0, "optim.lr: must be above 0 (given: 0)"),
    ("optim_lr", "1e-3", "optim.lr: must be a number (given: '1e-3')"),
    ("optim_lr", float("nan"), "optim.lr: must be a finite number in range (given: nan)"),
    ("optim_lr", float("inf"), "optim.lr: must be a finite number in range (given: inf)"),
    ("train_precision", "fp9", "train.precision: is not one of the options (given: 'fp9'); did you mean fp"),
    ("model", "gpt_nan", "model: is not one of the options (given: 'gpt_nan'); did you mean gpt_nano? there"),
    ("model", 3, "model: must be a text (given: 3); there are: auto, encdec_experts"),
    ("pool", "here", "pool: is not one of the options (given: 'here'); "),
    ("experiment", "../model/gpt_nano", "experiment: is not one of the options"),
    ("name", "my model", "name: must match ^[A-Za-z0-9]"),
    ("name", "mine\n", "name: must be on one line"),
    ("name", "x" * 20_000, "name: has 20000 characters, more than 10000"),
    ("data_source", "${train.seed}", "data.source: must be a plain text (given: '${train.seed}'); write the"),
    ("data_source", "???", "data.source: must be a plain text"),
    ("train_stps", 3, "'train_stps': the form has no such field; did you mean train_steps?"),
    ("train.steps", 3, "'train.steps': the form has no such field; did you mean train_steps?"),
    ("code", "HEAD", "code: must match ^[0-9a-f]{32}$ (given: 'HEAD'); digest of the frozen code"),
    ("overrides", "train.seed=3", "overrides: must be a list of texts (given: 'train.seed=3')"),
    ("overrides", [3], "overrides: must be a list of texts (given: [3])"),
    ("overrides", ["train.seed"], "overrides: this is not an override (given: 'train.seed'); write key=val"),
    ("overrides", ["model=gpt_nan"], "model: no option 'gpt_nan' in group model; did you mean gpt_nano?"),
    ("overrides", ["model=[gpt_nano,../../x]"], "model: no option '../../x' in group model"),
    ("overrides", ["train.seed=1,2"], "train.seed: several values are a sweep, and a form is one run"),
    ("overrides", ["train.seed=1"] * 201, "overrides: are 201, more than 200"),
    ("overrides", ["name=" + "x" * 10_000], "overrides: has 10005 characters, more than 10000"),
    ("overrides", ["name=" + "x" * 9_000] * 20, "overrides: have more than 100000 characters in all"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "says"), WRONG, ids=[f"{w[0]}-{n}" for n, w in enumerate(WRONG)])
def test_a_wrong_value_is_named_with_its_key_and_the_way_out(name: str, value: Any, says: str) -> None:
    line = refusal("pretrain", {name: value})
    assert says in line and len(line) < 1200


def test_a_flow_that_is_not_there_is_named() -> None:
    for flow in ("titn", "../cli/run", ""):
        with pytest.raises(ConfigError, match="no flow"):
            form(flow)


def read_back(word: str) -> Any:
    """A word's value, as Hydra reads it."""
    return OverridesParser.create().parse_override(word).value()


@settings(max_examples=300, deadline=None)
@given(text=some.text(max_size=40) | some.text(alphabet="'\\\"${}[],:= a", max_size=12))
def test_a_text_arrives_as_it_was_written_or_is_refused(text: str) -> None:
    text = f"/{text}"  # a relative path is refused
    try:
        words = to_overrides("corpus", {"data_source": text})
    except ConfigError:
        assert UNSEEN.search(text) or any(mark in text for mark in ("${", "$\\", "???", "[", "_"))
    else:
        assert [read_back(word) for word in words] == ([text] if text else [])


@pytest.mark.parametrize("text", ["it's", "null", "1e3", "a\\", "\\'x", "$", "{a: [b, c]}", " größe\u202f!"])
def test_a_text_reaches_the_configuration_unchanged(text: str) -> None:
    words = to_overrides("corpus", {"data_source": text})
    assert compose("corpus", words, from_form=True).document["data"]["source"] == text


def test_what_people_write_in_a_form_is_allowed() -> None:
    check_overrides(
        [
            "+role@roles.student_c=student",
            "roles.student_c.start=0.25",
            "~roles.student_b",
            "experiment@_global_=tiny",
            "train.seed=${train.steps}",
            "data.blend={books: {source: 's3://books/*.jsonl', weight: 2}}",
            "model=[gpt_nano]",
            "data.source='texts, old/*.txt'",
        ],
        from_form=True,
    )


@pytest.mark.parametrize("flow", FLOWS)
def test_the_command_on_a_flow_s_page_can_be_planned(flow: str) -> None:
    words = shlex.split(example(flow).replace("init=guest", "init=mine"))  # a model that there is
    assert words[:2] == ["atelier", flow] and words[-1] == "pool=local"
    frozen = compose(flow, words[2:])
    assert frozen.pool.is_served and frozen.here is None


def test_prefect_s_own_command_deploys_every_flow() -> None:
    entries = re.findall(r"entry\.py:(\w+)", (PROJECT / "prefect.yaml").read_text())
    assert sorted({*entries} - {"work", "rerun"}) == sorted(FLOWS) and "rerun" in entries
