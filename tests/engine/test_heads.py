"""Accuracy of class heads, beside baselines without a network."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch

from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.ernie import Ernie
from atelier.engine.config.objective.distance import Distance
from atelier.engine.config.objective.natural import Natural
from atelier.engine.config.objective.reorder import Reorder
from atelier.engine.config.row_classes import RowClasses
from atelier.engine.data.ngram import Trigram
from atelier.engine.data.tokens import TokenText
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.inference.heads import HeadExam, judged, without_network
from atelier.engine.inference.rivals import likeliest
from atelier.engine.io.artifact import open_input
from atelier.engine.model.load import build, initialise
from atelier.engine.objective.classes import class_logits
from tests.engine.row_inputs import VOCAB, harbour

SPECS: dict[str, RowClasses] = {"reorder": Reorder(), "distance": Distance(), "natural": Natural()}


@pytest.fixture(scope="module")
def exam(tmp_path_factory: pytest.TempPathFactory) -> HeadExam:
    inputs = harbour(tmp_path_factory.mktemp("harbour"))
    sources = {kind: open_input(inputs[f"{kind}.main"]) for kind in ("tokens", "imitations")}
    vocabulary = Vocabulary.read(
        open_input(inputs["tokenizer"]).file("tokenizer.json", tmp_path_factory.mktemp("words"))
    )
    return HeadExam(
        specs=SPECS, sources=sources, vocabulary=vocabulary, scratch=tmp_path_factory.mktemp("scratch"),
        sequence=64, number=120,
    )  # fmt: skip


def test_a_head_is_judged_on_rows_as_long_as_those_it_learned_from(exam: HeadExam) -> None:
    for length, expected in ((0, 64), (24, 24), (128, 64)):
        specs = {"reorder": Reorder(sequence=length)}
        batch = next(dataclasses.replace(exam, specs=specs).batches("reorder"))
        assert batch["tokens_BT"].shape[1] == expected


def test_the_share_of_a_head_is_that_of_the_rows_whose_largest_logit_is_their_class(exam: HeadExam) -> None:
    shape = Ernie(
        num_layers=1, hidden=32, num_heads=2, vocab=VOCAB, init_std=0.3, pairs={"reorder": 8},
        classes={kind: spec.num_classes for kind, spec in SPECS.items()},
    )  # fmt: skip
    model = build(shape)
    initialise(model, seed=3, name="test")
    model.eval()
    found = judged(model, exam)
    for kind, spec in SPECS.items():
        right = []
        for batch in exam.batches(kind):
            given = {name: torch.from_numpy(values) for name, values in batch.items()}
            hidden_BTD = model(given).hidden
            logits_BC = class_logits(
                spec, hidden_BTD, given, model.get_parameter, has_pairs=kind == "reorder"
            )
            right += (logits_BC.argmax(1) == given["classes_B"]).tolist()
        assert found[kind] == {"right": np.mean(right), "rows": 120}
    assert judged(model, exam) == found


def test_without_a_network_more_is_right_than_by_guessing_where_there_is_something_to_see(
    exam: HeadExam,
) -> None:
    text_N = TokenText(exam.sources["tokens"], exam.scratch, "train").tokens_N.astype(np.int64)
    trigram = Trigram(text_N, VOCAB, exam.vocabulary.end_id)
    found = without_network(exam, trigram, text_N)
    more = replace(exam, number=400, specs={"distance": SPECS["distance"]})  # of 120 a share is 0.04 off
    many = without_network(more, trigram, text_N)
    assert many["distance"]["right"] > 1 / 3 + 0.05  # documents repeat their number
    assert [found[kind].get("guess") for kind in SPECS] == [1 / 3, 1 / 3, 1 / 2]
    assert all(0 <= one["right"] <= 1 and one["rows"] == 120 and one.get("by") for one in found.values())
    assert without_network(exam, trigram, text_N) == found


def test_the_likeliest_order_is_found_for_a_text_that_counts(exam: HeadExam) -> None:
    """Nats that count how far neighbours are apart: 0 only for the text as it was."""
    tokens = np.array([[1, 30, 31, 2, 10, 11, 12, 2, 20, 21]])  # the text 10 11 12 20 21 30 31
    batch = {"tokens_BT": tokens, "segments_BT": np.array([[-1, 0, 0, -1, 1, 1, 1, -1, 2, 2]])}

    def nats(texts: list[np.ndarray]) -> np.ndarray:
        return np.array([np.maximum(0, -np.diff(text)).sum() for text in texts])

    [kind] = likeliest(batch, Reorder(), nats)
    assert Reorder().comparisons[kind] == ((0, 1, 2), (0, 2, 0))


def test_a_head_beside_which_nothing_stands_is_refused(exam: HeadExam) -> None:
    class Other(RowClasses):
        kind: str = "other"

        @property
        def num_classes(self) -> int:
            return 2

    other = replace(exam, specs={"other": Other()})
    with pytest.raises(ConfigError, match=r"config\.heads\.other: no rule to compare it with"):
        without_network(other, Trigram(np.arange(5), VOCAB, 0), np.arange(5))
