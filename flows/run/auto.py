"""Fill in open settings of a configuration: the layout (the planner's fastest) and the checkpoint interval.
Check warm-ups against their schedules, and memory against the needs of streamed weights.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile

from pydantic import ValidationError

from atelier.engine.config.base import Spec
from atelier.engine.config.data import Data, Finetune, Score, Tokenizer, is_stdlib
from atelier.engine.config.detect import Detect
from atelier.engine.config.divisors import divisors, largest_divisor
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.objective.spans import SENTINELS, check_sentinels
from atelier.engine.config.parallel import InferenceLayout, Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role, without_pipeline
from atelier.engine.config.schedule import Schedule
from atelier.engine.config.sections import frozen_limit, is_here
from atelier.engine.config.train import Train
from atelier.engine.config.tune import Tune
from atelier.engine.plan.checks import check_layout
from atelier.engine.plan.estimate import estimate
from atelier.engine.plan.goodput import steps_between
from atelier.engine.plan.search import LayoutOption, search
from atelier.engine.plan.streamed import SCORED, check_streamed
from atelier.flows.run.memory_fit import MOST_RANKS, TRAINED, limit_gb, smallest_split, vocab_of_model
from atelier.infra.dag import Node
from atelier.infra.store.existing_model import existing_in
from atelier.infra.store.store import Store, default_root
from atelier.tasks.finetune import role_of, tuning_of

SPLIT = ("score", "examine", "imitate")  # sections of inference tasks
AXES = ("replicate", "expert", "context", "tensor", "pipeline")


def trained(arguments: Spec) -> dict[str, Role]:
    """The roles in a flow's arguments; a single model has the name ''. Empty if the arguments are invalid
    (the plan then gives the reason).
    """
    roles: dict[str, Role] = dict(getattr(arguments, "roles", None) or {})
    if not roles and hasattr(arguments, "optim") and hasattr(arguments, "model"):
        with suppress(ValidationError):
            roles = {"": Role(**{name: getattr(arguments, name) for name in ("model", "objective", "optim")})}
    return roles


def vocab_of(arguments: Spec) -> int:
    return int(getattr(getattr(arguments, "tokenizer", None), "vocab", 0) or 0)


def fastest_layout(arguments: Spec, pool: Pool, slots: int, cores: int) -> LayoutOption | None:
    """The layout with the shortest planned step of the largest role on at most `slots` ranks in which all
    roles fit; on GPUs on all of them, and if the pool found them itself, on as many as possible. None if axes
    were given, or too little is known for a search: then `shard` takes all slots.
    """
    parallel: Parallel = getattr(arguments, "parallel", Parallel())
    train: Train | None = getattr(arguments, "train", None)
    roles, vocab = trained(arguments), vocab_of(arguments)
    tuned = _tuned(arguments) if not roles and train is not None else None
    if tuned is not None:
        roles, train, vocab = tuned
    is_free = parallel.shard == "auto" and all(getattr(parallel, axis) == 1 for axis in AXES)
    if not is_free or parallel.roles or pool.members or train is None or not roles or not vocab:
        return None
    here = {name: role for name, role in roles.items() if is_here(train, name)}
    models = {name: role.model.resolved(vocab) for name, role in here.items() if role.moves}
    if not models:
        return None
    largest = max(models, key=lambda name: models[name].flops_per_token(train.sequence))
    role = roles[largest].model_copy(update={"model": models[largest]})
    wanted = (parallel.recompute,) if parallel.recompute != "none" or pool.is_cpu else None
    found: list[LayoutOption] = []
    fewer = range(slots, 0, -1) if pool.found else [slots]
    for ranks in divisors(slots, slots) if pool.is_cpu else fewer:
        like = parallel.resolved(ranks, cores)
        limited = pool.model_copy(update={"memory_gb": limit_gb(pool, ranks)})
        more = {"recompute": wanted} if wanted else {}
        try:
            options, _ = search(
                role, train, limited, ranks, vocab=vocab, like=like, pads=tuned is not None, **more
            )
        except ConfigError:  # a device without known speed
            return None
        found += [option for option in options if tuned or _suits(option, roles, train)]
        if found and not pool.is_cpu:
            break
    if not found:
        return None
    return min(found, key=lambda option: option.estimate.step_s)


def _tuned(arguments: Spec) -> tuple[dict[str, Role], Train, int] | None:
    """For a flow that only fine-tunes: the role, its training and its vocabulary; None for other flows, and
    if the model is unknown or does not fit the settings (the flow's body then gives the reason).
    """
    settings, train = getattr(arguments, "finetune", None), getattr(arguments, "train", None)
    init = getattr(arguments, "init", "")
    if not isinstance(settings, Finetune) or not isinstance(train, Train) or not init:
        return None
    store = Store(default_root())
    with suppress(AtelierError):
        parent = existing_in(store, init, "init")
        role = role_of("pretrained-0", parent.spec, settings)
        return {"": role}, tuning_of(settings, train), vocab_of_model(parent, store)
    return None


def _suits(option: LayoutOption, roles: dict[str, Role], train: Train) -> bool:
    try:
        check_layout(option.parallel, roles, train, prefix="")
    except ConfigError:
        return False
    return True


LOOKS = 16  # held-out losses of a run, if neither eval_every nor checkpoint_every is given
WITHOUT_MODEL = 100  # checkpoint interval in steps, while the model is not known


def with_interval(arguments: Spec, train: Train, pool: Pool) -> Train:
    """The settings with checkpoint_every filled in from the planned step and the failure rate of the pool's
    devices. eval_every would follow it; it gets a value that does not depend on the machine.
    """
    looks = train.eval_every or max(1, train.num_steps // LOOKS)
    every = _planned(arguments, train, pool)
    if train.keep_every:
        every = largest_divisor(train.keep_every, every)
    if train.keep_best:
        every = max(1, every // looks) * looks
    return train.model_copy(update={"checkpoint_every": every, "eval_every": looks})


def _planned(arguments: Spec, train: Train, pool: Pool) -> int:
    vocab, roles = vocab_of(arguments), trained(arguments)
    if not vocab or not roles:
        return WITHOUT_MODEL
    parallel: Parallel = getattr(arguments, "parallel", Parallel())
    aside = without_pipeline(roles)
    try:
        check_layout(parallel, roles, train, prefix="")  # the estimate covers every rank of a pipeline
        found = [
            estimate(role, train, parallel.of_role(name, is_student=name in aside), pool, vocab, steps=1)
            for name, role in roles.items()
            if role.moves and is_here(train, name)
        ]
    except ConfigError:  # a layout or a device that the plan refuses
        return WITHOUT_MODEL
    if not found:
        return WITHOUT_MODEL
    slowest = max(found, key=lambda one: one.step_s)
    return steps_between(slowest.faults, sum(one.step_s for one in found), train.num_steps)


def check_warmups(arguments: Spec, overrides: Iterable[str]) -> None:
    """Raises ConfigError for a warm-up in one of the overrides that does not fit its schedule."""
    given = list(overrides)
    for place, schedule, start, end in _schedules(arguments):
        if any(_gives(text, f"{place}.warmup") for text in given):
            schedule.check(start, end, place)


def check_memory(arguments: Spec) -> None:
    """Raises ConfigError for models that are to be scored, or to teach, in less memory than they need at
    once. A vocabulary that is not known yet does not count.
    """
    roles, score = trained(arguments), getattr(arguments, "score", None)
    parallel, train = getattr(arguments, "parallel", None), getattr(arguments, "train", None)
    teachers = {role.teacher for role in roles.values() if role.attach == "frozen"}
    teachers |= {name for name, role in roles.items() if not role.moves}
    for name, role in roles.items():
        limits: list[tuple[str, float, int]] = []
        if isinstance(score, Score):
            limits.append(("score.memory_gb", score.memory_gb, SCORED))
        if name in teachers and isinstance(parallel, Parallel) and isinstance(train, Train):
            size = 8 if train.precision == "fp64" else 4
            limits += [(limit.place, limit.gb, size)] if (limit := frozen_limit(parallel)) else []
        for place, gb, size in limits:
            if gb:
                check_streamed(place, gb, name or "the model", _sized(role.model, arguments), size)


def with_prompt(arguments: Spec, overrides: Sequence[str]) -> Spec:
    """The arguments with a sample prompt that fits the text: Python code only for the standard library."""
    data, score = getattr(arguments, "data", None), getattr(arguments, "score", None)
    if not isinstance(data, Data) or not isinstance(score, Score) or is_stdlib(data.source):
        return arguments
    if any(text.lstrip("+").startswith("score.sample=") for text in overrides):
        return arguments
    return arguments.model_copy(update={"score": score.model_copy(update={"sample": ""})})


def splits(arguments: Spec, pools: Callable[[str], Pool]) -> dict[str, Spec]:
    """Layouts for inference tasks that have none, where a model does not fit one GPU of the task's pool: by
    name the section with the smallest split in which all models of the flow fit.
    """
    models, found = _models(arguments), dict[str, Spec]()
    for name in SPLIT if models else ():
        section, pool = getattr(arguments, name, None), pools(name)
        if not isinstance(section, InferenceLayout) or section.ranks > 1 or pool.is_cpu or pool.members:
            continue
        if getattr(section, "memory_gb", 0.0):
            continue
        width = 2 if getattr(section, "precision", "") == "bf16" else 4
        split = smallest_split(models, width, pool.device.memory_gb, most=pool.gpus or MOST_RANKS)
        if split is not None and split.ranks > 1:
            found[name] = section.model_copy(update=split.model_dump())
    return found


def _models(arguments: Spec) -> list[ModelSpec]:
    """The models of a flow: those that it trains, or finished ones that it is given. Empty if not known."""
    if vocab_of(arguments) and (roles := trained(arguments)):
        return [_sized(role.model, arguments) for role in roles.values()]
    words, store = [*getattr(arguments, "models", ()), getattr(arguments, "init", "")], Store(default_root())
    found = []
    for word in words:
        with suppress(AtelierError):  # the flow's body then gives the reason
            one = existing_in(store, word, "models") if word else None
            vocab = vocab_of_model(one, store) if one else 0
            found += [one.spec.resolved(vocab)] if one and vocab else []
    return found


def check_specials(arguments: Spec) -> None:
    """Raises ConfigError for a new tokenizer without sentinels that rows need."""
    tokenizer, train = getattr(arguments, "tokenizer", None), getattr(arguments, "train", None)
    if not isinstance(tokenizer, Tokenizer) or not isinstance(train, Train):
        return
    if tokenizer.load or tokenizer.model:
        return  # its tokens are known when it is read
    names = (SENTINELS[0].format(n=n) for n in range(len(tokenizer.specials)))
    there = sum(1 for _ in takewhile(lambda name: name in tokenizer.specials, names))
    needed = [
        spec.sentinels(train.sequence)
        for role in trained(arguments).values()
        for spec in role.objective.values()
    ]
    check_sentinels(there, max(needed, default=0))


def _sized(model: ModelSpec, arguments: Spec) -> ModelSpec:
    """The model with the vocabulary of the new tokenizer, else with the smallest."""
    if model.vocab != "auto":
        return model
    tokenizer = getattr(arguments, "tokenizer", None)
    is_loaded = isinstance(tokenizer, Tokenizer) and bool(tokenizer.load)
    return model.resolved(1 if is_loaded else vocab_of(arguments) or 1)


def _schedules(arguments: Spec) -> Iterator[tuple[str, Schedule, int, int]]:
    """Every schedule of a flow, with its place, first step and end."""
    train: Train | None = getattr(arguments, "train", None)
    for name, role in trained(arguments).items():
        if train is not None and role.moves:
            place = f"roles.{name}.optim.schedule" if name else "optim.schedule"
            yield place, role.optim.schedule, int(role.start), role.last(train.num_steps)
    for place in ("finetune", "generate", "transfer"):
        tuning: Finetune | None = getattr(arguments, place, None)
        if tuning is not None:
            yield f"{place}.optim.schedule", tuning.optim.schedule, 0, tuning.num_steps
    for name, kind in (("detect", Detect), ("tune", Tune)):
        section = getattr(arguments, name, None)
        if isinstance(section, kind):
            yield f"{name}.optim.schedule", section.optim.schedule, 0, section.steps
        if isinstance(section, Tune):
            yield f"{name}.student_optim.schedule", section.student_optim.schedule, 0, section.steps


def _gives(text: str, key: str) -> bool:
    """Whether an override sets the key, by its name or inside a section."""
    name, _, value = text.lstrip("+").partition("=")
    return name == key or (key.startswith(f"{name}.") and "warmup" in value)


def short_of(nodes: Iterable[Node]) -> list[str]:
    """The roles whose peak learning rate is never reached, each with the reason."""
    found = []
    for node in nodes:
        if node.task not in TRAINED:
            continue
        config = node.training
        for name, role in config.roles.items():
            problem, _ = role.optim.schedule.misfit(int(role.start), role.last(config.train.num_steps))
            if problem and role.moves:
                found.append(f"{node.name}.{name} ({problem})")
    return found
