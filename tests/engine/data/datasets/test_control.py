"""Controllable rows: the text before a document, how often it is there, and which tokens are scored."""

import json
from collections import Counter

import numpy as np
import pytest

from atelier.engine.config.annotations import Described
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.generation import GENRES, TAGS, GenerationAttributes, Sampling
from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.objective.control import Control
from atelier.engine.data.attributes import genre_of, paragraphs, sentiment_of, topic_of
from atelier.engine.data.control_prompt import about, prefix_of
from atelier.engine.data.datasets.control import Asked
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.inference.generator import Generator
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.model.load import build, initialise
from tests.engine.data.conftest import Workshop
from tests.engine.data.datasets.conftest import whole
from tests.engine.row_inputs import SPECIALS, story

LINE = {"genre": "prose", "topic": "harbour", "keywords": ["pier", "buoy"], "sentiment": "neutral"}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Vocabulary:
    shop = Workshop(tmp_path_factory.mktemp("control"))
    corpus = shop.corpus([story(n) for n in range(60)], 0.2)
    tokenizer = shop.tokenizer(corpus, vocab=400, specials=SPECIALS)
    return Vocabulary.read(tokenizer.file("tokenizer.json", shop.folder))


def rows(vocabulary: Vocabulary, count: int = 400, sequence: int = 96, **more) -> Asked:
    lines = [LINE | {"text": f"The steam boat left the pier on day {n}."} for n in range(count)]
    return Asked(lines, vocabulary, Control(**more), split="train", sequence=sequence, seed=1)


def test_a_share_of_the_rows_asks_and_each_attribute_is_left_out_by_itself(vocabulary) -> None:
    batch = whole(rows(vocabulary))
    seen = Counter()
    for tokens, prompts in zip(batch["tokens_BT"], batch["prompts_BT"], strict=True):
        kept = [bool((prompts >= 0).any())] + [vocabulary.special(tag) in tokens for tag in TAGS]
        seen["any"] += any(kept)
        for place, is_kept in enumerate(kept):
            seen[place] += is_kept
    assert 0.4 < seen["any"] / 400 < 0.6
    for place in range(1, 5):
        assert 0.17 < seen[place] / 400 < 0.33
    assert 0.15 < seen[0] / 400 < 0.31  # one of 16 has no soft prompt though its genre is asked for


def test_soft_prompts_are_those_of_the_genre_in_order(vocabulary) -> None:
    batch = whole(rows(vocabulary, asked=1.0, dropped=0.0))
    first = GENRES.index("prose") * 16
    sizes = set()
    for prompts in batch["prompts_BT"]:
        used = prompts[prompts >= 0]
        assert used.tolist() == list(range(first, first + len(used)))
        sizes.add(len(used))
    assert min(sizes) == 0 and max(sizes) == 15


def test_scored_is_the_text_and_its_end_alone(vocabulary) -> None:
    made = rows(vocabulary, asked=1.0, dropped=0.0)
    batch = made.batch(np.arange(20))
    for row, labels in enumerate(batch["labels_BT"]):
        text = [*vocabulary.encode(f"The steam boat left the pier on day {row}."), vocabulary.end_id]
        assert labels[labels >= 0].tolist() == text
        first = int(np.flatnonzero(labels >= 0)[0])
        assert batch["tokens_BT"][row, first] == vocabulary.special("<|sep|>")


def test_a_length_is_said_to_the_next_multiple(vocabulary) -> None:
    assert [about(n) for n in (1, 11, 12, 20, 100)] == [8, 8, 16, 24, 104]
    prefix = prefix_of(GenerationAttributes(length=20), vocabulary, first_prompt=0, num_prompts=0)
    assert vocabulary.decode(prefix.ids).strip() == "about 24 tokens"
    assert prefix.prompts == [-1] * len(prefix.ids)


def test_a_cut_text_ends_anywhere_and_its_length_is_said(vocabulary) -> None:
    cut = rows(vocabulary, asked=1.0, dropped=0.0, cut=1.0)
    ends = set()
    for epoch in range(3):
        batch = cut.batch(np.arange(40), np.full(40, epoch))
        for row, labels in enumerate(batch["labels_BT"]):
            text = vocabulary.encode(f"The steam boat left the pier on day {row}.")
            *words, end = labels[labels >= 0].tolist()
            assert end == vocabulary.end_id and words == text[: len(words)] and 8 <= len(words) < len(text)
            said = vocabulary.decode(batch["tokens_BT"][row].tolist())
            assert f"about {about(len(words))} tokens" in said
            ends.add(len(words))
    assert len(ends) > 5


def test_rows_of_a_text_that_has_no_room_beside_its_wishes_ask_for_nothing(vocabulary) -> None:
    batch = whole(rows(vocabulary, 20, 24, asked=1.0, dropped=0.0))
    assert (batch["tokens_BT"][:, 0] == vocabulary.special("<|sep|>")).mean() > 0.5


def test_describe_keeps_paragraphs_with_their_attributes_and_splits(tmp_path, vocabulary) -> None:
    shop = Workshop(tmp_path)
    texts = [
        story(n) + "\n\n" + f"A good and safe harbour number {n}, which works well for all of them. " * 2
        for n in range(30)
    ]
    made: ArtifactInput = shop.run("describe", {}, {"corpus": shop.corpus(texts, 0.2)}, "attributes")
    lines = [json.loads(line) for line in made.file("attributes.jsonl", tmp_path).read_text().splitlines()]
    assert {line["genre"] for line in lines} == {"line"}
    assert all(line["sentiment"] == "positive" for line in lines if line["text"].startswith("A good"))
    assert {line["split"] for line in lines} == {"train", "held_out"}
    assert made.record.summary["paragraphs"] == len(lines)


def test_attributes_of_a_document_follow_from_its_name_and_words() -> None:
    assert (genre_of("asyncio/base.py"), topic_of("asyncio/base.py")) == ("code", "asyncio")
    assert (genre_of("test/test_os.py"), topic_of("os.py")) == ("test", "os")
    assert (genre_of("builtin:math"), genre_of("notes.txt")) == ("documentation", "prose")
    assert sentiment_of(["this", "fails", "with", "an", "error"], ["works"], ["fails", "error"]) == "negative"
    assert paragraphs("short\n\n" + "x" * 70, Described()) == ["x" * 70]


def test_a_model_of_other_genres_generates_with_their_soft_prompts_and_names_them(vocabulary) -> None:
    genres = ("law", "novel", "web")
    net = Net(num_layers=1)
    spec = Ernie(
        num_layers=1,
        hidden=16,
        num_heads=2,
        vocab=vocabulary.size,
        nlu=net,
        nlg=net,
        prompts=12,
        genres=genres,
    )
    made = build(spec).eval()
    initialise(made, seed=1, name="m")
    generator = Generator(made, vocabulary)
    before = generator.before("", Sampling(wishes=GenerationAttributes(genre="novel")))
    assert [prompt for prompt in before.prompts if prompt >= 0] == [4, 5, 6]
    with pytest.raises(
        ConfigError, match="'nowel' is none of the model's: law, novel, web; did you mean novel"
    ):
        generator.before("", Sampling(wishes=GenerationAttributes(genre="nowel")))


def test_rows_of_genres_that_the_objective_lacks_are_refused(vocabulary) -> None:
    with pytest.raises(DataError, match=r"genres prose are none of objective control's law, novel"):
        rows(vocabulary, genres=("law", "novel"))
    batch = whole(rows(vocabulary, asked=1.0, dropped=0.0, attributes=("topic",)))
    assert (batch["prompts_BT"] < 0).all()
    assert not (batch["tokens_BT"] == vocabulary.special("<|length|>")).any()
    assert (batch["tokens_BT"] == vocabulary.special("<|topic|>")).any(1).all()
