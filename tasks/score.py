"""score: measure held-out bits a byte of models, and accuracy of options by likelihood; beside gzip, xz and a
trigram.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from atelier.engine.config.base import Json
from atelier.engine.config.data import Score
from atelier.engine.config.document import section_of
from atelier.engine.config.evaluation import Scoring, Target
from atelier.engine.config.registry import ObjectiveSpec
from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest

VERSION = 1
# versions of answers; since 3 and 2 prompt and answer are tokenised jointly
ANSWERS = 3  # of fine-tuned models; since 2 without unneeded end tokens
SHOTS = 2  # of models prompted with solved examples, or with none
BASELINES = 2  # of the baselines: with the trigram of few tokens
BEGUN = 3  # of texts with a begin token: the trigram does not pay for it


def score(
    text: Mapping[str, Reference],
    labelled: Mapping[str, Reference],
    *,
    settings: Score,
    tokens: Reference | None,
    tokenizer: Reference,
    labels: Reference | None = None,
    shots: Mapping[str, int] = MappingProxyType({}),
    heads: Mapping[str, ObjectiveSpec] = MappingProxyType({}),
    judged: Collection[str] = (),
    imitations: Reference | None = None,
    threads: int = 1,
    name: str = "score",
) -> dict[str, Reference]:
    """Scores of every model by key: models in `text` on held-out text, models in `labelled` on the test
    examples of the labels. Of the latter, those in `shots` are prompted with that many solved examples; the
    others are scored as fine-tuned. Models in `judged` also get the accuracy of their `heads`, by kind of
    objective. Only models in `text` need `tokens`.
    """
    exam = _exam(heads, settings, imitations if "natural" in heads else None)
    models = {**text, **labelled}
    targets = {
        key: Target(
            text=key in text,
            labels=key in labelled,
            shots=shots.get(key),
            heads=bool(heads) and key in judged,
        )
        for key in models
    }
    products = {
        key: _with(exam, product) if targets[key].heads else product
        for key, model in models.items()
        for product in [_product(key, model, settings, targets[key], tokens, labels)]
    }
    if settings.baselines and text and tokens:
        products["baselines"] = Product(
            kind="scores",
            name="baselines",
            version=BEGUN if tokenizer.is_begun else BASELINES,
            identity={"max_tokens": settings.max_tokens},
            parents={"tokens": tokens.fingerprint},
            origin={"max_tokens": "score.max_tokens"},
        )
        if heads:
            products["baselines"] = _with(exam, products["baselines"])
    inputs = {f"model.{key}": input_of(model) for key, model in models.items()}
    inputs["tokenizer"] = input_of(tokenizer)
    inputs |= {"tokens": input_of(tokens)} if tokens else {}
    inputs |= {"labels": input_of(labels)} if labels else {}
    inputs |= {"imitations": input_of(imitations)} if imitations and "imitations" in exam.parents else {}
    threads = max(1, threads // settings.ranks)
    config = Scoring(score=settings, targets=targets, heads=dict(heads), threads=threads)
    node = Node(
        name=name,
        task="score",
        products=products,
        inputs=inputs,
        config=config.model_dump(mode="json"),
        layout=settings.parallel(threads).model_dump(mode="json"),
        ranks=settings.ranks,
    )
    others = [one for one in (tokens, labels, imitations) if one]
    return declare(node, [*models.values(), *others])


class _Exam(NamedTuple):
    """Additions to a product that scores heads."""

    identity: dict[str, Json]
    parents: dict[str, str]
    origin: dict[str, str]


def _exam(heads: Mapping[str, ObjectiveSpec], settings: Score, imitations: Reference | None) -> _Exam:
    specs: dict[str, Json] = {kind: spec.numbers() for kind, spec in heads.items()}
    parents = {"imitations": imitations.fingerprint} if imitations else {}
    return _Exam({"heads": specs, "rows": settings.rows}, parents, {"rows": "score.rows"})


def _with(exam: _Exam, product: Product) -> Product:
    return product.model_copy(
        update={
            "identity": {**product.identity, **exam.identity},
            "parents": product.parents | exam.parents,
            "origin": product.origin | exam.origin,
        }
    )


def _product(
    key: str,
    model: Reference,
    settings: Score,
    target: Target,
    tokens: Reference | None,
    labels: Reference | None,
) -> Product:
    identity: dict[str, Json] = {}
    if settings.precision != "float32":
        identity["precision"] = settings.precision
    parents, version = {"model": model.fingerprint}, VERSION
    if target.text and tokens:
        identity |= {
            "max_tokens": settings.max_tokens,
            "sequence": settings.sequence,
            "sample": settings.sample,
        }
        parents["tokens"] = tokens.fingerprint
    if target.labels and labels is not None:
        identity |= {"max_examples": settings.max_examples, "sequence": settings.sequence}
        if target.shots is not None:
            identity["shots"] = target.shots
        version = ANSWERS if target.shots is None else SHOTS
        parents["labels"] = labels.fingerprint
    origin = {field: f"score.{field}" for field in identity}
    return Product(
        kind="scores",
        name=f"{key} scores",
        version=version,
        identity=identity,
        parents=parents,
        origin=origin,
    )


def run(node: Node, context: RunContext) -> None:
    missing, asked = context.missing(node), Scoring.model_validate(node.config)
    left = {key: target for key, target in section_of(node.config["targets"]).items() if key in missing}
    wanted = {f"model.{key}" for key in missing} | {"tokens", "tokenizer", "labels", "imitations"}
    inputs = {role: url for role, url in context.urls(node).items() if role in wanted}
    context.gang(
        GangRequest(
            node=node,
            module="atelier.engine.evaluate",
            config=lambda fences: {**node.config, "targets": left},
            outputs=missing,
            inputs=lambda: inputs,
            threads=asked.threads,
        )
    )
