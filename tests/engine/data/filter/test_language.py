"""The language filter, and repairs: with their packages, and the way out without them."""

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.filter.language import Language
from atelier.engine.data import repair
from atelier.engine.data.filter import language
from atelier.engine.data.filter_text import DocumentText
from atelier.engine.data.repair import repaired

GERMAN = "Die Würde des Menschen ist unantastbar. Sie zu achten und zu schützen ist Verpflichtung."
ENGLISH = "It was a bright cold day in April, and the clocks were striking thirteen."


def test_kept_languages_are_kept_and_others_counted_by_their_names() -> None:
    pytest.importorskip("py3langid")
    check = language.build(Language(languages=("en",)))
    assert check(DocumentText(ENGLISH)) is None
    refused = check(DocumentText(GERMAN))
    assert refused and refused.reason == "language.de" and refused.numbers["measured"] > 0.9
    assert language.build(Language(languages=("de", "en")))(DocumentText(GERMAN)) is None


def test_a_text_without_a_language_is_refused_by_its_probability() -> None:
    pytest.importorskip("py3langid")
    for text in ("", "12", "x"):
        refused = language.build(Language())(DocumentText(text))
        assert refused and refused.reason == "language.min_probability", text


def test_only_the_beginning_is_read() -> None:
    pytest.importorskip("py3langid")
    text = DocumentText(ENGLISH * 2 + GERMAN * 100)
    assert language.build(Language(max_read_chars=140))(text) is None
    assert language.build(Language())(text) is not None


def test_an_unknown_language_is_refused_with_the_known_ones() -> None:
    pytest.importorskip("py3langid")
    with pytest.raises(ConfigError, match=r"knows no language 'enn'; give ISO 639 codes of: .* en, "):
        language.build(Language(languages=("enn",)))


def test_without_their_packages_the_errors_name_them(monkeypatch) -> None:
    monkeypatch.setattr(language, "find_spec", lambda name: None)
    monkeypatch.setattr(repair, "find_spec", lambda name: None)
    language._identifier.cache_clear()
    repair._ftfy.cache_clear()
    with pytest.raises(ConfigError, match=r"py3langid.*pip install py3langid"):
        language.build(Language())
    with pytest.raises(ConfigError, match=r"ftfy.*pip install ftfy"):
        repaired("a")


@pytest.mark.parametrize(
    ("broken", "whole"),
    [
        ("l’humanitÃ©", "l’humanité"), ("a &amp; b", "a & b"), ("<b>a &amp; b", "<b>a &amp; b"),
        ("a &amp;\n<b> &amp;\n&amp;", "a &\n<b> &amp;\n&amp;"), ("\ud83d\ude00", "😀"),
        ("a\x1b[31mb\x00", "ab"),
        ("“ﬁne”\r\n", "“ﬁne”\r\n"), ("a\n\nb <c>", "a\n\nb <c>"),
    ],
)  # fmt: skip
def test_an_encoding_is_repaired_and_layout_stays(broken: str, whole: str) -> None:
    pytest.importorskip("ftfy")
    assert repaired(broken) == whole
