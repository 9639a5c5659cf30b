"""Random products: models, objectives, trainings, layouts of the teacher and of each student, recomputation
and precision, drawn from a seed. Every kind of model, objective and optimiser has its generator here.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import count, cycle
from typing import Any, Literal, NamedTuple

from atelier.engine.config.blocks import MLPS
from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import Experts
from atelier.engine.config.memory import ProductKeyMemory
from atelier.engine.config.mixture import row_specs
from atelier.engine.config.model.encdec import EncDec
from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.model.gpt import GPT, Multipliers
from atelier.engine.config.objective.attention import Attention
from atelier.engine.config.objective.control import Control
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.optim.muon import Muon
from atelier.engine.config.parallel import Axes, Parallel
from atelier.engine.config.registry import ModelSpec, ObjectiveSpec, OptimSpec
from atelier.engine.config.role import Role, Trainable
from atelier.engine.config.rope import Rope
from atelier.engine.config.router.base import Base
from atelier.engine.config.router.expert_choice import ExpertChoice
from atelier.engine.config.router.hash import Hash
from atelier.engine.config.router.topk import TopK
from atelier.engine.config.routing import RouterSpec
from atelier.engine.config.row_classes import RowClasses
from atelier.engine.config.schedule import Schedule, WeightSchedule
from atelier.engine.config.train import Health, Progressive, Train
from atelier.engine.config.trajectory import resolve_starts
from atelier.engine.plan.checks import check_layout, check_readers, check_teaching
from atelier.engine.plan.layout_checks import check_encoders
from atelier.engine.plan.role_checks import check_schedules
from tests.engine.row_inputs import VOCAB as LIBRARY_VOCAB
from tests.engine.trainings import VOCAB
from tests.parity.cases import layout
from tests.parity.detectors import or_detectors
from tests.parity.drawn import split
from tests.parity.objectives import TAUGHT, Draw, has_encoder, own_objectives

STEPS = 5
AXES = ("replicate", "shard", "context", "tensor")


class Product(NamedTuple):
    """`then`: the layout in which the last steps are trained, from a checkpoint of the first one."""

    name: str
    roles: Mapping[str, Role]
    train: Train
    layout: Parallel
    then: Parallel | None
    reads_library: bool


def products(seed: int, ranks: int) -> Iterator[Product]:
    """Endlessly many, of those that the checks let through: in turn any, and one of what is rare."""
    wanted = cycle((None, regathers, None, is_pipelined))
    wish = next(wanted)
    for number in count():
        found = product(f"{seed}/{ranks}/{number}")
        if found is not None and (wish is None or wish(found)):
            yield found
            wish = next(wanted)


def regathers(one: Product) -> bool:
    """Whether a student that learns from attention lies otherwise than its teacher, whose heads are split."""
    for name, role in one.roles.items():
        mine, theirs = one.layout.axes_of(name), one.layout.axes_of(role.teacher)
        compares = any(isinstance(spec, Attention) for spec in role.objective.values())
        if compares and theirs.tensor > 1 and mine != theirs:
            return True
    return False


def is_pipelined(one: Product) -> bool:
    return one.layout.pipeline > 1


def product(name: str) -> Product | None:
    """The draw of this name, seed/ranks/number or seed/ranks/number/precision; None when it does not fit
    together.
    """
    seed, of_ranks, number, *precision = name.split("/")
    if precision:
        one = product(f"{seed}/{of_ranks}/{number}")
        return one and in_precision(one, precision[0])
    draw, ranks = random.Random(name), int(of_ranks)
    reads_library = draw.random() < 0.4
    try:
        train = training(draw, reads_library)
        drawn = cast(draw, train, LIBRARY_VOCAB if reads_library else VOCAB, reads_library)
        drawn = or_detectors(random.Random(f"{name}/detectors"), drawn) if reads_library else drawn
        drawn = padded(random.Random(f"{name}/padding"), drawn)
        if train.precision == "fp64":  # of rounded scores another pair may be the best
            drawn = remembering(random.Random(f"{name}/memory"), drawn)
        roles = resolve_starts(drawn, train)
        check_teaching(roles)
        check_schedules(roles, train)
        check_readers(roles, row_specs(roles).values(), train.sequence)
        check_encoders(roles, row_specs(roles).values())
        first = place(draw, ranks, roles)
        then = place(draw, ranks, roles) if draw.random() < 0.3 else None
        for each in (first, then):
            if each is not None:
                check_layout(each, roles, train)
    except (ConfigError, ValueError):
        return None
    return Product(name, roles, train, first, then, reads_library)


def in_precision(one: Product, precision: str) -> Product:
    """The same product in another precision."""
    train = one.train.model_copy(update={"precision": precision})
    return one._replace(name=f"{one.name}/{precision}", train=train)


def padded(draw: Draw, roles: dict[str, Role]) -> dict[str, Role]:
    """With rows beyond the tokenizer's ids in the models that can have them, a teacher with other ones than
    its student. Its draws move no other.
    """
    found = {}
    for name, role in roles.items():
        model, padding = role.model, draw.choice((0, 4, 12))
        if isinstance(model, GPT):
            model = model.model_copy(update={"vocab_padding": padding})
        found[name] = role.model_copy(update={"model": model})
    return found


def remembering(draw: Draw, roles: dict[str, Role]) -> dict[str, Role]:
    """A third of the decoders have product-key memories. Its draws move no other."""
    found = dict(roles)
    for name, role in roles.items():
        blocks = tuple(n for n in range(role.model.num_layers) if draw.random() < 0.5)
        keys, heads, per_token = draw.choice((3, 6)), draw.choice((1, 2)), draw.choice((1, 4, 9))
        sizes = {"blocks": blocks, "keys": keys, "heads": heads, "per_token": per_token, "width": 8}
        if blocks and isinstance(role.model, GPT) and draw.random() < 0.33:
            model = role.model.model_copy(update={"memory": ProductKeyMemory.model_validate(sizes)})
            found[name] = role.model_copy(update={"model": model})
    return found


def training(draw: Draw, reads_library: bool) -> Train:
    """Rows of the library's kinds do not fit into less than 32 tokens."""
    shorter = 1.0 if reads_library else 0.5
    grown = {"steps": 3, "stages": 2, "sequence": shorter, "batch": 0.5} if draw.random() < 0.15 else {}
    return Train(
        steps=STEPS,
        global_batch=draw.choice((4, 8, 8)),
        micro_batch=draw.choice((1, 2, 4, "auto")),
        sequence=32 if reads_library else draw.choice((16, 32)),
        precision=draw.choice(("fp64", "fp64", "fp64", "fp64", "fp32", "bf16")),
        seed=draw.randrange(1000),
        checkpoint_every=2,
        keep=STEPS,
        eval_sequences=6,
        progressive=Progressive(**grown),
        health=Health(spike=draw.choice(("off", "skip"))),
    )


def cast(draw: Draw, train: Train, vocab: int, reads_library: bool) -> dict[str, Role]:
    """One or two roots and up to three students, of roots or of students."""
    rows = own_objectives(draw) if reads_library else {"lm": LM()}
    if len(rows) > 1 and draw.random() < 0.3:
        rows |= moved(draw, rows)
    roles: dict[str, Role] = {}
    for number in range(1 if draw.random() < 0.8 else 2):
        roles[f"root{number}"] = Role(
            model=model(draw, vocab, rows, num_layers=draw.choice((2, 4, 4))),
            objective=rows,
            optim=optimiser(draw),
            trainable=trainable(draw),
        )
    for number in range(draw.choice((0, 1, 1, 2, 3))):
        own = (
            dict(draw.sample(sorted(rows.items()), draw.randint(1, len(rows))))
            if draw.random() < 0.85
            else {}
        )
        taught = {
            name: make(draw) for name, make in draw.sample(sorted(TAUGHT.items()), draw.choice((1, 1, 2)))
        }
        if draw.random() < 0.3:
            taught |= moved(draw, own | taught)
        start = draw.choice((0, 0, 0, 1, 2))
        roles[f"student{number}"] = Role(
            model=model(draw, vocab, rows if has_encoder(rows) else own, num_layers=draw.choice((1, 2))),
            objective=own | taught,
            optim=optimiser(draw),
            trainable=trainable(draw),
            teacher=draw.choice(sorted(roles)),
            start=start,
            end=draw.choice((0, 0, 0, 4)),
            period=draw.choice((1, 1, 1, 2)) if own else 1,
            gate=draw.choice(("open", "open", "open", 0.2)) if own else "open",
        )
    return roles


def optimiser(draw: Draw) -> OptimSpec:
    kind = draw.choice(("constant", "wsd", "cosine", "linear", "noam"))
    floor = 0.0 if kind in ("constant", "noam") else draw.choice((0.0, 0.1))
    schedule = Schedule(kind=kind, warmup=draw.choice((0, 1)), floor=floor)
    return OPTIMISERS[draw.choice(sorted(OPTIMISERS))](draw, schedule)


def moved(draw: Draw, objectives: Mapping[str, ObjectiveSpec]) -> dict[str, ObjectiveSpec]:
    """One of them, with a weight that moves."""
    name, spec = draw.choice(sorted(objectives.items()))
    if type(spec).needs_teacher and draw.random() < 0.5:
        follows = WeightSchedule(kind="lead", nats=draw.choice((0.001, 0.1, 2.0)))
        return {name: spec.model_copy(update={"schedule": follows})}
    schedule = WeightSchedule(
        kind=draw.choice(("linear", "cosine")),
        first=draw.choice((1.0, 0.0)),
        last=draw.choice((0.0, 0.5)),
        begin=draw.choice((0, 1, 0.25)),
        end=draw.choice((0, 3)),
    )
    return {name: spec.model_copy(update={"schedule": schedule})}


OPTIMISERS: Mapping[str, Callable[[Draw, Schedule], OptimSpec]] = {
    "adamw": lambda draw, schedule: AdamW(lr=draw.choice((1e-3, 1e-2)), schedule=schedule),
    "muon": lambda draw, schedule: Muon(lr=1e-3, matrix_lr=1e-2, schedule=schedule),
}


def trainable(draw: Draw) -> Trainable:
    kind = draw.choice(("full", "full", "full", "full", "lora", "parts"))
    part = draw.choice(("nlu", "nlg", "blocks", "norm", "embed"))
    given: Mapping[str, Any] = {"lora": {"rank": 4}, "parts": {"parts": (part,)}}.get(kind, {})
    return Trainable(kind=kind, **given)


def widths(draw: Draw) -> dict[str, Any]:
    heads = draw.choice((2, 4))
    return {
        "hidden": draw.choice((16, 32)),
        "num_heads": heads,
        "num_kv_heads": draw.choice((heads, heads, heads // 2, 1)),
        "norm": draw.choice(("rms", "layer")),
        "dropout": draw.choice((0.0, 0.0, 0.1)),
    }


def mixed(draw: Draw, num_layers: int) -> dict[str, Any]:
    """A mixture's experts and their router; each row competes alone, as micro-batches hold any number."""
    routers: list[RouterSpec] = [
        TopK(),
        TopK(balance=draw.choice(("row", "batch", "bias")), z_weight=draw.choice((0.0, 1e-3))),
        TopK(score="sigmoid", groups=2, groups_per_token=1, balance=draw.choice(("none", "bias"))),
        TopK(capacity=draw.choice((0.5, 1.0))),
        ExpertChoice(sees_future=True),
        Base(sees_future=True),
        Hash(),
    ]
    router = draw.choice(routers)
    experts = Experts(
        ffn=draw.choice(("auto", 32)),
        activation=draw.choice(("auto", *MLPS)),
        shared=draw.choice((0, 0, 1)),
        every=draw.choice((1, min(2, num_layers))),
        combine=draw.choice(("softmax_chosen", "softmax_all", "sum")),
        router=router,
    )
    per_token = 1 if router.kind == "base" else draw.choice((1, 2))
    return {"experts_per_token": per_token, "experts": experts}


ROPES = (
    Rope(),
    Rope(kind="linear", factor=4.0),
    Rope(kind="llama3", factor=8.0, original=16),
    Rope(kind="yarn", factor=4.0, original=16),
)


def foreign(draw: Draw, num_layers: int, *, is_rotary: bool, is_mixed: bool) -> dict[str, Any]:
    """Fields that models of other families have."""
    matrices: list[Literal["qkv", "out", "mlp"]] = ["qkv", "out"] if is_mixed else ["qkv", "out", "mlp"]
    window = draw.choice((0, 8))
    blocks = tuple(n for n in range(num_layers) if draw.random() < 0.5)
    return {
        "head_dim": draw.choice(("auto", 12)),
        "bias": tuple(draw.sample(matrices, draw.randint(0, len(matrices)))),
        "qk_norm": draw.random() < 0.5,
        "rope": draw.choice(ROPES) if is_rotary else Rope(),
        "window": window,
        "window_blocks": draw.choice(("all", blocks)) if window else "all",
        "multipliers": draw.choice(
            (Multipliers(), Multipliers(embedding=2.0, residual=0.5, scores=0.2, logits=0.5))
        ),
    }


def gpt(draw: Draw, vocab: int, rows: Mapping[str, ObjectiveSpec], num_layers: int) -> GPT:
    num_experts = draw.choice((0, 0, 4))
    mixture = mixed(draw, num_layers) if num_experts else {}
    positions = draw.choice(("rope", "rope", "learned"))
    is_rotary, is_mixed = positions == "rope", bool(num_experts)
    fields = foreign(draw, num_layers, is_rotary=is_rotary, is_mixed=is_mixed)
    return GPT(
        num_layers=num_layers,
        vocab=vocab,
        num_experts=num_experts,
        mlp=draw.choice(tuple(MLPS)),
        **mixture,
        **(fields if draw.random() < 0.6 else {}),
        positions=positions,
        max_positions=64,
        tied=draw.random() < 0.5,
        **widths(draw),
    )


def ernie(draw: Draw, vocab: int, rows: Mapping[str, ObjectiveSpec], num_layers: int) -> Ernie:
    prompts = [spec.num_prompts for spec in rows.values() if isinstance(spec, Control)]
    compared = [spec.kind for spec in rows.values() if isinstance(spec, RowClasses) and spec.comparisons]
    return Ernie(
        num_layers=num_layers,
        vocab=vocab,
        nlu=Net(num_layers=draw.choice((0, 1)), hidden=16, num_heads=2),
        nlg=Net(num_layers=draw.choice((0, 1, 2)), hidden=16, num_heads=2),
        classes={spec.kind: spec.num_classes for spec in rows.values() if spec.num_classes},
        pairs={kind: 4 for kind in compared if draw.random() < 0.5},
        prompts=prompts[0] if prompts else 0,
        mlp=draw.choice(("swiglu", "gelu")),
        **widths(draw),
    )


def encdec(draw: Draw, vocab: int, rows: Mapping[str, ObjectiveSpec], num_layers: int) -> EncDec:
    mixture = mixed(draw, num_layers) | {"num_experts": 4} if draw.random() < 0.3 else {}
    return EncDec(
        num_layers=num_layers,
        encoder_layers=draw.choice((1, 2, 3)),
        vocab=vocab,
        **mixture,
        mlp=draw.choice(("geglu", "relu")),
        head_dim=draw.choice(("auto", 12)),
        tied=draw.random() < 0.5,
        **(widths(draw) | {"num_kv_heads": "auto", "buckets": 8, "max_distance": 20}),
    )


MODELS: Mapping[str, Callable[..., ModelSpec]] = {"gpt": gpt, "ernie": ernie, "encdec": encdec}


def model(draw: Draw, vocab: int, rows: Mapping[str, ObjectiveSpec], num_layers: int) -> ModelSpec:
    """One that may read the rows."""
    kind = "encdec" if has_encoder(rows) else draw.choice(("ernie", "gpt"))
    return MODELS[kind](draw, vocab, rows, num_layers)


def place(draw: Draw, ranks: int, roles: Mapping[str, Role]) -> Parallel:
    """A layout of so many ranks; half of the students have axes of their own."""
    sizes = split(draw, ranks, ("pipeline", *AXES, *(("expert",) if draw.random() < 0.3 else ())))
    in_stage = ranks // sizes["pipeline"]
    own = {
        name: Axes(**split(draw, in_stage, AXES))
        for name, role in roles.items()
        if role.teacher and not role.reads_changed and draw.random() < 0.5
    }
    schedule = draw.choice(("1f1b", "interleaved", "zb")) if sizes["pipeline"] > 1 else "1f1b"
    root = roles["root0"].model.num_blocks
    unequal = sizes["pipeline"] == 2 and schedule == "1f1b" and root > 2 and draw.random() < 0.3
    return layout(
        **sizes,
        roles=own,
        schedule=schedule,
        stages=draw.choice(((1, root - 1), (root - 1, 1))) if unequal else (),
        sequence_parallel=draw.random() < 0.6,
        zero=draw.choice((1, 2, 3)),
        recompute=draw.choice(("none", "none", "selective", "full")),
        recompute_every=draw.choice((1, 2)),
        embedding=draw.choice(("gathered", "columns")) if has_heads(roles) else "gathered",
        **elastic(draw, sizes["replicate"] * sizes["shard"] * sizes.get("expert", 1)),
    )


def has_heads(roles: Mapping[str, Role]) -> bool:
    """Whether no role's head is its embedding."""
    return not any(getattr(role.model, "tied", True) for role in roles.values())


def elastic(draw: Draw, data: int) -> dict[str, Any]:
    """In a fifth of the layouts samples are assigned by cost, of them half to ranks of other speeds."""
    if draw.random() > 0.2:
        return {}
    entries = [[step, *(draw.choice((0.5, 1.0, 3.0)) for _ in range(data))] for step in (0, 2)]
    return {"assignment": "static", "speed_log": entries if draw.random() < 0.5 else ()}
