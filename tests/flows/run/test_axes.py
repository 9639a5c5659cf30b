"""A plan can be run: a node has the layout of its ranks, and its roles fit it."""

from pathlib import Path

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.flows.run.plan import make_plan
from atelier.infra.dag import Node, Product, declare
from atelier.infra.store.store import Store

AXES = ("replicate", "shard", "context", "tensor", "pipeline")
ALL = ("pipeline=2", "tensor=2", "context=2", "replicate=2")


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(tmp_path_factory.mktemp("store")))


@pytest.mark.parametrize("given", [*((f"{axis}=2",) for axis in AXES), ALL], ids=" ".join)
def test_every_node_of_titan_has_a_layout_of_its_own_ranks(given: tuple[str, ...], store: Store) -> None:
    overrides = ["experiment=tiny", "parallel.shard=1", *(f"parallel.{axis}" for axis in given)]
    found = {node.name: node for node in collect_nodes(compose("titan", overrides), store)}
    for node in found.values():
        if node.layout:
            assert Parallel.model_validate(node.layout).ranks == node.ranks, node.name
    together = 2 ** len(given)
    assert (
        found["train"].ranks == found["train.controls"].ranks == found["finetune.teacher"].ranks == together
    )
    assert found["imitate"].ranks == 1


def test_what_is_given_for_the_students_of_one_task_is_not_asked_of_another(store: Store) -> None:
    given = ("parallel.shard=1", "parallel.pipeline=2", "parallel.stages=[1,1]", "parallel.tensor=2")
    own = "parallel.roles.student_a.shard=2"
    found = {
        node.name: node for node in collect_nodes(compose("titan", ["experiment=tiny", *given, own]), store)
    }
    assert found["train"].layout["roles"] and found["train"].layout["stages"] == [1, 1]
    for name in ("train.ahead", "train.controls", "finetune.student_a"):
        assert not found[name].layout["roles"] and not found[name].layout["stages"], name


def test_an_axis_that_no_model_has_is_refused_by_the_plan(store: Store) -> None:
    with pytest.raises(ConfigError, match="no role's model has experts; shard=2 uses the same ranks"):
        make_plan(compose("titan", ["experiment=tiny", "parallel.expert=2"]), store)


def test_a_vocabulary_that_an_axis_does_not_divide_is_refused_by_the_plan(store: Store) -> None:
    overrides = ["experiment=tiny", "parallel.tensor=2", "tokenizer.vocab=513"]
    with pytest.raises(ConfigError, match=r"2 does not divide roles\.teacher\.model\.vocab 513; tensor=1"):
        make_plan(compose("distill", overrides), store)


def test_a_node_of_other_ranks_than_its_layout_is_refused() -> None:
    layout = Parallel(shard=1, tensor=2).model_dump(mode="json")
    node = Node(name="tuning", task="finetune", products=dict[str, Product](), layout=layout)
    with pytest.raises(ConfigError, match=r"tuning\.layout: the axes' product is 2, but .* runs with 1"):
        declare(node, [])


@pytest.mark.parametrize("flow", ["distill", "titan"])
def test_who_starts_before_its_teacher_is_refused_by_name(flow: str) -> None:
    with pytest.raises(ConfigError, match=r"\.start: step 0, but its teacher teacher starts at step 1"):
        name = "assistant" if flow == "titan" else "student_a"
        compose(flow, ["experiment=tiny", "roles.teacher.start=1", f"roles.{name}.start=0"])


def test_memory_is_compared_with_what_is_known_of_the_vocabulary(tmp_path: Path) -> None:
    loaded = tmp_path / "tokenizer.json"
    loaded.write_text("{}")  # read later, by the run: what the plan knows is where it is
    own = (f"tokenizer.load={loaded}", "model.hidden=256", "tokenizer.vocab=4096")
    compose("pretrain", ["experiment=tiny", *own, "model.vocab=512"])
    compose("pretrain", ["experiment=tiny", *own, "score.memory_gb=0.006"])
    with pytest.raises(ConfigError, match=r"score.memory_gb: 0.006 GB cannot hold"):
        compose("pretrain", ["experiment=tiny", *own[1:], "score.memory_gb=0.006"])


def test_a_score_of_no_model_is_refused(store: Store) -> None:
    with pytest.raises(ConfigError, match="models: is empty"):
        make_plan(compose("score", ["models=[]"]), store)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("optim.schedule.warmup=50",), "50 steps of warm-up, but lr falls after 18 of its 24 steps"),
        (("optim.schedule={kind:linear,warmup:24}",), "lr falls after 23 of its 24 steps"),
        (("optim.schedule.floor=0.1",), "20 steps of warm-up, but lr falls after 18"),
    ],
)
def test_a_warm_up_longer_than_what_comes_before_the_decay_is_refused(
    given: tuple[str, ...], says: str, store: Store
) -> None:
    with pytest.raises(ConfigError, match=says):
        make_plan(compose("pretrain", ["experiment=tiny", *given]), store)


def test_a_run_shorter_than_its_configuration_says_that_the_peak_is_never_reached(store: Store) -> None:
    """An experiment as it is shipped does not warn of its own schedule."""
    assert not make_plan(compose("pretrain", ["experiment=tiny"]), store).notes
    notes = make_plan(compose("pretrain", ["experiment=tiny", "train.steps=22"]), store).notes
    assert any("peak learning rate is never reached: train.model (20 steps" in note for note in notes), notes
    notes = make_plan(compose("pretrain", ["experiment=tiny", "train.steps=200"]), store).notes
    assert not any("peak" in note for note in notes)


@pytest.mark.parametrize(("kind", "said"), [("adamw", "lr times 0.5"), ("muon", "lr is the same")])
def test_a_plan_says_what_a_base_width_scales(store: Store, kind: str, said: str) -> None:
    given = ["experiment=tiny", f"optim={kind}", "model.hidden=64", "model.base_width=32"]
    [note] = [note for note in make_plan(compose("pretrain", given), store).notes if "base_width" in note]
    assert note == (
        "train: model is 2 times as wide as model.base_width 32: for matrices in blocks "
        f"{said}, init_std times 0.707; logits times 0.5"
    )
    assert not any("base_width" in note for note in make_plan(compose("pretrain", given[:-1]), store).notes)
