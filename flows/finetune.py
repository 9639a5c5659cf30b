"""finetune: tune a finished model on labelled examples, in several draws; compare it with the untuned model
and with the same network from random weights. `also` scores the tuned models on further examples.

atelier finetune init=student_a finetune.num_labels=256
atelier finetune init=both finetune.labels.source=english.jsonl 'also={german: {source: german.jsonl}}'
"""

from atelier.engine.config.base import ModelName
from atelier.engine.config.data import ExamplesName, Finetune, Labels, Score
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.train import Train
from atelier.flows.evals import scored
from atelier.infra.store.existing_model import Existing, existing_model
from atelier.tasks.extract_adapter import extract_adapters
from atelier.tasks.finetune import finetune as finetune_model
from atelier.tasks.label import label
from atelier.tasks.register import register
from atelier.tasks.report import report

UNASKED = "zero-shot"


def finetune(
    init: ModelName,
    finetune: Finetune,
    train: Train,
    parallel: Parallel,
    score: Score,
    also: dict[ExamplesName, Labels],
) -> None:
    parent: Existing = existing_model(init, "init")
    examples = label(finetune.labels)
    tuned = finetune_model(
        parent.reference,
        parent.spec,
        settings=finetune,
        train=train,
        labels=examples,
        tokenizer=parent.tokenizer,
        parallel=parallel,
    )
    if finetune.trainable.kind in ("lora", "prompt"):
        extract_adapters(tuned, {key: parent.reference for key in tuned if key.startswith("pretrained")})
    own = parent.reference.name
    models = {**tuned, UNASKED: parent.reference}  # without examples, to show the gain of tuning
    scores = scored(
        own,
        models,
        {"": examples} | {name: label(other, name=name, tuned=examples) for name, other in also.items()},
        settings=score.model_copy(update={"sequence": finetune.sequence}),
        tokens=parent.text[0] if parent.text else None,
        tokenizer=parent.tokenizer,
        unasked=UNASKED,
    )
    report({f"{own}/{key}": model for key, model in models.items()}, scores, title="finetune")
    register({f"{own}-{finetune.labels.task}": tuned["pretrained-0"]}, scores)
