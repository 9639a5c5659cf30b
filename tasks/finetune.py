"""finetune: tune a model on small random draws of labelled examples, and the same network from random weights
on the same draws.
"""

from collections.abc import Iterable, Mapping

from atelier.engine.config.base import Json
from atelier.engine.config.data import Finetune
from atelier.engine.config.data_plan import DataPlan
from atelier.engine.config.error import ConfigError
from atelier.engine.config.mixture import EXAMPLES, Stream, identity_of
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Training
from atelier.engine.config.sections import at_one_site, sections_of
from atelier.engine.config.text_blocks import TextBlocks
from atelier.engine.config.train import Train
from atelier.engine.config.trajectory import Feed, Segment, segments_of
from atelier.engine.plan.checks import check_extensions, check_layout
from atelier.engine.plan.role_checks import check_trainable
from atelier.infra.code.code_map import maps_of
from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest
from atelier.infra.run.resume_plan import Resume, ResumePlan, check, lease_addresses, members, resume_plan
from atelier.infra.store.data_plans import write_data_plan
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import register_trajectory, repair_trajectory
from atelier.tasks.train import model_product

VERSION = 1
ROLE = "model"


def finetune(
    model: Reference,
    spec: ModelSpec,
    *,
    settings: Finetune,
    train: Train,
    labels: Reference,
    tokenizer: Reference,
    parallel: Parallel,
    name: str = "",
    section: str = "finetune",
) -> dict[str, Reference]:
    """Models by key `pretrained-<draw>` and `scratch-<draw>`. One gang trains all of them, one after
    another. Rows of padding fill a batch that the layout does not divide. `name`: what the tuned models are
    called before their key; empty = as the model. `section`: configuration key of the settings, for errors.

    Raises ConfigError for settings, or a layout, that the model does not support.
    """
    name, tuning, parallel = name or model.name, tuning_of(settings, train), parallel.at(0)
    roles = {key: role_of(key, spec, settings, section) for key in _keys(settings)}
    check_trainable(f"{section}.", roles["pretrained-0"])
    for asked in sections_of(tuning).values() if settings.scratch else ():
        asked.check_scratch()
    tuning = Train.model_validate(tuning.model_dump())
    check_extensions(parallel, {"": roles["pretrained-0"]}, tuning, prefix=f"{section}.")
    check_sizes(parallel, roles, tuning, section)
    settings.optim.schedule.check_floor(0, tuning.num_steps, f"{section}.optim.schedule")
    config: dict[str, Json] = {
        "train": tuning.model_dump(mode="json"),
        "name": name,
        "num_labels": settings.num_labels,
        "roles": {key: role.model_dump(mode="json") for key, role in roles.items()},
    }
    inputs = {"labels": input_of(labels), "tokenizer": input_of(tokenizer), "init": input_of(model)}
    node = Node(
        name=f"finetune.{name}",
        task="finetune",
        products={},
        inputs=inputs,
        config=config,
        layout=parallel.model_dump(mode="json"),
        ranks=parallel.ranks,
    )
    feeds = {key: feed_of(node, key) for key in roles}
    roles, _, segments = unpack(node)
    products = {
        key: _product(f"{name}/{key}", roles[key].model, segments[key], feeds[key], tuning, section)
        for key in roles
    }
    return declare(node.model_copy(update={"products": products}), [model, labels, tokenizer])


def tuning_of(settings: Finetune, train: Train) -> Train:
    """The settings of one draw's training."""
    return at_one_site(train).model_copy(
        update={
            "steps": settings.num_steps,
            "tokens": 0,
            "global_batch": settings.batch,
            "micro_batch": "auto",
            "sequence": settings.sequence,
            "keep": 0,
            "keep_every": 0,
            "keep_best": 0,
        }
    )


def check_sizes(
    parallel: Parallel, roles: Mapping[str, Role], tuning: Train, section: str = "finetune"
) -> None:
    """Raise ConfigError, with a layout that fits, if the model does not support the layout. Draws are alike,
    so the first is checked.
    """
    first = {key: role for key, role in roles.items() if key.endswith("-0")}
    check_layout(parallel, first, tuning, prefix="", section=section, pads=True)


def _keys(settings: Finetune) -> list[str]:
    kinds = ["pretrained", "scratch"] if settings.scratch else ["pretrained"]
    return [f"{kind}-{draw}" for draw in range(settings.draws) for kind in kinds]


def role_of(key: str, spec: ModelSpec, settings: Finetune, section: str = "finetune") -> Role:
    """The role of a product's key. Raises ConfigError for a soft prompt that the model or its rows have no
    room for.
    """
    is_scratch = key.startswith("scratch")
    tuned = settings.trainable.soft_prompt
    if tuned.length and not is_scratch:
        if not isinstance(spec, TextBlocks):
            raise ConfigError(
                f"{section}.trainable.kind", f"prompt, but models of kind {spec.kind} have none", "kind=lora"
            )
        if had := spec.soft_prompt.length:
            raise ConfigError(
                f"{section}.trainable.kind",
                f"prompt, but the model has one of {had} vectors",
                "its base as init",
            )
        if tuned.length >= settings.sequence:
            raise ConfigError(
                f"{section}.trainable.length",
                f"{tuned.length} vectors leave no room in rows of {settings.sequence} tokens",
                f"{section}.trainable.length={settings.sequence // 2}",
            )
        spec = spec.model_copy(update={"soft_prompt": tuned})
    return Role(
        model=spec,
        objective={"lm": LM()},
        optim=settings.optim,
        init="" if is_scratch else "init",
        trainable=Role.model_fields["trainable"].default if is_scratch else settings.trainable,
        seed_name=key if is_scratch else "tuned",
    )


def feed_of(node: Node, key: str) -> Feed:
    parents = {role: fp for role, (_, fp) in node.inputs.items() if role != "init"}
    return Feed(
        parents=parents,
        identity={"num_labels": node.config["num_labels"], "draw": _draw(key)}
        | identity_of([EXAMPLES], {"labels": 1.0}),
    )


def _stream(node: Node, key: str) -> Stream:
    return Stream(input="labels", kind=EXAMPLES, num_examples=node.training.num_labels, draw=_draw(key))


def _draw(key: str) -> int:
    return int(key.rsplit("-", 1)[1])


def unpack(node: Node) -> tuple[dict[str, Role], Train, dict[str, list[Segment]]]:
    """Roles, settings and segments, by product key."""
    config, segments = node.training, {}
    for key, role in config.roles.items():
        inits = {ROLE: node.inputs["init"][1]} if role.init else {}
        segments[key] = segments_of({ROLE: role}, config.train, feed_of(node, key), inits)[ROLE]
    return config.roles, config.train, segments


def _product(
    name: str, spec: ModelSpec, segments: list[Segment], feed: Feed, train: Train, section: str
) -> Product:
    product = model_product(name, spec, segments, feed, train, f"{section}.")
    moved = {
        "num_labels": f"{section}.num_labels",
        "draw": f"{section}.draws",
        "horizon": f"{section}.epochs",
        "step": f"{section}.epochs",
    }
    moved |= {
        "global_batch": f"{section}.batch",
        "sequence": f"{section}.sequence",
        "model": "model",
        "seed": "train.seed",
    }
    return product.model_copy(update={"origin": product.origin | moved})


def _model_of(node: Node, key: str) -> tuple[str, str]:
    return node.products[key].kind, node.products[key].fingerprint


def plan_resume(node: Node, store: Store, resume: Resume) -> dict[str, ResumePlan]:
    """Resume plans by product key; finished products are left out."""
    roles, _, segments = unpack(node)
    maps = maps_of(node)
    found = {
        key: resume_plan(
            {ROLE: roles[key]},
            {ROLE: segments[key]},
            {ROLE: _model_of(node, key)},
            store,
            node=node.name,
            maps={ROLE: maps[key]},
            resume=resume,
        )
        for key in roles
    }
    return {key: one for key, one in found.items() if one.situations}


def mend(node: Node, context: RunContext) -> None:
    """Rewrite unreadable trajectory records of finished models."""
    roles, _, segments = unpack(node)
    for key in roles:
        for segment in segments[key]:
            repair_trajectory(context.store, node.products[key].name, segment, context.provenance(node))


def run(node: Node, context: RunContext) -> None:
    """Fine-tune the unfinished models in one process group. Raises ConfigError for trainings that cannot be
    resumed, StoppedError, and errors of the ranks.
    """
    roles, settings, segments = unpack(node)
    maps = maps_of(node)
    if node.name in context.resume.fresh:
        context.begin_again(node, {key: segments[key] for key in context.missing(node)})
    resume = context.resume.model_copy(update={"fresh": ()})
    found = {key: check(node.name, one) for key, one in plan_resume(node, context.store, resume).items()}
    if not found:
        return

    def register_all(keys: Iterable[str]) -> None:
        for key in keys:
            for segment in segments[key]:
                register_trajectory(
                    context.store, node.products[key].name, segment, context.provenance(node), maps.get(key)
                )
                data = DataPlan.of(settings, [_stream(node, key)], (), "blocks")
                write_data_plan(context.store, segment.fingerprint, data, settings)

    register_all(found)

    def config(fences: Mapping[str, int]) -> dict[str, Json]:
        trainings = []
        still = plan_resume(node, context.store, resume)
        register_all(still)  # again: another run may have restarted it
        for key, now in still.items():
            one = check(node.name, now, leased=fences, store=context.store)
            [member] = members(
                one,
                {ROLE: roles[key]},
                {ROLE: _model_of(node, key)},
                context.store,
                fences,
                context.vocab(node),
                {ROLE: maps[key]},
                resume,
            ).values()
            member = member.model_copy(update={"output": key, "init": "init" if roles[key].init else ""})
            training = Training(members={ROLE: member}, streams=(_stream(node, key),), train=settings)
            trainings.append(training.model_dump(mode="json"))
        return {"trainings": trainings, "peak_tflops": context.peak_tflops(node)}

    addresses = [address for one in found.values() for address in lease_addresses(one, context.store)]
    asked = GangRequest(
        node=node,
        module="atelier.engine.train",
        config=config,
        outputs={key: node.products[key] for key in found},
        addresses=addresses,
        seed=settings.seed,
    )
    context.gang(asked)
