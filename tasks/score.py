"""score: held-out bits per byte of models, and accuracy of options by likelihood; gzip, xz and a trigram
beside them.
"""

from collections.abc import Mapping
from types import MappingProxyType

from atelier.engine.config.base import Json
from atelier.engine.config.data import Score
from atelier.engine.config.document import section_of
from atelier.engine.config.evaluation import Scoring, Target
from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest

VERSION = 1
ANSWERS = 2  # version of a fine-tuned model's answers: no end token where none is needed
BASELINES = 2  # version of the baselines: with the trigram of few tokens


def score(
    text: Mapping[str, Reference],
    labelled: Mapping[str, Reference],
    *,
    settings: Score,
    tokens: Reference,
    tokenizer: Reference,
    labels: Reference | None = None,
    shots: Mapping[str, int] = MappingProxyType({}),
    threads: int = 1,
    name: str = "score",
) -> dict[str, Reference]:
    """Scores of every model by its key: those in `text` on held-out text, those in `labelled` on the labels'
    test examples. Of the latter, those in `shots` are prompted with that many solved examples; the others are
    scored as fine-tuned.
    """
    models = {**text, **labelled}
    targets = {key: Target(text=key in text, labels=key in labelled, shots=shots.get(key)) for key in models}
    products = {
        key: _product(key, model, settings, targets[key], tokens, labels) for key, model in models.items()
    }
    if settings.baselines and text:
        products["baselines"] = Product(
            kind="scores",
            name="baselines",
            version=BASELINES,
            identity={"max_tokens": settings.max_tokens},
            parents={"tokens": tokens.fingerprint},
            origin={"max_tokens": "score.max_tokens"},
        )
    inputs = {f"model.{key}": input_of(model) for key, model in models.items()}
    inputs |= {"tokens": input_of(tokens), "tokenizer": input_of(tokenizer)} | (
        {"labels": input_of(labels)} if labels else {}
    )
    config = {
        "score": settings.model_dump(mode="json"),
        "threads": threads,
        "targets": {key: target.model_dump(mode="json") for key, target in targets.items()},
    }  # as a Scoring
    node = Node(name=name, task="score", products=products, inputs=inputs, config=config)
    return declare(node, [*models.values(), tokens, *([labels] if labels else [])])


def _product(
    key: str,
    model: Reference,
    settings: Score,
    target: Target,
    tokens: Reference,
    labels: Reference | None,
) -> Product:
    identity: dict[str, Json] = {}
    parents = {"model": model.fingerprint}
    if target.text:
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
        parents["labels"] = labels.fingerprint
    origin = {field: f"score.{field}" for field in identity}
    return Product(
        kind="scores",
        name=f"{key} scores",
        version=ANSWERS if target.labels and target.shots is None else VERSION,
        identity=identity,
        parents=parents,
        origin=origin,
    )


def run(node: Node, context: RunContext) -> None:
    missing, asked = context.missing(node), Scoring.model_validate(node.config)
    left = {key: target for key, target in section_of(node.config["targets"]).items() if key in missing}
    wanted = {f"model.{key}" for key in missing} | {"tokens", "tokenizer", "labels"}
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
