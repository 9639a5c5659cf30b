from pathlib import Path

import numpy as np
import pytest

from atelier.engine.config.error import DataError
from atelier.engine.data.tokens import TokenText, Windows

T = 16


@pytest.fixture
def tokens(workshop, poems):
    corpus = workshop.corpus(poems)
    return workshop.tokens(corpus, workshop.tokenizer(corpus))


def _stream(tokens, split):
    folder = Path(tokens.url)
    return np.fromfile(folder / f"{split}.bin", dtype="<u2").astype(np.int64), np.load(
        folder / f"{split}.ends.npy"
    )


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_windows_follow_one_another_and_cover_the_split_once(tokens, tmp_path, split):
    ids, _ = _stream(tokens, split)
    windows = Windows(tokens, tmp_path, split, T)
    assert len(windows) == (len(ids) - 1) // T
    batch = windows.batch(range(len(windows)))
    assert {name: (values.shape, values.dtype) for name, values in batch.items()} == {
        name: ((len(windows), T), np.dtype(np.int64))
        for name in ("tokens_BT", "positions_BT", "documents_BT", "labels_BT")
    }
    assert batch["tokens_BT"].reshape(-1).tolist() == ids[: len(windows) * T].tolist()


def test_labels_are_the_next_token_also_the_end_token_but_nothing_across_a_document_border(tokens, tmp_path):
    ids, ends = _stream(tokens, "train")
    windows = Windows(tokens, tmp_path, "train", T)
    labels = windows.batch(range(len(windows)))["labels_BT"].reshape(-1)
    expected = ids[1 : len(labels) + 1].copy()
    expected[[end - 1 for end in ends if end <= len(labels)]] = -100
    assert labels.tolist() == expected.tolist()
    assert (labels == 0).sum() == sum(end - 1 <= len(labels) for end in ends)


def test_documents_and_positions_begin_anew_at_each_document_and_each_window(tokens, tmp_path):
    _, ends = _stream(tokens, "train")
    windows = Windows(tokens, tmp_path, "train", T)
    batch = windows.batch(range(len(windows)))
    for row in range(len(windows)):
        document, position = 0, 0
        for column in range(T):
            if column and row * T + column in ends:
                document, position = document + 1, 0
            assert (batch["documents_BT"][row, column], batch["positions_BT"][row, column]) == (
                document,
                position,
            )
            position += 1


def test_a_batch_is_its_rows_whatever_their_order(tokens, tmp_path):
    windows = Windows(tokens, tmp_path, "train", T)
    order = [5, 0, 3, 3]
    batch = windows.batch(order)
    for row, index in enumerate(order):
        single = windows.batch(np.array([index]))
        assert all((values[row] == single[name][0]).all() for name, values in batch.items())


def test_a_split_too_small_for_one_window_is_refused_with_the_numbers_and_the_way_out(tokens, tmp_path):
    ids, ends = _stream(tokens, "held_out")
    with pytest.raises(DataError) as caught:
        Windows(tokens, tmp_path, "held_out", len(ids))
    message = str(caught.value)
    assert f"{len(ids)} tokens in {len(ends)} documents" in message
    assert str(len(ids) + 1) in message
    assert f"train.sequence={len(ids) - 1}" in message
    assert len(Windows(tokens, tmp_path, "held_out", len(ids) - 1)) == 1


def test_a_split_shorter_than_any_training_sequence_gets_no_sequence_to_try(tokens, tmp_path, monkeypatch):
    monkeypatch.setattr(TokenText, "__len__", lambda _: 8)
    with pytest.raises(DataError, match=r"has 8 tokens .* give more text$"):
        Windows(tokens, tmp_path, "train", 64)
    monkeypatch.setattr(TokenText, "__len__", lambda _: 9)
    with pytest.raises(DataError, match=r"give more text, or set train\.sequence=8 or less$"):
        Windows(tokens, tmp_path, "train", 64)
