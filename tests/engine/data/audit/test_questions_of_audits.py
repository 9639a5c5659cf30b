"""What an audit searches for of a question, and what it says of one that is short."""

from atelier.engine.config.evaluation_set import QuestionLine
from atelier.engine.data.audit.audit import _together, _words
from atelier.engine.data.audit.documents import CorpusDocument
from atelier.engine.data.audit.part_match import scan


def question(context: str, parts: list[str], answer: str, options: list[str] | None = None) -> QuestionLine:
    return QuestionLine(
        id="q", context=context, options=options or [], answer=0, targets=[answer], shots=[], group="q",
        parts=parts, answer_text=answer,
    )  # fmt: skip


def found(text: str, searched: list[str]) -> bool:
    return bool(scan([CorpusDocument(0, "train", 0, "d", text, len(text))], searched).matches)


def test_a_short_question_is_found_with_its_answer_as_it_is_asked_and_without_the_template():
    asked = question(
        "Answer the question.\n\nQuestion: Which city is the largest in France?\nAnswer:",
        ["Which city is the largest in France?"], "Paris", [" Paris", " Lyon"],
    )  # fmt: skip
    assert _words(asked["parts"][0]) < 8
    texts = _together(asked)
    assert texts[0].startswith("Which city") and texts[0].endswith("Paris")
    assert found("Question: Which city is the largest in France?\nAnswer: Paris\n", texts)
    assert found("which city is the largest in france? Paris", texts)
    assert not found("Answer the question.\n\nQuestion: Which river is the longest?\nAnswer: Loire", texts)


def test_parts_are_put_in_the_order_in_which_they_are_asked():
    asked = question("The wind is up. Which sail first? A:", ["Which sail first?", "The wind is up."], "jib")
    assert _together(asked)[1] == "The wind is up. Which sail first? jib"
