"""Accuracy of heads for orders, distances and hidden relations on held-out rows, beside baselines without a
network: parts of benchmarks/objectives.py.
"""

import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from intervals import mean_of
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from study import Batch, Study, batches, tensors

from atelier.engine.config.batch import NOT_SCORED
from atelier.engine.config.data import SEP
from atelier.engine.config.objective.distance import Distance
from atelier.engine.config.objective.knowledge import Knowledge
from atelier.engine.config.objective.reorder import Reorder
from atelier.engine.config.row_classes import RowClasses
from atelier.engine.data.ngram import Trigram
from atelier.engine.data.tokens import TokenText
from atelier.engine.inference.heads import said_by
from atelier.engine.inference.rivals import Nats, Overlap, by_overlap, likeliest, trigram_nats
from atelier.engine.inference.scoring import label_nats


def right(study: Study, spec: RowClasses, rivals: dict[str, np.ndarray], chance: float) -> dict[str, Any]:
    """The share of held-out rows that the class head gets right; beside those of rivals, by the classes that
    they say, and of what one knows without reading.
    """
    some = list(batches(*held_out(study, spec)))
    classes_N = np.concatenate([batch["classes_B"] for batch in some])
    said_N = np.concatenate([said_by(study.model, spec, batch) for batch in some])
    head_N = (said_N == classes_N).astype(float)
    found = mean_of(head_N) | {"chance": round(chance, 4)}
    for name, other_N in rivals.items():
        rival_N = (other_N == classes_N).astype(float)
        found |= {name: mean_of(rival_N), f"head - {name}": mean_of(head_N - rival_N)}
    return found


def held_out(study: Study, spec: RowClasses) -> tuple[Any, int]:
    """The rows, and how many of them count."""
    return study.rows(spec.kind, spec, study.only("tokens")), 100 if study.tiny else 2000


def training_text(study: Study) -> np.ndarray:
    return TokenText(study.only("tokens"), study.scratch, "train").tokens_N


def by_teacher(study: Study) -> Nats:
    """Nats of texts, read as the model reads text."""

    @torch.inference_mode()
    def nats(texts: list[np.ndarray]) -> np.ndarray:
        tokens_BT = np.stack([np.concatenate([[study.vocabulary.end_id], text]) for text in texts])
        labels_BT = np.concatenate([tokens_BT[:, 1:], np.full((len(texts), 1), NOT_SCORED)], 1)
        places_BT = np.tile(np.arange(tokens_BT.shape[1]), (len(texts), 1))
        rows = {"tokens_BT": tokens_BT, "labels_BT": labels_BT, "positions_BT": places_BT}
        batch = tensors(rows | {"documents_BT": np.zeros_like(tokens_BT)})
        return next(label_nats(study.model, [batch])).numpy().reshape(len(texts), -1).sum(1)

    return nats


def reordered(study: Study) -> dict[str, Any]:
    """The head beside the order of least nats by a trigram, and by the model itself."""
    spec = Reorder()
    some = list(batches(*held_out(study, spec)))
    trigram = Trigram(training_text(study), study.vocabulary.size, study.vocabulary.end_id)
    rivals = {
        name: np.concatenate([likeliest(batch, spec, nats) for batch in some])
        for name, nats in (("trigram", trigram_nats(trigram)), ("likelihood", by_teacher(study)))
    }
    return right(study, spec, rivals, chance=spec.max_segments / spec.num_classes)


def distant(study: Study) -> dict[str, Any]:
    """The head beside a logistic regression on what the fragments have in common."""
    spec = Distance()
    some = list(batches(*held_out(study, spec)))
    train = study.rows("distance", spec, study.only("tokens"), split="train")
    overlap = Overlap(training_text(study), study.vocabulary.size)
    said = by_overlap(overlap, list(batches(train, 300 if study.tiny else 12000)))
    said_N = np.concatenate([said(batch) for batch in some])
    return right(study, spec, {"logistic regression": said_N}, chance=1 / spec.num_classes)


@torch.inference_mode()
def relations(study: Study) -> dict[str, Any]:
    """The share of held-out triples whose hidden relation is found, all of its tokens; beside the most common
    relation and a logistic regression on the tokens of the row.
    """
    spec, source, sep = Knowledge(), study.only("triples"), study.vocabulary.special(SEP)
    found_N: list[np.ndarray] = []
    said: dict[str, list[tuple[str, str]]] = {}
    for split, most in (("train", 4000), ("held_out", 2000)):
        said[split], seen = [], set[int]()
        for places, batch in twice(
            study.rows("knowledge", spec, source, split=split), 100 if study.tiny else most
        ):
            labels_BT, tokens_BT = batch["labels_BT"], batch["tokens_BT"]
            is_hidden_BT = labels_BT != NOT_SCORED
            is_relation_BT = (tokens_BT == sep).cumsum(1) == 1
            chosen = np.flatnonzero((is_hidden_BT & is_relation_BT).any(1) & ~np.isin(places, list(seen)))
            seen |= set(places[chosen].tolist())
            for row in chosen:
                shown = tokens_BT[row][batch["documents_BT"][row] == 0]
                relation = labels_BT[row][is_hidden_BT[row]]
                said[split].append((" ".join(map(str, shown)), " ".join(map(str, relation))))
            if split == "held_out" and len(chosen):
                rows = {name: values[chosen] for name, values in batch.items()}
                logits_BTV = study.model(tensors(rows)).hidden @ study.model.head_weight.T
                is_right_BT = logits_BTV.argmax(2).numpy() == rows["labels_BT"]
                found_N.append(np.asarray((is_right_BT | ~is_hidden_BT[chosen]).all(1)))
    (rows_N, classes_N), (held_out_N, true_N) = (zip(*said[split], strict=True) for split in said)
    words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\S+", sublinear_tf=True)
    rival = LogisticRegression(max_iter=2000, C=10.0).fit(words.fit_transform(rows_N), classes_N)
    most_common = statistics.mode(classes_N)
    rival_N = rival.predict(words.transform(held_out_N)) == np.array(true_N)
    return mean_of(np.concatenate(found_N).astype(float)) | {
        "most common": mean_of(np.array([one == most_common for one in true_N], float)),
        "logistic regression": mean_of(rival_N.astype(float)),
    }


def twice(rows: Any, most: int) -> Iterator[tuple[np.ndarray, Batch]]:
    """The first rows, by their numbers, in two epochs, in which different things are hidden."""
    for epoch in (0, 1):
        for first in range(0, min(most, len(rows)), 64):
            places = np.arange(first, min(first + 64, most, len(rows)))
            yield places, rows.batch(places, np.full_like(places, epoch))
