"""Properties that all kinds of rows share."""

import re
from pathlib import Path

import numpy as np
import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import kinds as objective_kinds
from atelier.engine.config.registry import spec_class
from atelier.engine.data.blend import Blend
from atelier.engine.data.datasets.load import kinds, rows_of
from atelier.engine.data.tokens import Windows
from atelier.engine.data.vocabulary import Vocabulary
from tests.engine.data.datasets.conftest import whole
from tests.engine.row_inputs import chats as made_chats
from tests.engine.row_inputs import imitations as made_imitations

RESHAPED = ("distance", "knowledge", "mlm", "prefix", "reorder", "spans")  # another row in every epoch
PAIRS = ("prefix", "spans")  # what they hold is in test_spans.py

# the number of the document, which is in most of its sentences
NUMBER = re.compile(rb"log(\d+) the|depth_(\d+) =|Buoy(\d+)x|Log (\d+) of")


@pytest.fixture(scope="session")
def triples(harbour):
    return harbour.shop.run("extract", {}, {"corpus": harbour.corpus}, "triples")


@pytest.fixture(scope="session")
def attributes(harbour):
    return harbour.shop.run("describe", {}, {"corpus": harbour.corpus}, "attributes")


@pytest.fixture(scope="session")
def imitations(harbour):
    return made_imitations(harbour.shop.folder / "imitations", harbour.tokens)


@pytest.fixture(scope="session")
def marked(harbour):
    return harbour.with_sentinels(40)


@pytest.fixture
def opened(harbour, triples, attributes, imitations, marked):
    sources = {"tokens": None, "triples": triples, "attributes": attributes, "imitations": imitations}
    sources["chats"] = made_chats(harbour.shop.folder / "chats", harbour.tokens)

    def open_kind(kind, **options):
        spec = spec_class("objective", kind)()
        place = marked if kind == "spans" else harbour
        return place.open(spec, tokens=sources[spec.source], **options)

    return open_kind


def test_every_kind_of_rows_is_read_by_the_objective_of_its_name():
    readers = [kind for kind in objective_kinds("objective") if spec_class("objective", kind).reads == kind]
    others = ["mlm", "natural", "prefix", "reorder", "spans"]
    assert readers == kinds() == ["chat", "control", "distance", "document", "knowledge", *others]
    with pytest.raises(ConfigError, match="no rows 'reoder'; did you mean reorder"):
        rows_of("reoder")


@pytest.mark.parametrize("kind", kinds())
def test_what_only_these_rows_have_is_said_by_their_objective(opened, kind):
    of_objectives = {"classes_B", "segments_BT", "memory_BT"}  # read by them, or by blocks of every kind
    assert set(opened(kind).extras) - of_objectives == set(spec_class("objective", kind).extras)


@pytest.mark.parametrize("kind", kinds())
def test_a_row_is_the_same_in_any_batch_of_its_epoch(opened, kind):
    rows, again = opened(kind), opened(kind)
    indices = np.random.default_rng(3).integers(0, len(rows), 40)
    epochs = np.random.default_rng(4).integers(0, 3, 40)
    together = rows.batch(indices, epochs)
    assert set(together) == {"tokens_BT", "positions_BT", "documents_BT", "labels_BT", *rows.extras}
    assert together["tokens_BT"].shape[1] == rows.length
    for place, (index, epoch) in enumerate(zip(indices.tolist(), epochs.tolist(), strict=True)):
        alone = again.batch([index], [epoch])
        for name, values in together.items():
            assert values.dtype == np.int64
            assert (alone[name][0] == values[place]).all(), name


@pytest.mark.parametrize("kind", RESHAPED)
def test_another_epoch_or_seed_is_another_row(opened, kind):
    rows, other = opened(kind), opened(kind, seed=2)
    first, second, reseeded = whole(rows), whole(rows, epoch=1), whole(other)
    for changed in (second, reseeded):
        differs_B = (first["tokens_BT"] != changed["tokens_BT"]).any(1)
        assert differs_B.mean() > 0.5


@pytest.mark.parametrize("kind", kinds())
def test_a_row_is_padded_at_its_end_and_scores_no_padding_no_memory_and_no_end(opened, harbour, kind):
    rows = opened(kind)
    batch = whole(rows)
    is_text_BT = batch["documents_BT"] >= 0
    assert batch["tokens_BT"].shape == (len(rows), rows.length) == (len(rows), 64)
    assert (np.diff(is_text_BT.astype(int), axis=1) <= 0).all() and is_text_BT[:, 0].all()
    assert (batch["tokens_BT"][~is_text_BT] == harbour.vocabulary.pad_id).all()
    assert (batch["labels_BT"][~is_text_BT] == -100).all()
    assert (batch["positions_BT"] < 64).all() and (batch["positions_BT"] >= 0).all()
    same_BT = batch["documents_BT"][:, 1:] == batch["documents_BT"][:, :-1]
    steps_BT = np.diff(batch["positions_BT"], axis=1)[same_BT & is_text_BT[:, 1:]]
    assert (steps_BT == 1).all()


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind not in PAIRS])
def test_held_out_rows_hold_nothing_of_the_training_documents(opened, harbour, kind):
    splits = {
        int(line["text"].split()[1]): line["split"]
        for line in harbour.shop.lines(harbour.corpus, "documents.jsonl")
    }
    for split in ("train", "held_out"):
        batch = whole(opened(kind, split=split, sequence=96))
        shown_BT = np.where(batch["labels_BT"] >= 0, batch["labels_BT"], batch["tokens_BT"])
        tokens_BT = batch["tokens_BT"] if kind in ("chat", "document") else shown_BT
        spelt = [harbour.vocabulary.bytes_of([token]) or b"|" for token in range(400)]
        numbers = [
            int(match[match.lastindex])
            for row in tokens_BT.tolist()
            for match in NUMBER.finditer(b"".join(spelt[token] for token in row))
        ]
        assert len(numbers) > 20
        assert {splits[number] for number in numbers} == {split}


def test_a_blend_of_windows_and_rows_says_which_rows_see_both_ways(opened, harbour):
    sets = [Windows(harbour.tokens, harbour.shop.folder, "train", 64), opened("mlm"), opened("reorder")]
    for n, one in enumerate(sets):
        one.part = n
    blend = Blend([(one, 1.0) for one in sets], 5)
    batch = blend.batch(0, 48)
    text = {"tokens_BT", "positions_BT", "documents_BT", "labels_BT"}
    assert set(batch) == text | {"bidirectional_B", "classes_B", "segments_BT", "parts_B"}
    owners = np.array([owner for owner, _ in blend.samples(0, 48)])
    assert (batch["parts_B"] == owners).all() and set(owners) == {0, 1, 2}
    assert ((batch["bidirectional_B"] == 1) == (owners > 0)).all()
    assert ((batch["classes_B"] >= 0) == (owners == 2)).all()
    assert ((batch["segments_BT"] >= 0).any(1) == (owners == 2)).all()


@pytest.mark.parametrize("kind", ["distance", "knowledge", "mlm", "reorder"])
def test_a_vocabulary_without_the_special_tokens_is_refused_with_the_way_out(harbour, triples, kind):
    plain = harbour.shop.tokenizer(harbour.corpus)
    vocabulary = Vocabulary.read(Path(plain.url) / "tokenizer.json")
    spec = spec_class("objective", kind)()
    source = triples if kind == "knowledge" else harbour.shop.tokens(harbour.corpus, plain)
    with pytest.raises(ConfigError, match=r"tokenizer.specials: the vocabulary has no <\|"):
        rows_of(kind).open_rows(
            spec, source, vocabulary, harbour.shop.folder, split="train", sequence=64, seed=1
        )
