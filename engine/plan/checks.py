"""Check layouts, objectives, models and teachers against each other before a process starts. Torch-free."""

import math
from collections.abc import Collection, Iterable, Mapping

from atelier.engine.config.error import ConfigError
from atelier.engine.config.kind_files import extension_part
from atelier.engine.config.mixture import Phase, row_specs
from atelier.engine.config.own_rows import OwnRows
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.config.role import Role, without_pipeline
from atelier.engine.config.sections import extensions_of
from atelier.engine.config.soft_prompt import SoftPrompt
from atelier.engine.config.train import Train
from atelier.engine.plan.expert_checks import (
    check_axis,
    check_length_of_rows,
    check_products,
    check_router,
    check_sight,
    rows_together,
)
from atelier.engine.plan.layout_checks import (
    check_embedding,
    check_encoders,
    check_length,
    check_limits,
    check_manifest,
    check_schedule,
    micro_batches,
    padded,
    padded_rows,
    place_of,
    shared_rows,
)
from atelier.engine.plan.role_checks import check_schedules, check_trainable
from atelier.engine.plan.role_placement import placement_of
from atelier.engine.plan.streamed import check_whole


def check_layout(
    layout: Parallel,
    roles: Mapping[str, Role],
    train: Train,
    *,
    prefix: str = "roles.",
    section: str = "train",
    pads: bool = False,
) -> None:
    """Raise ConfigError, with values that fit, for a layout that does not work. `prefix`: the roles' place in
    the configuration, '' for a flow with one model. `section` has the training's length and extension keys.
    `pads` as in `at_step`.
    """
    check_extensions(layout, roles, train, prefix=prefix, section=section)
    train = train.here()
    _check_lengths(roles, train, prefix, section)
    together = rows_together(layout, {name: role.model for name, role in roles.items()})
    for step in train.first_steps():
        try:
            now = at_step(train, layout, step, pads=pads, together=together)
            _check_sizes(layout, roles, now, prefix, section)
            for name, role in roles.items() if pads else ():
                model, axes = f"{prefix}{name}.model" if prefix else "model", layout.axes_of(name)
                check_length_of_rows(layout, role.model, model, axes=axes, place=place_of(layout, name))
        except ConfigError as error:
            if step >= train.first_steps()[-1]:
                raise
            grown = f"(train.progressive gives step {step} {train.at(step).global_batch} sequences of "
            raise ConfigError(
                error.place, f"{error.problem} {grown}{train.at(step).sequence} tokens)", error.way_out
            ) from None


def check_extensions(
    layout: Parallel, roles: Mapping[str, Role], train: Train, *, prefix: str, section: str = "train"
) -> None:
    """Run the checks of the extensions in use. Raises ConfigError."""
    used = extensions_of(train, layout).union(*(role.extensions for role in roles.values()))
    for name in sorted(used):
        if (checks := extension_part(name, "checks", "check")) is not None:
            checks.check(layout, roles, train, prefix=prefix, section=section)


def check_everybody(
    roles: Mapping[str, Role], train: Train, phases: Mapping[str, Phase], *, section: str = "train"
) -> None:
    """Let extensions check all roles of a training, those of other gangs included, and its phases. Raises
    ConfigError.
    """
    for name in sorted(extensions_of(train)):
        if check := getattr(extension_part(name, "checks"), "check_everybody", None):
            check(roles, train, phases, section=section)


def _check_lengths(roles: Mapping[str, Role], train: Train, prefix: str, section: str) -> None:
    """Check that no objective's rows are longer than the training's."""
    for name, role in roles.items():
        for key, spec in role.objective.items():
            if isinstance(spec, OwnRows) and spec.sequence > train.sequence:
                raise ConfigError(
                    f"{prefix}{name}.objective.{key}.sequence" if prefix else f"objective.{key}.sequence",
                    f"rows of {spec.sequence} tokens are longer than {section}.sequence {train.sequence}",
                    f"{section}.sequence={spec.sequence}, or 0 for the same length",
                )


def at_step(train: Train, layout: Parallel, step: int, *, pads: bool = False, together: int = 1) -> Train:
    """The training at the sizes of this step, with a micro-batch that divides them. The batch of a ramp
    includes rows of padding (`padded_rows`). `pads`: so does any batch that the layout does not divide, as
    for labelled examples, with `together` rows of a micro-batch at least.
    """
    now = train.at(step)
    if pads:
        return padded(layout, now, together=together)
    if train.progressive.rampup.is_on and now.global_batch < train.global_batch:
        return now.model_copy(update={"global_batch": padded_rows(layout, now)})
    each = now.global_batch // layout.axes.data
    if now is train or now.micro_batch == "auto" or not each:
        return now
    return now.model_copy(update={"micro_batch": math.gcd(now.micro_batch, each)})


def _check_sizes(
    layout: Parallel, roles: Mapping[str, Role], train: Train, prefix: str, section: str
) -> None:
    layout.check_batch(train.global_batch, train.micro_batch)
    _check_pipeline(layout, train)
    check_schedule(layout, roles, prefix)
    check_embedding(layout, roles, prefix)
    check_axis(layout, roles)
    if train.precision == "fp8" and layout.tensor > 1:
        problem = f"fp8 does not work with parallel.tensor={layout.tensor}"
        raise ConfigError("train.precision", problem, "parallel.tensor=1, or train.precision=bf16")
    students, aside = [name for name, role in roles.items() if role.teacher], without_pipeline(roles)
    read = [spec for role in roles.values() for spec in role.objective.values() if not spec.needs_teacher]
    longest = max((spec.row_tokens(train.sequence) for spec in read), default=train.sequence)
    for name in layout.roles:
        if name not in students:
            known = ", ".join(students) or "none"
            raise ConfigError(f"parallel.roles.{name}", "is not a student here", f"students: {known}")
    for name, role in roles.items():
        model = f"{prefix}{name}.model" if prefix else "model"
        _check_role(layout, name, role, model, has_stages=name not in aside)
        rows = train.model_copy(update={"sequence": longest})
        check_router(layout, role.model, rows, model, axes=layout.axes_of(name), place=place_of(layout, name))
        check_products(layout, role, train, model, axes=layout.axes_of(name))
        check_length(layout, name, f"{section}.sequence", train.sequence)
        for key, spec in role.objective.items():
            own = f"{prefix}{name}.objective.{key}.sequence" if prefix else f"objective.{key}.sequence"
            check_length(layout, name, own, spec.row_tokens(train.sequence))
            check_length(layout, name, f"{prefix}{name}.objective.{key}: encoder length", spec.encoder_length)
        if role.teacher:
            _check_student(layout, name, role.teacher)
            _check_rows(layout, name, roles, train)
            _check_compared(layout, name, role, roles, f"{prefix}{name}.objective")


def _check_pipeline(layout: Parallel, train: Train) -> None:
    if layout.pipeline == 1:
        return
    each, rows = train.global_batch // layout.axes.data, shared_rows(layout)
    num_micro = each // (rows if train.micro_batch == "auto" else train.micro_batch)
    if num_micro < layout.pipeline or not micro_batches(layout, train.global_batch):
        unit = layout.pipeline * layout.axes.data * rows
        smaller = " or a smaller micro_batch" if train.micro_batch != "auto" else ""
        raise ConfigError(
            "parallel.pipeline",
            f"{layout.pipeline} ranks, but only {num_micro} micro-batches per step",
            f"train.global_batch={-(-train.global_batch // unit) * unit}{smaller} would fit",
        )
    if layout.schedule != "1f1b" and train.micro_batch != "auto" and num_micro % layout.pipeline:
        raise ConfigError(
            "train.micro_batch",
            f"{train.micro_batch} makes {num_micro} micro-batches; schedule={layout.schedule} needs a"
            f" multiple of pipeline {layout.pipeline}",
            "parallel.schedule=1f1b takes any number",
        )
    if layout.schedule == "zb" and layout.axes.data * layout.axes.context > 1:
        raise ConfigError(
            "parallel.schedule",
            "zb does not work if ranks share weights (replicate, shard, expert, context): torch 2.13 loses"
            " gradients there",
            "schedule=interleaved, or use tensor for the other ranks",
        )
    if layout.schedule == "zb" and layout.recompute == "selective":
        raise ConfigError(
            "parallel.recompute",
            "selective does not work with schedule=zb: its backward pass has two parts, and torch 2.13"
            " keeps values for only one",
            "recompute=full, or schedule=interleaved",
        )
    if layout.speeds and len(layout.speeds) != layout.pipeline:
        raise ConfigError(
            "parallel.speeds",
            f"{len(layout.speeds)} numbers for {layout.pipeline} pipeline ranks",
            "give one per rank, or none",
        )


def _check_role(layout: Parallel, name: str, role: Role, model: str, *, has_stages: bool) -> None:
    """Check heads, widths, vocabulary, experts and blocks against the axes."""
    axes, place = layout.axes_of(name), place_of(layout, name)
    sizes = {"tensor": axes.tensor, "expert": axes.expert, "context": axes.context, "stage": 1}
    if has_stages:
        sizes["stage"] = layout.num_stages
    check_limits(role.model, sizes, place=place, model=model)
    check_manifest(role, axes, place=place, model=model)
    if layout.stages and has_stages:
        num_blocks, num_stages = role.model.num_blocks, layout.num_stages
        if len(layout.stages) != num_stages or sum(layout.stages) != num_blocks:
            raise ConfigError(
                "parallel.stages",
                f"{list(layout.stages)} are {len(layout.stages)} stages of {sum(layout.stages)} blocks",
                f"{model} has {num_blocks} blocks for {num_stages} stages; stages=[] balances them",
            )


def _check_student(layout: Parallel, name: str, teacher: str) -> None:
    """Check that a student's rows and tokens are on its teacher's ranks."""
    axes, theirs, place = layout.axes_of(name), layout.axes_of(teacher), place_of(layout, name)
    if axes.ranks != theirs.ranks:
        raise ConfigError(
            place,
            f"its axes' product is {axes.ranks}, but {theirs.ranks} ranks hold the outputs of {teacher}",
            f"shard={max(1, theirs.ranks * axes.shard // axes.ranks)} may fit",
        )
    if (theirs.context * theirs.tensor) % (axes.context * axes.tensor):
        raise ConfigError(
            place,
            f"context x tensor = {axes.context * axes.tensor} does not divide the {theirs.context} x "
            f"{theirs.tensor} of {teacher}",
            "a student's tokens come from its teacher's ranks: use shard or replicate for the rest",
        )


def _check_rows(layout: Parallel, name: str, roles: Mapping[str, Role], train: Train) -> None:
    """Check micro-batches: they are the root's, and all its students split their rows further."""
    root = roles[name].teacher
    while root in roles and roles[root].teacher:
        root = roles[root].teacher
    own, data, each = layout.axes_of(name).data, layout.axes.data, train.global_batch // layout.axes.data
    rows = each if train.micro_batch == "auto" else train.micro_batch
    parts = own // data if train.micro_batch != "auto" else shared_rows(layout)
    if rows % parts:
        raise ConfigError(
            place_of(layout, name),
            f"its {own} data-parallel ranks cannot split micro-batches of {rows} from {root}'s {data} ranks",
            f"train.micro_batch={parts} would fit"
            if each % parts == 0
            else f"train.global_batch={parts * data} would fit",
        )


def _check_compared(
    layout: Parallel, name: str, role: Role, roles: Mapping[str, Role], objective: str
) -> None:
    """Check that the tensor axis divides the states that a student compares with its teachers'."""
    size, place = layout.axes_of(name).tensor, place_of(layout, name)
    for key, spec in role.objective.items():
        teacher = role.teacher_of(key) or role.teacher
        if teacher not in roles:
            continue
        for what, number in spec.divided_by_tensor((teacher, roles[teacher].model)).items():
            if number % size:
                raise ConfigError(
                    f"{place}.tensor",
                    f"{size} does not divide {what.format(key=f'{objective}.{key}')} {number}",
                    f"tensor={math.gcd(number, size)} would fit",
                )


def check_teaching(roles: Mapping[str, Role], *, prefix: str = "roles.") -> None:
    """Raise ConfigError if a role's objectives do not fit its model or teacher, or if it would train parts
    that its model lacks. `prefix` as in `check_layout`.
    """
    for name, role in roles.items():
        place = f"{prefix}{name}." if prefix else ""
        check_trainable(place, role)
        check_sight(place, role)
        _check_other_teachers(place, role, roles)
        if getattr(role.model, "soft_prompt", SoftPrompt()).length and not role.init:
            raise ConfigError(
                f"{place}model.soft_prompt",
                "is given, but no row of this training has such vectors",
                "tune one with: atelier finetune finetune.trainable.kind=prompt",
            )
        for key, objective in role.objective.items():
            teacher = role.teacher_of(key) or role.teacher
            objective.check(
                place, key, role.model, (teacher, roles[teacher].model) if teacher in roles else None
            )


def _check_other_teachers(place: str, role: Role, roles: Mapping[str, Role]) -> None:
    """Check the teachers of single objectives: finished models that are no role's main teacher."""
    students = {other.teacher: name for name, other in roles.items()}
    for key, teacher in role.other_teachers.items():
        where = f"{place}objective.{key}.teacher"
        if teacher not in roles:
            continue  # reported when roles are ordered
        if roles[teacher].moves:
            raise ConfigError(
                where,
                f"{teacher} is trained here, but an objective's own teacher must be a finished model",
                f"role@roles.{teacher}=finished, or {place}teacher={teacher}",
            )
        if teacher in students:
            raise ConfigError(
                where,
                f"{teacher} is also the teacher of {students[teacher]}",
                f"add a role for the same model, with init={roles[teacher].init}",
            )
    compared = {role.teacher_of(key) for key, spec in role.objective.items() if spec.kind == "hidden"}
    if len(compared) > 1:
        raise ConfigError(
            f"{place}objective",
            f"compares hidden states with {' and '.join(sorted(compared))}, but has only one projection",
            "use the logits of one of them",
        )


def check_readers(
    roles: Mapping[str, Role],
    rows: Iterable[ObjectiveSpec],
    sequence: int,
    *,
    prefix: str = "roles.",
    section: str = "train",
) -> None:
    """Raise ConfigError if rows of `sequence` tokens, the shortest of the training, are too short for an
    objective that defines its rows, or if a role's model cannot read them. `prefix` and `section` as in
    `check_layout`.
    """
    for spec in rows:
        if (tokens := spec.row_tokens(sequence)) < spec.least_sequence:
            raise ConfigError(
                f"{section}.sequence" if tokens == sequence else f"objective.{spec.kind}.sequence",
                f"rows of {tokens} tokens are too short for the settings of objective {spec.kind}",
                f"give {spec.least_sequence} or more",
            )
        for name, role in roles.items():
            spec.check_reader(f"{prefix}{name}." if prefix else "", role.model)


def check_layouts(
    roles: Mapping[str, Role],
    settings: Train,
    layout: Parallel,
    *,
    frozen: Collection[str],
    inits: Collection[str],
    prefix: str,
    section: str,
) -> None:
    """Raise ConfigError for roles that cannot train together with these settings and each of these layouts,
    and for later layouts over several sites.
    """
    steps, placement = settings.num_steps, placement_of(settings, roles)
    if layout.later and (placement.parts or placement.claim):
        raise ConfigError("parallel.later", "is for a training at one site", "leave it out")
    for begin, _, one in layout.spans(0, steps):
        try:
            check_layout(one, roles, settings, prefix=prefix, section=section)
            for key in frozen:
                check_whole(one, key)
        except ConfigError as error:
            if not begin:
                raise
            problem = f"does not fit: {error.place}: {error.problem}"
            raise ConfigError(f"parallel.later.{begin}", problem, error.way_out) from None
    placement.check_finished(section)
    check_teaching(roles, prefix=prefix)
    check_schedules(roles, settings, prefix=prefix)
    rows = row_specs(roles, prefix).values()
    check_readers(roles, rows, settings.at(0).sequence, prefix=prefix, section=section)
    check_encoders(roles, rows, prefix)
    for key, role in roles.items():
        place = f"{prefix}{key}." if prefix else ""
        if role.moves:
            end = role.last(steps)
            role.optim.schedule.check_floor(int(role.start), end, f"{place}optim.schedule")
        if role.init and key not in inits:
            raise ConfigError(f"{place}init", f"{role.init}: this flow starts from seeds", "leave it empty")
