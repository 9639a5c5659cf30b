"""Moving weights, and trained parts, in the plans of whole flows."""

from pathlib import Path

import pytest

from atelier.engine.config.base import Json
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.infra.store.store import Store

TINY = "experiment=tiny"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def fingerprints(flow: str, store: Store, *words: str) -> dict[str, str]:
    nodes = collect_nodes(compose(flow, [TINY, *words]), store)
    return {f"{node.name}.{key}": p.fingerprint for node in nodes for key, p in node.products.items()}


def moving(role: str, name: str, **schedule: float) -> list[str]:
    place = f"roles.{role}.objective.{name}.schedule"
    return [f"{place}.kind=linear", *(f"{place}.{key}={value}" for key, value in schedule.items())]


def test_a_control_and_the_role_trained_ahead_keep_constant_weights(store: Store) -> None:
    """The control of a student whose text comes in as its teacher goes is the same as any other's."""
    plain = fingerprints("titan", store, "ahead=assistant")
    faded = fingerprints("titan", store, "ahead=assistant", *moving("assistant", "document", begin=6, end=12))
    assert {name for name in plain if plain[name] != faded[name]} >= {"train.assistant"}
    assert plain["train.ahead.assistant"] == faded["train.ahead.assistant"]


def test_of_steps_and_tokens_the_one_that_is_given_outranks_that_of_a_file() -> None:
    def length(*words: str) -> tuple[Json, Json]:
        train = section_of(compose("pretrain", [*words]).document["train"])
        return train["steps"], train["tokens"]

    assert length("train.tokens=1e6", "train.global_batch=16") == (0, 1e6)
    paper = ("experiment=semoe_13b", "pool=a100_80g")  # which gives tokens
    assert length(*paper) == (0, 1e9)
    assert length(*paper, "train.steps=24") == (24, 0)


def test_one_schedule_has_one_fingerprint_however_its_steps_are_written(store: Store) -> None:
    found = {
        fingerprints("distill", store, *moving("student_a", "logits", begin=begin))["train.student_a"]
        for begin in (10, 10.0, 1e1)
    }
    assert len(found) == 1
    for begin, problem in (
        ("10.7", "a step must be a whole number"),
        ("true", "must be a step or a share"),
    ):
        place = "roles.student_a.objective.logits.schedule"
        with pytest.raises(ConfigError, match=problem):
            fingerprints("distill", store, f"{place}.kind=linear", f"{place}.begin={begin}")


def test_parts_and_matrices_that_a_tuned_model_does_not_have_are_refused(store: Store) -> None:
    with pytest.raises(ConfigError, match=r"^finetune\.trainable\.parts: the model has no part 'nlx'"):
        fingerprints("titan", store, "finetune.trainable.kind=parts", "finetune.trainable.parts=[nlx]")
    with pytest.raises(ConfigError, match=r"^finetune\.trainable\.targets: .* 'qurey'; did you mean query"):
        fingerprints("titan", store, "finetune.trainable.kind=lora", "finetune.trainable.targets=[qurey]")
