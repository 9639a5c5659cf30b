import time

import numpy as np
import pytest

from atelier.engine.data.curation import overlap as module
from atelier.engine.data.curation.overlap import Question, QuestionOverlap
from tests.engine.data.curation.texts import han, text, words

Q = Question


def planted(seed: int, count: int = 20) -> list[Question]:
    rng = np.random.default_rng(seed)
    return [
        Q("set", str(n), (" ".join(words(rng, int(rng.integers(13, 40)))) + "?", "Yes."))
        for n in range(count)
    ]


def forms(question: str, rng: np.random.Generator) -> dict[str, str]:
    tokens = question.split()
    lines = "\n".join(" ".join(tokens[n : n + 8]) for n in range(0, len(tokens), 8))
    marked = [f"<b>{one}</b>" if n % 3 else f"*{one}*" for n, one in enumerate(tokens)]
    return {
        "verbatim": question,
        "paragraph": f"\n\n{question}\n\n",
        "lines": lines,
        "inside": f"{' '.join(words(rng, 20))} {question} {' '.join(words(rng, 20))}",
        "upper": question.upper(),
        "html": "<p>" + " ".join(marked).replace(" ", "&nbsp;") + "</p>",
        "emphasis": "_" + question.replace(" ", "_ __") + "_",
        "attribute": f'<img alt="{question}">',
    }


def test_every_question_is_found_in_every_form_at_its_exact_place():
    rng = np.random.default_rng(2)
    questions = planted(1)
    overlap = QuestionOverlap(questions)
    for question in questions:
        asked = question.parts[0]
        for form, quoted in forms(asked, rng).items():
            before = text(rng, 4) + " "
            of = before + quoted + " " + text(rng, 4)
            found = overlap.found(of)
            count = len(asked.split())
            assert len(set(found.ngram_M.tolist())) == count - 12, form
            first, last = int(found.begin_M.min()), int(found.end_M.max())
            inside = of[first:last].lower()
            letters = asked.split()[0].lower(), asked.rstrip("?").split()[-1].lower()
            assert inside.startswith(letters[0]) and inside.rstrip("</b>").endswith(letters[1]), form
            assert len(before) <= first and last <= len(before) + len(quoted), form
            assert {overlap.questions(n)[0][1] for n in found.ngram_M.tolist()} == {question.id}


def test_a_question_with_markup_is_found_in_plain_text():
    overlap = QuestionOverlap(
        [Q("s", "1", ("One <b>two</b> three\nfour _five_ six **seven** caf&eacute; nine",))]
    )
    found = overlap.found("Zero one two three four five six seven café nine ten")
    assert (found.begin_M.tolist(), found.end_M.tolist()) == ([5], [48])


def test_text_without_spaces_is_found_by_thirteen_characters():
    rng = np.random.default_rng(3)
    asked = "".join(han(rng, 20))
    overlap = QuestionOverlap([Q("s", "1", (asked,))])
    found = overlap.found("前言。" + asked[:14] + "，其他")
    assert found.begin_M.tolist() == [3, 4] and found.end_M.tolist() == [16, 17]
    assert len(overlap.found(asked[:12]).begin_M) == 0


def test_other_texts_have_no_matches():
    overlap = QuestionOverlap(planted(1, 100))
    rng = np.random.default_rng(9)
    assert not any(len(overlap.found(text(rng, 40)).begin_M) for _ in range(50))


def test_twelve_common_words_are_no_match_and_thirteen_are():
    (question,) = planted(5, 1)
    tokens = question.parts[0].split()
    overlap = QuestionOverlap([question])
    assert len(overlap.found("x " + " ".join(tokens[:12]) + " y").begin_M) == 0
    assert len(overlap.found("x " + " ".join(tokens[:13]) + " y").begin_M) == 1


def test_texts_of_eight_to_twelve_words_match_whole_and_shorter_ones_are_listed():
    rng = np.random.default_rng(1)
    parts = {size: words(rng, size) for size in (7, 8, 12, 13)}
    overlap = QuestionOverlap([Q("s", str(size), (" ".join(part), "Yes")) for size, part in parts.items()])
    assert [(one.id, one.part, one.words) for one in overlap.uncheckable] == [
        ("7", 0, 7), ("7", 1, 1), ("8", 1, 1), ("12", 1, 1), ("13", 1, 1),
    ]  # fmt: skip
    assert len(overlap) == 3
    for size in (8, 12):
        assert len(overlap.found(" ".join(["x", *parts[size], "y"])).begin_M) == 1
        assert len(overlap.found(" ".join(["x", *parts[size][1:], "y"])).begin_M) == 0


def test_an_ngram_of_several_questions_names_all_of_them_up_to_a_limit(monkeypatch: pytest.MonkeyPatch):
    shared = " ".join(words(np.random.default_rng(1), 13))
    overlap = QuestionOverlap([Q("s", str(n), (shared, f"{shared} {n} more words")) for n in range(5)])
    number = int(overlap.found(shared).ngram_M[0])
    assert overlap.text(number) == shared
    assert overlap.questions(number) == [("s", str(n)) for n in range(5)]
    monkeypatch.setattr(module, "NAMES", 3)
    assert len(overlap.questions(number)) == 3 and overlap.num_questions(number) == 5


def test_parts_of_a_question_are_searched_for_apart():
    rng = np.random.default_rng(1)
    one, other = " ".join(words(rng, 13)), " ".join(words(rng, 13))
    overlap = QuestionOverlap([Q("s", "1", (one, other))])
    assert len(overlap) == 2
    assert len(overlap.found(f"{one} {other}").begin_M) == 2


def test_common_ngrams_are_listed_with_count_and_questions_and_not_cut():
    often, rare = planted(1, 2)
    overlap = QuestionOverlap([often, rare])
    rng = np.random.default_rng(1)
    documents = [f"{text(rng, 2)} {often.parts[0]} {text(rng, 2)}" for _ in range(10)]
    documents += [f"{rare.parts[0]} {text(rng, 2)} " * 20, text(rng, 3)]
    shards = [np.zeros(len(overlap), dtype=np.int64) for _ in range(2)]
    found = [overlap.found(document) for document in documents]
    for n, matches in enumerate(found):
        overlap.add_counts(shards[n % 2], matches)
    counts = shards[0] + shards[1]
    assert [len(overlap.spans(matches, counts)) > 0 for matches in found] == [False] * 10 + [True, False]
    common = overlap.common(counts)
    assert len(common) == len(often.parts[0].split()) - 12
    assert all(one.documents == 10 and one.questions == [("set", "0")] for one in common)
    assert all(one.text in often.parts[0].rstrip("?").lower() for one in common)
    assert overlap.common(counts, 11) == [] and all(overlap.spans(one, counts, 11) for one in found[:10])


def test_matching_hashes_of_other_words_are_no_matches(monkeypatch: pytest.MonkeyPatch):
    (question,) = planted(1, 1)
    plain = QuestionOverlap([question])
    rng = np.random.default_rng(2)
    of = f"{text(rng, 5)} {question.parts[0]} {text(rng, 5)}"
    expected = plain.found(of)
    # all n-grams of a size have one hash: only the first n-gram of the question is still told from others
    monkeypatch.setattr(module, "ngram_hashes", lambda h, n: np.zeros(max(len(h) - n + 1, 0), np.uint64))
    clashing = QuestionOverlap([question])
    assert clashing.clashes == len(plain) - 1 and len(clashing) == 1
    found = clashing.found(of)
    assert (found.begin_M.tolist(), found.end_M.tolist()) == ([expected.begin_M[0]], [expected.end_M[0]])


def test_questions_that_are_all_too_short_are_listed_and_nothing_is_found():
    found = QuestionOverlap([Q("s", "1", ("Who is it?", "Me"))])
    assert [each.words for each in found.uncheckable] == [3, 1] and len(found) == 0
    assert not len(found.found("Who is it? Me, who else " * 9).ngram_M)


@pytest.mark.parametrize(
    "of", ["a " * 300_000, "w" * 3_000_000, "", "\x00\ud800", "<b>a</b> " * 60_000],
    ids=["one ngram", "one word", "empty", "broken", "marked"],
)  # fmt: skip
def test_hostile_texts_are_searched_in_time_as_they_are_long(of: str):
    overlap = QuestionOverlap([Q("s", "1", ("a " * 13,)), *planted(1)])
    begin = time.process_time()
    found = overlap.found(of)
    assert time.process_time() - begin < 1.5
    assert (len(found.begin_M) > 0) == (of[:2] in ("a ", "<b"))
