"""Text of evaluation sets that models are asked is cut out of a corpus, as that of files of questions."""

from pathlib import Path

import numpy as np
import pytest

from atelier.engine.config.base import parse
from atelier.engine.config.curation import Curation
from atelier.engine.config.error import ConfigError
from tests.engine.data.curation.pipeline import Pipeline
from tests.engine.data.curation.texts import text, words
from tests.engine.data.evaluation.posing import published, write_rows


def test_questions_and_right_answers_of_a_set_are_cut(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    asked, right, wrong, long = (" ".join(words(rng, 15)) for _ in range(4))
    rows = [
        {"id": "q", "question": f"{asked}?", "options": [wrong, right], "answer": 1},
        {"id": "r", "question": f"{long}?", "options": ["yes", "no"], "answer": 0},
    ]
    quiz = published(write_rows(tmp_path / "quiz.jsonl", rows))
    source = tmp_path / "main"
    source.mkdir()
    planted = {"asked": asked, "right": right, "wrong": wrong, "long": long}
    for name, one in planted.items():
        (source / f"{name}.txt").write_text(f"{text(rng, 60)} {one} {text(rng, 60)}")
    settings = {"decontaminate": {"questions": {"quiz": {"set": "quiz"}}}}
    pipeline = Pipeline(tmp_path / "run", {"main": source}, parse(Curation, settings, "curation"))
    pipeline.made["sets.quiz"] = quiz
    corpus = " ".join(line["text"] for line in pipeline.run().lines("main"))
    assert {name for name, one in planted.items() if one in corpus} == {"wrong"}
    summary = {**pipeline.made["overlaps"].record.summary}
    assert summary["uncheckable"] == 1  # the answer yes


@pytest.mark.parametrize("given", [{}, {"source": "a.jsonl", "set": "boolq"}])
def test_questions_have_either_a_source_or_a_set(given: dict[str, str]) -> None:
    settings = {"decontaminate": {"questions": {"quiz": given}}}
    with pytest.raises(ConfigError, match="either source or set"):
        parse(Curation, settings, "curation")
