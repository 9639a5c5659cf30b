"""train: train one or several roles on the same batches in one process group; a teacher teaches its students
in the same pass.
"""

from collections.abc import Mapping
from dataclasses import replace

from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError, ConfigError, StoppedError
from atelier.engine.config.mixture import (
    BLOCKS,
    Phase,
    Sharing,
    check_sources,
    identity_of,
    read_in,
    resolve_phases,
    row_specs,
    sources,
)
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Member, Training
from atelier.engine.config.sections import is_here
from atelier.engine.config.train import Train
from atelier.engine.config.trajectory import Feed, Segment, origins, segments_of
from atelier.engine.plan.checks import check_everybody, check_layouts
from atelier.engine.plan.role_checks import check_caps
from atelier.engine.plan.role_placement import placement_of, with_teachers
from atelier.infra.code.code_change import digest_of
from atelier.infra.code.code_map import maps_of, model_kinds
from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest
from atelier.infra.run.resume_plan import Resume, ResumePlan, check, lease_addresses, members, resume_plan
from atelier.infra.store.data_plans import write_data_plan
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import claim_site, register_trajectory, repair_trajectory

VERSION = 1


def train(
    roles: Mapping[str, Role],
    *,
    settings: Train,
    tokens: Mapping[str, Reference],
    weights: Mapping[str, float],
    phases: Mapping[str, Phase] | None = None,
    sharing: Sharing = BLOCKS,
    tokenizer: Reference,
    parallel: Parallel,
    name: str = "train",
    labels: Mapping[str, str] | None = None,
    inits: Mapping[str, Reference] | None = None,
    prefix: str = "roles.",
    section: str = "train",
    companions: Mapping[str, Role] | None = None,
    finished: Mapping[str, Reference] | None = None,
    extras: Mapping[str, Mapping[str, Reference]] | None = None,
) -> dict[str, Reference]:
    """Declare a training. Returns the model of each role of this site, with those that were finished before.
    A run over several sites has a training for each site with roles, and the models of all.

    `extras`: inputs of objectives besides tokens, by kind and text source: {"triples": {"main": ...}}.
    `phases`: other weights of the sources from a step on. `sharing`: the assignment of samples to sources,
    and caps of their epochs. `labels`: other names of the models than their roles'. `prefix`: place of the
    roles in the configuration ('' for a single model); `section`: place of the training's length and link.
    `companions`: roles of other sweep points that learn from the same teacher.
    `finished`: models of roles that an earlier node trains with the same settings; their students here have
    attach=frozen.

    Raises ConfigError for an `init` or an input that the flow does not provide.
    """
    everybody = {**roles, **(companions or {})}
    later = resolve_phases(weights, phases or {}, settings.num_steps)
    check_everybody(everybody, settings, phases or {}, section=section)
    check_caps(sharing, settings)
    placement = placement_of(settings, everybody)
    if placement.parts:
        by_part = {
            part: train(
                roles,
                settings=own,
                tokens=tokens,
                weights=weights,
                phases=phases,
                sharing=sharing,
                tokenizer=tokenizer,
                parallel=parallel,
                name=f"{name}.{part}",
                labels=labels,
                inits=inits,
                prefix=prefix,
                section=section,
                companions=companions,
                finished=finished,
                extras=extras,
            )
            for part, own in placement.parts.items()
        }
        return {role: by_part[placement.part_of(role)][role] for role in roles}
    begun = dict(inits or {})
    models = {key: begun.pop(key) for key, role in everybody.items() if not role.moves and key in begun}
    frozen = {**(finished or {}), **models}
    parallel = parallel.with_steps(settings.num_steps)
    more = {"frozen": frozen, "inits": inits or {}, "prefix": prefix, "section": section}
    check_layouts(everybody, settings, parallel, **more)
    check_sources(everybody, weights, prefix)
    found = {f"tokens.{key}": reference for key, reference in tokens.items()} | {"tokenizer": tokenizer}
    found |= _extra_inputs(everybody, weights, extras or {}, prefix)
    inputs = {key: input_of(reference) for key, reference in found.items()}
    inputs |= {f"init.{role}": input_of(reference) for role, reference in begun.items()}
    inputs |= {f"frozen.{role}": input_of(reference) for role, reference in frozen.items()}
    config = {
        "roles": {key: role.model_dump(mode="json") for key, role in everybody.items()},
        **({"finished": list(finished)} if finished else {}),
        "train": settings.model_dump(mode="json"),
        **({"section": section} if section != "train" else {}),
        "weights": dict(weights),
        **({"later": [shares.model_dump(mode="json") for shares in later]} if later else {}),
        **({"sharing": sharing.model_dump(mode="json")} if sharing != Sharing() else {}),
    }
    node = Node(name=name, task="train", products={}, inputs=inputs, config=config)
    node = node.model_copy(update={"layout": parallel.model_dump(mode="json"), "ranks": parallel.ranks})
    _, _, segments = unpack(node)
    feed = feed_of(node, everybody)
    every = {
        role: model_product(
            (labels or {}).get(role, role.split("~")[0]),
            everybody[role].model,
            segments[role],
            feed,
            settings,
            f"{prefix}{role}." if prefix else "",
            section,
        )
        for role in everybody
        if segments[role] and is_here(settings, role)
    }
    for role, reference in (finished or {}).items():
        if role in every and every.pop(role).fingerprint != reference.fingerprint:
            raise ConfigError(
                f"{prefix}{role}", "the students' data order differs from the teacher's original run"
            )
    after = [*found.values(), *begun.values(), *frozen.values()]
    made = declare(node.model_copy(update={"products": every}), after) if every else {}
    return {role: made.get(role) or models[role] for role in roles if role in made or role in models}


def _extra_inputs(
    roles: Mapping[str, Role],
    weights: Mapping[str, float],
    extras: Mapping[str, Mapping[str, Reference]],
    prefix: str,
) -> dict[str, Reference]:
    """Inputs of objectives besides tokens. Raises ConfigError for inputs that the flow lacks."""
    found: dict[str, Reference] = {}
    for source in sorted(sources(roles)):
        given = extras.get(source, {})
        if set(given) != set(weights):
            raise ConfigError(
                f"{prefix}objective" if not prefix else f"{prefix}<role>.objective",
                f"reads {source}, but this flow has none of {', '.join(set(weights) - set(given))}",
                "leave that objective out, or use a flow that has them",
            )
        found |= {f"{source}.{key}": reference for key, reference in given.items()}
    return found


def feed_of(node: Node, roles: Mapping[str, Role]) -> Feed:
    """Identity of the training data: tokens, tokenizer, and the sharing."""
    others = ("init.", "frozen.")
    parents = {role: fp for role, (_, fp) in node.inputs.items() if not role.startswith(others)}
    kinds, training = row_specs(roles), node.training

    def until(number: int) -> Feed:
        weights, later = training.weights, training.later[:number]
        unread = training.weights.keys() - read_in(weights, later)
        own = {role: fp for role, fp in parents.items() if role.partition(".")[2] not in unread}
        return Feed(parents=own, identity=identity_of(kinds, weights, later, training.sharing))

    found = {shares.begin: until(number) for number, shares in enumerate(training.later, 1)}
    return replace(until(0), later=found)


def unpack(node: Node) -> tuple[dict[str, Role], Train, dict[str, list[Segment]]]:
    """Roles, settings and segments of the node's configuration."""
    config = node.training
    inits = {
        key.partition(".")[2]: fp
        for key, (_, fp) in node.inputs.items()
        if key.startswith("init.")
        or (key.startswith("frozen.") and not config.roles[key.partition(".")[2]].moves)
    }
    return (
        config.roles,
        config.train,
        segments_of(config.roles, config.train, feed_of(node, config.roles), inits),
    )


def _from_init(name: str, member: Member, node: Node) -> Member:
    """The member, with the node's initial model for it, if any."""
    key = f"init.{name}"
    return (
        member.model_copy(update={"init": key}) if key in node.inputs and member.mode != "frozen" else member
    )


def model_product(
    name: str,
    spec: ModelSpec,
    segments: list[Segment],
    feed: Feed,
    settings: Train,
    prefix: str,
    section: str = "train",
) -> Product:
    """The model of `spec` at the end of a role's last segment; its identity is that trajectory and step.
    `prefix`, `section`: places of the role and of the training in the configuration.
    """
    last = segments[-1]
    kept = {
        key: fp
        for key, fp in {**segments[0].parents, **last.parents}.items()
        if key == "init" or key.split(".")[0] == "teacher"
    }
    return Product(
        kind="model",
        name=name,
        version=VERSION,
        identity={"step": last.end},
        parents={"trajectory": last.fingerprint, **feed.at(last.end - 1).parents, **kept},
        origin=origins(prefix, settings, section)
        | {"step": f"{section}.steps", "weights": "data", "phases": "data.phases"}
        | {"assignment": "data.assignment", "epochs": "data.epochs"},
        detail=last.identity,
        detail_parents={key: fp for key, fp in last.parents.items() if key != "trunk"},
        trajectories=tuple(segment.fingerprint for segment in segments),
        kinds=model_kinds(spec),
    )


def models_of(node: Node) -> dict[str, tuple[str, str]]:
    """Kind and fingerprint of the model of each role."""
    made = {role: (product.kind, product.fingerprint) for role, product in node.products.items()}
    here = [role for role in node.training.frozen if is_here(node.training.train, role)]
    return made | {role: node.inputs[f"frozen.{role}"] for role in here}


def plan_resume(node: Node, store: Store, resume: Resume) -> ResumePlan:
    """The resume plan of this node's training."""
    roles, settings, segments = unpack(node)
    return resume_plan(
        placement_of(settings, roles).roles_here(),
        segments,
        models_of(node),
        store,
        node=node.name,
        maps=maps_of(node),
        resume=resume,
        finished=node.training.frozen,
        asked=placement_of(settings, roles).asked_from(segments),
    )


def is_asked(node: Node) -> bool:
    """Whether students at other sites still need outputs of its roles, finished or not."""
    roles, settings, segments = unpack(node)
    return bool(placement_of(settings, roles).asked_from(segments))


def _finished(node: Node, store: Store) -> list[str]:
    """The roles with finished models."""
    return [
        role for role, made in node.products.items() if store.find(made.kind, made.fingerprint) is not None
    ]


def mend(node: Node, context: RunContext) -> None:
    """Rewrite unreadable trajectory records of finished models, and tell the sites of their teachers that
    they are finished.
    """
    roles, settings, segments = unpack(node)
    placement_of(settings, roles).tell_finished(_finished(node, context.store), segments)
    for role in node.products:
        for segment in segments[role]:
            repair_trajectory(context.store, node.products[role].name, segment, context.provenance(node))


def _register(node: Node, context: RunContext, plan: ResumePlan) -> None:
    """Record the trajectories that the node will train, and what they read."""
    maps, own = maps_of(node), node.training
    for role, situation in plan.situations.items():
        for segment in situation.segments if role in node.products else ():
            register_trajectory(
                context.store, node.products[role].name, segment, context.provenance(node), maps.get(role)
            )
            write_data_plan(context.store, segment.fingerprint, own.data_plan, own.train)


def run(node: Node, context: RunContext) -> None:
    """Train the unfinished roles in one process group. Raises ConfigError for trainings that cannot be
    resumed, StoppedError, and errors of the ranks.
    """
    roles, settings, segments = unpack(node)
    placement = placement_of(settings, roles)
    for segment in (segment for each in segments.values() for segment in each):
        if placement.claim:
            claim_site(context.store, segment.fingerprint, placement.claim)
    if node.name in context.resume.fresh:
        context.begin_again(node, {role: segments[role] for role in context.missing(node)})
    resume = context.resume.model_copy(update={"fresh": ()})
    found = check(node.name, plan_resume(node, context.store, resume))
    idle = [role for role in _finished(node, context.store) if role not in found.situations]
    placement.tell_finished(idle, segments)  # a role that trains again needs its teacher
    if not found.situations:
        return
    _register(node, context, found)
    layouts, end, reached = Parallel.model_validate(node.layout), settings.num_steps, 0
    while True:
        begin = max(found.from_step, reached)  # a replayed or ended role may stand earlier
        _, until, layout = layouts.spans(min(begin, end - 1), end)[0]
        span = node.model_copy(update={"layout": layout.model_dump(mode="json"), "ranks": layout.ranks})
        stopped: list[int] = []
        try:
            _train_until(until if until < end else 0, span, context, found, resume, stopped)
            return
        except PassedError:
            pass  # another run has trained to a step of another layout meanwhile
        except StoppedError:
            if context.stop.is_set() or stopped[-1:] != [until]:
                raise
            reached = until
        found = check(node.name, plan_resume(node, context.store, resume))
        if not found.situations:
            return


class PassedError(AtelierError):
    """A training stands at a step of another layout than the gang was asked for."""


def _train_until(
    until: int, node: Node, context: RunContext, found: ResumePlan, resume: Resume, stopped: list[int]
) -> None:
    """One gang of the node's layout, to the end, or to step `until` if that is not 0: raises StoppedError,
    with the step in `stopped`. Raises PassedError if another run has reached that step.
    """
    roles, settings, segments = unpack(node)
    placement, own = placement_of(settings, roles), node.training
    maps, models, now = maps_of(node), models_of(node), found

    def config(fences: Mapping[str, int]) -> dict[str, Json]:
        # again: another run may have trained on, or finished a role, during the wait for the lease
        nonlocal now
        now = check(node.name, plan_resume(node, context.store, resume), leased=fences, store=context.store)
        _register(node, context, now)  # again: another run may have restarted it
        if until and now.from_step >= until:
            raise PassedError(f"{node.name}: another run has trained to step {now.from_step}")
        vocab = context.vocab(node)
        every = members(now, roles, models, context.store, fences, vocab, maps, resume)
        every = placement.with_others(
            every, segments, vocab, maps, digest_of, accept_code=resume.accept_code, section=own.section
        )
        every = with_teachers(every, placement.roles_here(), vocab)
        data = own.data_plan
        training = Training(
            members={name: _from_init(name, member, node) for name, member in every.items()},
            streams=data.streams,
            phases=data.phases,
            assignment=data.assignment,
            train=settings,
            until=until,
        )
        return {"trainings": [training.model_dump(mode="json")], "peak_tflops": context.peak_tflops(node)}

    def inputs() -> dict[str, str]:
        return context.urls(node) | {
            f"frozen.{role}": context.store.address(*models[role])
            for role, situation in now.situations.items()
            if situation.mode == "frozen"
        }

    missing = {role: node.products[role] for role, each in found.situations.items() if not each.is_finished}
    with context.following(node, {role: segments[role] for role in missing}):
        asked = GangRequest(
            node=node,
            module="atelier.engine.train",
            config=config,
            outputs=missing,
            addresses=lease_addresses(found, context.store),
            inputs=inputs,
            seed=settings.seed,
            is_asked=lambda: is_asked(node),
            heard=lambda message: stopped.append(message["stopped"]) if "stopped" in message else None,
        )
        context.gang(asked)
