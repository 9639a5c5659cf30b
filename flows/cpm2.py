"""cpm2: the DAG of CPM-2 (2106.10715). An encoder-decoder learns one language, then a second with a longer
vocabulary, and becomes a mixture of experts with fixed routers. A soft prompt is tuned on examples with
options, the whole model on examples that it answers in its own words. Scores are computed in less memory than
the mixture needs.

atelier cpm2 experiment=tiny
"""

from atelier.engine.config.conversion.upcycle import Upcycle
from atelier.engine.config.conversion.vocabulary import Growth
from atelier.engine.config.data import STDLIB, Data, Finetune, Score, Source, Tokenizer, is_stdlib
from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import Model, Objective, Optim
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.flows.controls import layout_of_one
from atelier.flows.corpus import check_read
from atelier.infra.dag import Reference
from atelier.infra.report.notes import ON
from atelier.tasks.convert import check_kept
from atelier.tasks.convert import convert as convert_model
from atelier.tasks.curate import curate
from atelier.tasks.encode import encode
from atelier.tasks.extract_adapter import extract_adapters
from atelier.tasks.finetune import finetune as finetune_model
from atelier.tasks.label import label
from atelier.tasks.learn_tokenizer import learn_tokenizer
from atelier.tasks.register import register
from atelier.tasks.report import report
from atelier.tasks.score import score as score_models
from atelier.tasks.train import train as train_roles

SECOND = "second"  # the blend with the second language


def cpm2(
    model: Model,
    objective: dict[str, Objective],
    optim: Optim,
    data: Data,
    tokenizer: Tokenizer,
    train: Train,
    grow: Growth,
    upcycle: Upcycle,
    finetune: Finetune,
    generate: Finetune,
    parallel: Parallel,
    score: Score,
) -> None:
    """`finetune` tunes on options, `generate` on text to write. Raises ConfigError if the text has no second
    language.
    """
    given = [name for name in ("load", "model", "extend") if getattr(tokenizer, name)]
    if given:
        raise ConfigError(
            f"tokenizer.{given[0]}",
            "is given, but this flow learns both tokenizers",
            "atelier convert convert=vocabulary moves a model to any tokenizer",
        )
    role = Role(model=model, objective=objective, optim=optim)
    check_read(data, [role])
    check_kept(grow.vocabulary, train, "grow.vocabulary")
    check_kept(upcycle, train, "upcycle")
    if grow.vocab <= tokenizer.vocab:
        raise ConfigError(
            "grow.vocab",
            f"{grow.vocab} ids, but the first language alone has {tokenizer.vocab}",
            f"grow.vocab={2 * tokenizer.vocab}",
        )
    sources = languages(data)
    first, second = (curate(name, source, data) for name, source in sources.items())
    vocabulary = learn_tokenizer({"main": first}, tokenizer)
    tokens = encode("main", first, vocabulary)
    how = {"parallel": parallel, "prefix": ""}
    alone = train_roles(
        {"model": role},
        settings=train,
        tokens={"main": tokens},
        weights={"main": 1.0},
        tokenizer=vocabulary,
        labels={"model": "first"},
        name="train.first",
        **how,
    )["model"]

    both = learn_tokenizer(
        {SECOND: second},
        tokenizer.model_copy(update={"vocab": grow.vocab}),
        extends=vocabulary,
        before={"main": first},
        name="extend_tokenizer",
    )
    text = {
        "main": encode("main", first, both, node="encode-main-both"),
        SECOND: encode(SECOND, second, both, node="encode-second-both"),
    }
    grown, spec = convert_model(
        alone,
        model,
        grow.vocabulary,
        tokens=tokens,
        tokenizer=both,
        text=text[SECOND],
        name="first-grown",
        node="convert.vocabulary",
        place="grow.vocabulary",
    )
    mixed = {
        "tokens": text,
        "weights": {"main": 1.0, SECOND: grow.mix},
        "tokenizer": both,
    }
    bilingual = train_roles(
        {"model": role.model_copy(update={"model": spec})},
        settings=longer(train, grow.steps),
        inits={"model": grown},
        labels={"model": "both"},
        name="train.both",
        **mixed,
        **how,
    )["model"]

    sparse, spec = convert_model(
        bilingual,
        spec,
        upcycle,
        tokens=text["main"],
        name="both-upcycled",
        node="convert.upcycle",
        place="upcycle",
    )
    experts = train_roles(
        {"model": role.model_copy(update={"model": spec})},
        settings=longer(train, grow.experts_steps),
        inits={"model": sparse},
        labels={"model": "experts"},
        name="train.experts",
        **mixed,
        **how,
    )["model"]

    models: dict[str, Reference] = {"first-grown": grown, "both": bilingual, "experts": experts}
    if grow.scratch:
        models["scratch"] = train_roles(
            {"model": role.model_copy(update={"model": spec, "seed_name": "scratch"})},
            settings=longer(train, equal_steps(model, spec, train, grow, tokenizer)),
            labels={"model": "scratch"},
            name="train.scratch",
            **mixed,
            **how,
        )["model"]

    layout = layout_of_one(parallel, "model", role.model_copy(update={"model": spec}))
    alike = {"train": train, "tokenizer": both, "parallel": layout}
    examples = label(finetune.labels)
    tuned = finetune_model(experts, spec, settings=finetune, labels=examples, **alike)
    if finetune.trainable.kind in ("lora", "prompt"):
        extract_adapters(tuned, {key: experts for key in tuned if key.startswith("pretrained")})
    asked = label(generate.labels, section="generate")
    writers = {
        name: finetune_model(
            models[name],
            spec,
            settings=generate,
            labels=asked,
            name=f"{name}-writer",
            section="generate",
            **alike,
        )
        for name in ("experts", "scratch")
        if name in models
    }

    scores = score_models(
        {"first": alone}, {}, settings=score, tokens=tokens, tokenizer=vocabulary, name="score.first"
    )
    scores |= score_models(models, {}, settings=score, tokens=text["main"], tokenizer=both)
    on_second = {f"{key}-{SECOND}": one for key, one in models.items()}
    scores |= score_models(
        on_second, {}, settings=score, tokens=text[SECOND], tokenizer=both, name="score.second"
    )
    named = {f"experts/{key}": one for key, one in tuned.items()} | {"experts/zero-shot": experts}
    written = {
        f"{name}{ON}{asked.name}/{key}": one for name, made in writers.items() for key, one in made.items()
    }
    for answered, labels, settings in ((named, examples, finetune), (written, asked, generate)):
        scores |= score_models(
            {},
            answered,
            settings=score.model_copy(update={"sequence": settings.sequence}),
            tokens=text["main"],
            tokenizer=both,
            labels=labels,
            shots={"experts/zero-shot": 0} if answered is named else {},
            name="score.labels" if answered is named else "score.written",
        )
    report({"first": alone, **models, **on_second, **named, **written}, scores, title="cpm2")
    last = {f"{name}-writer": made["pretrained-0"] for name, made in writers.items()}
    register({"first": alone, **models, "experts-tuned": tuned["pretrained-0"], **last}, scores)


def equal_steps(model: Model, spec: Model, train: Train, grow: Growth, tokenizer: Tokenizer) -> int:
    """The steps in which the mixture computes what all stages together do."""
    stages = (
        (model.resolved(tokenizer.vocab), train.num_steps),
        (model.resolved(grow.vocab), grow.steps),
        (spec.resolved(grow.vocab), grow.experts_steps),
    )
    flops = [each.flops_per_token(train.sequence) for each, _ in stages]
    computed = sum(each * steps for each, (_, steps) in zip(flops, stages, strict=True))
    return round(computed / flops[-1])


def languages(data: Data) -> dict[str, Source]:
    """The text of both languages. For the standard library: first its prose, second its code."""
    found = data.sources()
    main = found["main"]
    if SECOND in found:
        if len(found) > 2:
            raise ConfigError(
                "data.blend", f"has {', '.join(found)}; this flow reads two", f"data.blend.{SECOND}"
            )
        return {"main": main, SECOND: found[SECOND]}
    kind, _, packages = main.source.partition(":")
    if not is_stdlib(main.source) or STDLIB[kind]:
        raise ConfigError(
            f"data.blend.{SECOND}",
            "is missing; it holds the text of the second language",
            f"data.blend.{SECOND}.source=<text>",
        )
    parts = [f"{each}:{packages}" if packages else each for each in ("stdlib-prose", "stdlib-code")]
    prose, code = (main.model_copy(update={"source": part}) for part in parts)
    return {"main": prose, SECOND: code}


def longer(train: Train, steps: int) -> Train:
    """The same settings for another number of steps."""
    return train.model_copy(update={"steps": steps, "tokens": 0})
