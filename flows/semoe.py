"""semoe: the DAG of SE-MoE (2205.10034): train a teacher with experts on disk; merge them to fewer, and to
none; distill the teacher into the merged models; score all in less memory than the teacher needs.

atelier semoe experiment=tiny
"""

from atelier.engine.config.base import parse
from atelier.engine.config.conversions import Conversion, ConversionSpec
from atelier.engine.config.data import Data, Score, Tokenizer
from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.flows.controls import control_of, controls_of, fewer
from atelier.flows.corpus import Text, extras, text_of
from atelier.infra.dag import Reference
from atelier.infra.store.existing_model import ANY_VOCAB, beginnings
from atelier.tasks.convert import check_kept
from atelier.tasks.convert import convert as convert_model
from atelier.tasks.extract_adapter import extract_adapters, low_rank
from atelier.tasks.register import register
from atelier.tasks.report import report
from atelier.tasks.score import score as score_models
from atelier.tasks.train import train as train_roles

FREE = {  # fields in which a student that starts from the merged teacher may differ
    "num_experts", "experts_per_token", "experts", "ffn", "mlp", "num_kv_heads", "vocab", "dropout",
    "init_std",
}  # fmt: skip


def semoe(
    roles: dict[str, Role],
    data: Data,
    tokenizer: Tokenizer,
    train: Train,
    parallel: Parallel,
    convert: Conversion,
    score: Score,
    companions: dict[str, Role] = {},  # noqa: B006 - read only; a typed default is what the form shows
) -> None:
    check_students({**roles, **companions})
    check_kept(convert, train, "convert")
    text = text_of(data, tokenizer, [*roles.values(), *companions.values()])
    feed = {"settings": train, "tokens": text.tokens, "weights": text.weights, "tokenizer": text.tokenizer}
    feed |= {"phases": text.phases, "sharing": text.sharing}
    begun = beginnings({**roles, **companions}, text.tokenizer)
    teachers = {name: role for name, role in roles.items() if not role.teacher}
    first = train_roles(
        teachers,
        **feed,
        parallel=parallel,
        inits={name: begun[name] for name in teachers if name in begun},
        extras=extras(text, teachers),
        name="train.teacher",
    )
    models, merged = first, {}
    students = {name: role for name, role in {**roles, **companions}.items() if role.teacher}
    if students:
        merged = merged_of(students, teachers, first, convert, text)
        models = first | train_roles(
            roles,
            **feed,
            parallel=parallel,
            companions=companions,
            inits=merged | begun,
            finished=first,
            extras=extras(text, {**roles, **companions}),
            name="train.students",
        )
        if score.controls:
            by_themselves = controls_of(roles)
            same = {control_of(name): start for name, start in (merged | begun).items()}
            models = models | train_roles(
                by_themselves,
                **feed,
                parallel=fewer(parallel, by_themselves),
                inits={name: same[name] for name in by_themselves if name in same},
                extras=extras(text, by_themselves),
                name="train.controls",
            )
    extract_adapters(models, low_rank(roles, merged | begun))
    shown = models | {f"{name}-start": model for name, model in merged.items() if name in roles}
    scores = score_models(shown, {}, settings=score, tokens=text.tokens["main"], tokenizer=text.tokenizer)
    report(
        shown,
        scores,
        title="semoe",
        teachers={name: role.teacher for name, role in roles.items()},
        controls={name: control_of(name) for name in roles if control_of(name) in models},
    )
    register(models, scores)


def check_students(roles: dict[str, Role]) -> None:
    """Raises ConfigError for students that would not learn from the finished teacher, and for teachers that
    are students themselves.
    """
    for name, role in roles.items():
        if not role.teacher:
            continue
        teacher = roles.get(role.teacher)
        if teacher is not None and teacher.teacher:
            raise ConfigError(
                f"roles.{name}.teacher",
                f"{role.teacher} is a student itself, but in this flow all learn from the finished teacher",
                f"teacher={teacher.teacher}",
            )
        if role.attach != "frozen":
            raise ConfigError(
                f"roles.{name}.attach",
                f"{role.attach}, but in this flow students learn from the finished teacher",
                "attach=frozen; atelier distill trains students together with their teacher",
            )


def merged_of(
    students: dict[str, Role],
    teachers: dict[str, Role],
    models: dict[str, Reference],
    rule: Conversion,
    text: Text,
) -> dict[str, Reference]:
    """The initial models of students: their teacher's model after `rule`, with the student's number of
    experts. Students with an `init` or another architecture are left out. Raises ConfigError if the rule
    cannot make them.
    """
    rules: dict[str, ConversionSpec] = {}
    for name, role in students.items():
        teacher = teachers[role.teacher].model
        number = getattr(role.model, "num_experts", None)
        if role.init or number is None or not _is_alike(role.model, teacher):
            continue
        place = f"roles.{name}.model.num_experts"
        try:
            own = parse(type(rule), rule.model_dump(mode="json") | {"num_experts": number}, "convert")
            made = own.converted(teacher)
        except ConfigError as error:
            raise ConfigError(
                place,
                f"{number}, which cannot be made from its teacher: {error.place} {error.problem}",
                f"give roles.{name}.init, another rule, or another model, which starts from random weights",
            ) from None
        if made.resolved(ANY_VOCAB).shapes() != role.model.resolved(ANY_VOCAB).shapes():
            continue
        rules[name] = own
    found: dict[str, Reference] = {}
    for name, own in rules.items():
        teacher = students[name].teacher
        found[name], _ = convert_model(
            models[teacher],
            teachers[teacher].model,
            own,
            tokens=text.tokens["main"],
            name=f"{name}-start",
            node=f"convert.{name}",
            beside=len(rules),
        )
    return found


def _is_alike(student: ModelSpec, teacher: ModelSpec) -> bool:
    """Whether a student's model differs from its teacher's only in the FREE fields."""
    if not isinstance(student, MixedBlocks) or not isinstance(teacher, MixedBlocks):
        return False
    one, other = (
        spec.model_dump(exclude=FREE) | {"kv": spec.kv_heads, "mlp": spec.expert_mlp}
        for spec in (student, teacher)
    )
    is_mixed = bool(student.num_experts and teacher.num_experts)
    mine, theirs = student.experts, teacher.experts
    are_met_alike = (mine.combine, mine.router.kind) == (theirs.combine, theirs.router.kind)
    return student.num_experts != teacher.num_experts and one == other and (are_met_alike or not is_mixed)
