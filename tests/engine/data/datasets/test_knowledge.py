import json

import numpy as np
import pytest

from atelier.engine.config.error import DataError
from atelier.engine.config.objective.knowledge import Knowledge
from atelier.engine.io.artifact import open_input
from tests.engine.data.datasets.conftest import whole
from tests.engine.trainings import artifact


@pytest.fixture(scope="module")
def lines():
    return [
        {
            "head": f"boat_{n}",
            "relation": ("method of", "defined in", "subclass of")[n % 3],
            "tail": f"Harbour{n % 7}",
            "text": "The steam boat left the harbour for the estuary. " * (n % 5 + 1),
            "split": "held_out" if n % 10 == 0 else "train",
        }
        for n in range(400)
    ]


@pytest.fixture
def opened(lines, tmp_path, harbour):
    def make(**options):
        raw = "".join(json.dumps(line) + "\n" for line in lines).encode()
        source = open_input(artifact(tmp_path / "triples", "triples", {"triples.jsonl": raw}))
        return harbour.open(Knowledge(), **({"tokens": source, "sequence": 72} | options))

    return make


def test_a_row_is_the_triple_and_its_sentence_between_separators(opened, lines, harbour):
    batch = whole(opened())
    shown_BT = np.where(batch["labels_BT"] >= 0, batch["labels_BT"], batch["tokens_BT"])
    train = [line for line in lines if line["split"] == "train"]
    sep, cls, encode = harbour.vocabulary.special("<|sep|>"), 3, harbour.vocabulary.encode
    assert len(shown_BT) == len(train) and (batch["bidirectional_B"] == 1).all()
    for row, line in zip(shown_BT.tolist(), train, strict=True):
        fields = [
            token for name in ("head", "relation", "tail", "text") for token in (*encode(line[name]), sep)
        ]
        expected = [cls, *fields]
        if len(expected) > 72:
            expected = [*expected[:71], sep]
        assert row[: len(expected)] == expected


def test_half_the_rows_hide_the_relation_and_half_words_of_the_sentence(opened, harbour):
    rows, sep = opened(), harbour.vocabulary.special("<|sep|>")
    for epoch in range(2):
        batch = whole(rows, epoch)
        hidden_BT = batch["labels_BT"] >= 0
        shown_BT = np.where(hidden_BT, batch["labels_BT"], batch["tokens_BT"])
        fields_BT = np.cumsum(shown_BT == sep, axis=1)
        relation_BT, sentence_BT = fields_BT == 1, fields_BT == 3
        marks_BT = shown_BT == sep
        hides_relation_B = (hidden_BT & relation_BT).any(1)
        assert abs(hides_relation_B.mean() - 0.5) < 0.01
        whole_BT = (relation_BT & ~marks_BT)[hides_relation_B]
        assert (hidden_BT[hides_relation_B] == whole_BT).all()  # all of the relation and nothing else
        is_mask_BT = (batch["tokens_BT"] == harbour.vocabulary.special("<|mask|>"))[hides_relation_B]
        num_masks_B = is_mask_BT.sum(1)
        assert set(num_masks_B[num_masks_B != whole_BT.sum(1)].tolist()) == {0}  # one unit
        assert 0.7 < (num_masks_B > 0).mean() < 0.9
        others = hidden_BT[~hides_relation_B]
        assert others.any(1).all() and not (others & ~sentence_BT[~hides_relation_B]).any()
        share = others.sum() / (sentence_BT & ~marks_BT)[~hides_relation_B].sum()
        assert 0.12 < share < 0.18


def test_triples_of_a_split_only_are_read_and_none_that_leave_no_room(opened):
    assert (len(opened()), len(opened(split="held_out"))) == (360, 40)
    with pytest.raises(DataError, match=r"none of its 360 train triples fits in 24 tokens"):
        opened(sequence=24)
