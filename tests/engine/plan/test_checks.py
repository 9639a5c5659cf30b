"""Layouts that cannot work are refused with the key, the numbers and a layout that would fit."""

from typing import Any

import pytest

from atelier.engine.config.base import parse
from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import Experts
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.parallel import Axes, Parallel
from atelier.engine.config.registry import ModelSpec, ObjectiveSpec
from atelier.engine.config.role import Role, Trainable
from atelier.engine.config.router.topk import TopK
from atelier.engine.config.train import Train
from atelier.engine.extensions.sites.config.train.link import Link
from atelier.engine.plan.checks import check_layout
from atelier.engine.plan.layout_checks import check_manifest, micro_batches
from tests.engine.extensions.sites.at_sites import check_sites


def net(**more: Any) -> GPT:
    return GPT(**{"num_layers": 4, "hidden": 32, "num_heads": 4, "num_kv_heads": 2, "vocab": 66} | more)


def roles(**more: Any) -> dict[str, Role]:
    optim = AdamW(lr=1e-3)
    own: dict[str, ObjectiveSpec] = {"lm": LM()}
    if "mlm" in more:
        own["mlm"] = MLM(sequence=more.pop("mlm"))
    student = {"lm": LM(), "kd": Logits()}
    return {
        "teacher": Role(model=net(**more), objective=own, optim=optim),
        "s": Role(model=net(), objective=student, optim=optim, teacher="teacher"),
    }


def check(model: dict[str, Any] | None = None, how: dict[str, Any] | None = None, **axes: Any) -> None:
    train = {"steps": 4, "global_batch": 8, "sequence": 16, "micro_batch": 1} | (how or {})
    check_layout(Parallel(**{"shard": 1} | axes), roles(**(model or {})), Train(**train))


REFUSED = {
    "heads": (
        {"tensor": 3, "sequence_parallel": False},
        {},
        "parallel.tensor: 3 does not divide roles.teacher.model.num_heads 4; tensor=2 would fit",
    ),
    "key heads": (
        {"tensor": 4},
        {},
        "parallel.tensor: 4 does not divide roles.teacher.model.num_kv_heads 2; tensor=2 would fit",
    ),
    "vocabulary": (
        {"tensor": 4},
        {"num_kv_heads": 4},
        "parallel.tensor: 4 does not divide roles.teacher.model.vocab 66; tensor=3 would fit",
    ),
    "experts": (
        {"expert": 4},
        {"num_experts": 6},
        "parallel.expert: 4 does not divide roles.teacher.model.num_experts 6; expert=3 would fit",
    ),
    "no experts": (
        {"expert": 2},
        {},
        "parallel.expert: 2, but no role's model has experts; shard=2 uses the same ranks",
    ),
    "layers": (
        {"pipeline": 8},
        {},
        "parallel.pipeline: 8 stages are more than roles.teacher.model.num_layers 4; pipeline=4 would fit",
    ),
    "stages": (
        {"pipeline": 2, "stages": (2, 1)},
        {},
        "parallel.stages: [2, 1] are 2 stages of 3 blocks; roles.teacher.model has 4 blocks for 2 stages; "
        "stages=[] balances them",
    ),
    "speeds": (
        {"pipeline": 2, "speeds": (1.0,)},
        {},
        "parallel.speeds: 1 numbers for 2 pipeline ranks; give one per rank, or none",
    ),
    "batch": (
        {"shard": 3},
        {},
        "parallel: replicate 1 x shard 3 = 3 does not divide train.global_batch 8; 2 ranks would fit",
    ),
    "context": (
        {"context": 3},
        {},
        "parallel.context: context 3 and tensor 1 need a multiple of 6; train.sequence is 16; "
        "train.sequence=18 would fit",
    ),
    "a zero-bubble pipeline of shards": (
        {"pipeline": 2, "shard": 2, "schedule": "zb"},
        {},
        "parallel.schedule: zb does not work if ranks share weights",
    ),
    "a student of nobody": (
        {"roles": {"x": {"shard": 1}}},
        {},
        "parallel.roles.x: is not a student here; students: s",
    ),
    "a student on other ranks": (
        {"tensor": 2, "roles": {"s": {"shard": 4}}},
        {},
        "parallel.roles.s: its axes' product is 4, but 2 ranks hold the outputs of teacher; shard=2 may fit",
    ),
    "a student split further": (
        {"shard": 2, "roles": {"s": {"tensor": 2}}},
        {},
        "parallel.roles.s: context x tensor = 2 does not divide the 1 x 1 of teacher; a student's tokens "
        "come from its teacher's ranks: use shard or replicate for the rest",
    ),
    "columns of a tied embedding": (
        {"shard": 2, "embedding": "columns"},
        {},
        "parallel.embedding: columns does not work: the head of roles.teacher.model shares the embedding",
    ),
    "columns of rows": (
        {"tensor": 2, "shard": 2, "embedding": "columns"},
        {"tied": False},
        "parallel.embedding: columns, but tensor=2 splits the embedding by rows; tensor=1",
    ),
    "columns that do not divide": (
        {"shard": 8, "embedding": "columns"},
        {"tied": False, "hidden": 20, "num_heads": 2},
        "parallel.embedding: columns: 8 ranks (shard, expert and context) do not divide "
        "roles.teacher.model.hidden 20; 5 ranks would fit",
    ),
    "rows whose length does not divide": (
        {"context": 2},
        {"mlm": 30},
        "parallel.context: context 2 and tensor 1 need a multiple of 4; "
        "roles.teacher.objective.mlm.sequence is 30; roles.teacher.objective.mlm.sequence=32 would fit",
    ),
    "rows longer than the training's": (
        {},
        {"mlm": 128},
        "roles.teacher.objective.mlm.sequence: rows of 128 tokens are longer than train.sequence 64; "
        "train.sequence=128, or 0 for the same length",
    ),
    "rows that compete in no micro-batch of a pipeline": (
        {"pipeline": 4},
        {"num_experts": 4, "experts": Experts(router=TopK(capacity=1.0), group=4)},
        "roles.teacher.model.experts.group: 4 rows compete for experts, but no micro-batch that holds "
        "them gives enough micro-batches for pipeline=4 (1f1b); train.global_batch=16 would fit",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_layout_that_does_not_divide_is_refused_with_one_that_would(name: str) -> None:
    axes, model, message = REFUSED[name]
    how: dict[str, Any] = {"micro_batch": "auto"} if "group" in message else {}
    if "mlm" in model:
        how = {"sequence": 64}
    with pytest.raises(ConfigError) as caught:
        check(model, how, **axes)
    assert str(caught.value).startswith(message)


def test_a_student_whose_ranks_cannot_share_a_micro_batch_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"cannot split micro-batches of 1 from teacher's 1 ranks; train.micro_batch=2 would",
    ):
        check(tensor=2, roles={"s": {"shard": 2}})


def test_fewer_micro_batches_than_pipeline_ranks_are_refused() -> None:
    with pytest.raises(ConfigError, match="4 ranks, but only 2 micro-batches per step"):
        check(how={"micro_batch": 4}, pipeline=4)


def test_zero_bubble_with_selective_recomputation_is_refused() -> None:
    zb: dict[str, Any] = {"pipeline": 2, "schedule": "zb"}
    with pytest.raises(ConfigError, match=r"parallel\.recompute: selective does not work with schedule=zb"):
        check(recompute="selective", how={"micro_batch": 1}, **zb)
    check(recompute="full", how={"micro_batch": 1}, **zb)


def test_rows_are_shared_down_a_chain_of_students() -> None:
    """The root's micro-batch of two is enough for its student, and too little for that one's student."""
    found = roles(num_kv_heads=4)
    found["second"] = found["s"].model_copy(update={"teacher": "s"})
    own = {"s": {"shard": 2, "context": 2}, "second": {"shard": 4}}
    layout = Parallel.model_validate({"shard": 1, "context": 4, "roles": own})
    how: dict[str, Any] = {"steps": 8, "global_batch": 8, "sequence": 32}
    with pytest.raises(
        ConfigError,
        match=r"roles\.second: its 4 data-parallel ranks .* of 2 from teacher's 1 ranks; .*=4 would",
    ):
        check_layout(layout, found, Train.model_validate(how | {"micro_batch": 2}))
    check_layout(layout, found, Train.model_validate(how | {"micro_batch": 4}))
    assert micro_batches(layout, 8) == [4, 8]


def test_what_divides_is_taken() -> None:
    check(pipeline=2, tensor=2, shard=2, how={"sequence": 32})
    check({"num_experts": 4}, shard=2, expert=2)  # its student has none: there the axis deals out samples
    check(how={"micro_batch": 2}, context=2, tensor=2, roles={"s": {"shard": 2, "tensor": 2}})


def test_a_gang_of_another_size_is_told_what_would_fit() -> None:
    with pytest.raises(ConfigError, match=r"tensor 2 x pipeline 2 = 4, but 6 processes were started"):
        Parallel(shard=1, tensor=2, pipeline=2).for_world(6)
    assert Parallel(tensor=2, pipeline=2).for_world(8).shard == 2
    assert Parallel(tensor=2).resolved(slots=8, cores=8).shard == 4


def test_a_model_that_offers_no_split_is_refused_on_these_axes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GPT, "limits", ModelSpec.limits)
    check(shard=2, replicate=2)
    for axis in ("tensor", "context", "pipeline"):
        with pytest.raises(
            ConfigError, match=rf"parallel\.{axis}: 2, but .* of kind gpt does not support this split"
        ):
            check(**{axis: 2})


LINK: dict[str, Any] = {"every": 2, "mailbox": "/mail", "rows": {"a": 4, "b": 4}, "site": "a"}
NONE: list[dict[str, Any]] = [{"kind": "none"}, {"kind": "int4"}]


@pytest.mark.parametrize(
    ("link", "axes", "says"),
    [
        (LINK, {"shard": 2, "assignment": "measured"}, "parallel.assignment: measured, and a site"),
        (
            LINK | {"choose": NONE, "rounds": "/models/rounds.jsonl"},
            {},
            "train.link.rounds: the rounds of one model, and this training has teacher, s",
        ),
    ],
)
def test_sites_that_could_not_go_on_to_the_same_bits_are_refused(
    link: dict[str, Any], axes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        check(how={"link": link}, **axes)
    check(how={"link": LINK})


def test_a_gate_that_each_site_would_open_by_its_own_rows_is_refused() -> None:
    gated = roles()
    gated["s"] = gated["s"].model_copy(update={"gate": 0.05})
    how: dict[str, Any] = {"steps": 4, "global_batch": 8, "sequence": 16}
    check_sites(Parallel(), gated, Train(**how, link=Link(**LINK | {"rows": {"a": 8}})))
    with pytest.raises(ConfigError, match=r"roles\.s\.gate: 0\.05, which each site"):
        check_sites(Parallel(), gated, Train(**how, link=Link(**LINK)))


def mixture(**router: Any) -> dict[str, Any]:
    return {"num_experts": 4, "experts": Experts(ffn=32, router=TopK(**router))}


@pytest.mark.parametrize(
    ("router", "axes", "says"),
    [
        (
            {"balance": "bias"},
            {},
            "roles.teacher.model.experts.router.balance: bias, whose bias no gradient changes, and sites"
            " exchange only weights that gradients change; balance=row, or none",
        ),
        (
            {"balance": "batch"},
            {},
            "roles.teacher.model.experts.router.balance: batch, whose load no gradient",
        ),
        (
            {},
            {"tiers": {"experts": "disk"}},
            "parallel.tiers.experts: disk, and sites cannot exchange the experts of roles.teacher.model on"
            " disk; experts=device",
        ),
    ],
)
def test_what_sites_do_not_exchange_of_experts_is_refused_by_the_plan(
    router: dict[str, Any], axes: dict[str, Any], says: str
) -> None:
    """With a link, for a role that is trained, and nowhere else."""
    with pytest.raises(ConfigError) as caught:
        check(mixture(**router), {"link": LINK}, **axes)
    assert str(caught.value).startswith(says)
    check(mixture(**router), **axes)
    check(mixture(balance="row"), {"link": LINK})
    finished = {"trainable": Trainable(kind="none"), "init": "m"}
    teacher = roles(**mixture(**router))["teacher"].model_copy(update=finished)
    how = {"steps": 4, "global_batch": 8, "sequence": 16, "link": LINK}
    check_sites(Parallel.model_validate(axes), {"teacher": teacher}, Train.model_validate(how))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"progressive": {"steps": 2}}, r"progressive.steps=2: growth is not built .*; progressive.steps=0"),
        ({"health": {"nan": "rollback"}}, r"health.nan=rollback is not built .*; health.nan=skip, or stop"),
        ({"health": {"spike": "rollback"}}, r"health.spike=rollback is not built .*; health.spike=skip"),
    ],
)
@pytest.mark.parametrize(
    "link", [LINK, {"roles": {"a": ["teacher"], "b": ["s"]}, "site": "a", "mailbox": "/m"}]
)
def test_a_training_of_several_sites_neither_grows_nor_goes_back(
    link: dict[str, Any], how: dict[str, Any], says: str
) -> None:
    document = {"steps": 4, "global_batch": 8, "sequence": 16} | how
    parse(Train, document, "train")
    with pytest.raises(ConfigError, match=says):
        parse(Train, document | {"link": link}, "train")


def test_a_checkpoint_whose_manifest_could_not_be_read_back_is_refused_with_a_layout_that_can() -> None:
    def trained(model: ModelSpec, **more: Any) -> Role:
        return Role(model=model, objective={"lm": LM()}, optim=AdamW(lr=1e-3), **more)

    wide = GPT(num_layers=105, hidden=2048, num_heads=16, vocab=1024)
    with pytest.raises(ConfigError, match="8192 ranks share each weight of model") as caught:
        check_manifest(trained(wide), Axes(shard=8192), place="parallel", model="model")
    assert caught.value.way_out == "replicate=16 shard=512 for the same ranks"
    large = GPT(num_layers=105, hidden=20480, num_heads=128, vocab=51200)
    for one, axes in (
        (trained(wide), Axes(replicate=16, shard=512)),
        (trained(wide.model_copy(update={"vocab": "auto"})), Axes(shard=256)),
        (trained(large), Axes(shard=64, tensor=8)),
        (trained(wide, init="a", trainable=Trainable(kind="none")), Axes(shard=8192)),
    ):
        check_manifest(one, axes, place="parallel", model="model")
