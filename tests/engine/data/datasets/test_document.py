import numpy as np
import pytest

from atelier.engine.config.objective.document import DocumentLM
from tests.engine.data.datasets.conftest import whole


def located(batch, text):
    """The place in the split of each token of each row: rows hold contiguous runs, so a run is looked up by
    the documents' own beginnings.
    """
    flat = text.tokens_N.astype("<u2").tobytes()
    for row, documents in enumerate(batch["documents_BT"]):
        for document in range(documents.max() + 1):
            mine = np.flatnonzero(documents == document)
            run = batch["tokens_BT"][row, mine].astype("<u2").tobytes()
            found, at = [], flat.find(run)
            while at >= 0:
                found.append(at // 2) if at % 2 == 0 else None
                at = flat.find(run, at + 1)
            yield row, mine, found


@pytest.mark.parametrize(("sequence", "memory"), [(64, "auto"), (32, 0), (48, 40)])
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_every_token_but_a_documents_first_is_predicted_once_an_epoch(harbour, sequence, memory, split):
    rows, text = harbour.open(DocumentLM(memory=memory), sequence=sequence, split=split), harbour.text(split)
    batch = whole(rows)
    num_predicted = np.zeros(len(text), dtype=int)
    for row, mine, found in located(batch, text):
        assert found
        labels = batch["labels_BT"][row, mine]
        if len(found) == 1:
            places = found[0] + np.arange(len(mine))
            assert (labels[labels >= 0] == text.tokens_N[places + 1][labels >= 0]).all()
            num_predicted[places[labels >= 0] + 1] += 1
    is_first = np.zeros(len(text), dtype=bool)
    is_first[text.begins_D] = True
    assert num_predicted[is_first].sum() == 0 and num_predicted.max() == 1
    assert (batch["labels_BT"] >= 0).sum() == (~is_first).sum()
    assert num_predicted.sum() > 0.9 * (~is_first).sum()  # all but runs that stand in the text twice


def test_memory_is_the_tokens_just_before_in_the_same_document_and_is_not_predicted(harbour):
    rows, text = harbour.open(DocumentLM(memory=20), sequence=64), harbour.text()
    batch = whole(rows)
    is_memory_BT = batch["memory_BT"] == 1
    assert (batch["labels_BT"][is_memory_BT] == -100).all()
    counts_B = is_memory_BT.sum(1)
    assert set(counts_B.tolist()) == {0, 20}
    assert is_memory_BT[counts_B == 20, :20].all()
    assert (batch["documents_BT"][is_memory_BT] == 0).all()
    for row, mine, found in located(batch, text):
        for place in found if len(found) == 1 else []:
            owner = text.documents(np.array([place, place + len(mine) - 1]))
            assert owner[0] == owner[1]
            begins = place == text.begins_D[owner[0]]
            assert begins != is_memory_BT[row, mine[0]]  # memory unless the document begins here


def test_short_documents_share_a_row_and_long_ones_have_rows_of_their_own(harbour):
    rows, text = harbour.open(DocumentLM(), sequence=256), harbour.text()
    batch = whole(rows)
    assert (batch["documents_BT"].max(1) > 0).any()
    alone = -(-(text.lengths_D - 1) // (256 - 64))
    assert len(rows) < alone.sum()
