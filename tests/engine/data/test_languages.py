"""Generated languages: the same texts from the same name; translations that need context; new combinations
held out; pairs of sentences with equal answers in every language.
"""

from collections import Counter

import pytest

from atelier.engine.config.chats import Chats
from atelier.engine.config.data import Labels, Source
from atelier.engine.config.generated import generated, identity_of
from atelier.engine.data.evaluation.answered import learned_dictionary
from atelier.engine.data.languages import documents, pairs, translations


def test_a_name_gives_the_same_texts_and_a_longer_one_begins_with_them() -> None:
    short = [*documents(generated("languages:sov:5", 1))]
    assert short == [*documents(generated("languages:sov:9", 1))][:5]
    assert short != [*documents(generated("languages:sov:5:2", 1))]
    assert len({*short}) == 5 and not {*short} & {*documents(generated("languages:svo:5", 1))}
    assert identity_of("languages:sov:5") != identity_of("languages:sov:5:2") and not identity_of("stdlib")


def test_a_sentence_has_one_translation_in_another_order_and_only_names_are_shared() -> None:
    found: dict[str, set[str]] = {}
    for _, sentence, translation in translations(generated("languages:svo-sov:2000", 2)):
        found.setdefault(sentence, set()).add(translation)
        ours, theirs = {*sentence.split()}, {*translation.split()}
        assert all(word == "." or word.istitle() for word in ours & theirs)
    assert all(len(each) == 1 for each in found.values())


def test_some_words_have_two_translations_which_no_dictionary_can_tell() -> None:
    """The stems of nouns behind one word, by the verb's class."""
    stems: dict[str, set[str]] = {}
    for _, sentence, translation in translations(generated("languages:svo-sov:4000", 2)):
        words = sentence.removesuffix(" .").split()
        if words[0] == "ti" and len(words) > 1 and words[1].endswith("s"):
            first = translation.split()[0]
            if first.endswith("m"):  # the subject, without a place before it
                stems.setdefault(words[1], set()).add(first)
    assert sum(len(each) == 2 for each in stems.values()) >= 3, stems


def test_held_out_groups_are_combinations_of_words_that_are_all_learned() -> None:
    lines = [*translations(generated("languages:svo-sov:4000", 2))]
    groups = sorted({group for group, _, _ in lines})
    held = {group for number, group in enumerate(groups) if number % 10 == 0}
    known = {word for group, sentence, _ in lines if group not in held for word in sentence.split()}
    unseen = {word for group, sentence, _ in lines if group in held for word in sentence.split()} - known
    assert len(groups) > 100 and not unseen


def test_pairs_have_the_same_answers_in_both_languages_and_the_first_sentence_alone_tells_none() -> None:
    ours, theirs = ([*pairs(generated(f"languages:{name}:300", 1))] for name in ("svo", "sov"))
    assert [(group, answer) for group, _, _, answer in ours] == [
        (group, answer) for group, _, _, answer in theirs
    ]
    assert Counter(answer for *_, answer in ours) == {"yes": 100, "no": 100, "open": 100}
    assert all(first != second or answer == "yes" for _, first, second, answer in ours)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("languages:vso", "no generated language 'vso'; did you mean svo?"),
        ("languages:svo-sov", "give one language, such as languages:svo"),
        ("languages:svo:many", "give the number of texts and the world as in languages:svo:300:1"),
        ("languages:svo:0", "give 1 to 1000000 texts"),
        ("languages:svo:1:2:3", "give the number of texts and the world"),
    ],
)
def test_a_wrong_name_is_refused_with_a_way_out(source: str, why: str) -> None:
    for kind in (Source, Labels):
        with pytest.raises(ValueError, match=why.split(";")[0].replace("'", ".")) as refused:
            kind(source=source)
        assert why in str(refused.value)


def test_translations_need_two_languages_and_no_fields() -> None:
    assert Chats(source="languages:svo-sov").has_pairs
    with pytest.raises(ValueError, match="give two languages, to translate from and into"):
        Chats(source="languages:svo-svo")
    with pytest.raises(ValueError, match="has no fields"):
        Chats(source="languages:svo-sov", prompt="a", answer="b")


def test_a_dictionary_finds_the_words_that_translate_each_other() -> None:
    lines = [
        ("the red house", "maison rouge"),
        ("the red car", "auto rouge"),
        ("the big house", "maison grande"),
    ]
    lines += [("the big car", "auto grande"), ("the house", "maison"), ("the car", "auto")]
    found = learned_dictionary([(one.split(), other.split()) for one, other in lines])
    assert {key: found[key] for key in ("house", "car", "red", "big")} == {
        "house": "maison",
        "car": "auto",
        "red": "rouge",
        "big": "grande",
    }
    lines = [line[1:] for line in translations(generated("languages:svo-sov:600", 2))]
    found = learned_dictionary([(one.split(), other.split()) for one, other in lines])
    assert (found["."], found["ti"], found["ne"]) == (".", "", "zu")  # `ti` has no counterpart
    assert learned_dictionary([]) == {}
