"""C4's rules for documents, in the order of datatrove's C4QualityFilter, without its removal of lines; then
mC4's rule for paragraphs and C4's for bad words.
"""

import re
from collections.abc import Callable

from atelier.engine.config.filter.c4 import C4
from atelier.engine.data.filter_text import Check, DocumentText, RefusedText

_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_TERMINAL, _ELLIPSIS = (".", "?", "!", '"', "'"), "..."
_POLICY = (
    "terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies",
)  # fmt: skip


def build(spec: C4) -> Check:
    may_count, bad_words = _line_rule(spec), _bad_words(spec.bad_words)

    def check(text: DocumentText) -> RefusedText | None:
        sentences = 0
        for whole in text.lines:
            line = may_count(whole)
            if not line:
                continue
            lowered = line.lower()
            if spec.lorem_ipsum and "lorem ipsum" in lowered:
                return _refused("lorem_ipsum", 1, 0)
            if spec.javascript and "javascript" in lowered:
                continue
            if spec.curly_brackets and "{" in line:
                return _refused("curly_brackets", line.count("{"), 0)
            if spec.policy and any(phrase in lowered for phrase in _POLICY):
                continue
            if spec.min_sentences:
                sentences += text.sentences(line)
        if sentences < spec.min_sentences:
            return _refused("min_sentences", sentences, spec.min_sentences)
        if spec.min_paragraphs:
            long = sum(len(line) >= spec.paragraph_chars for line in text.text.split("\n"))
            if long < spec.min_paragraphs:
                return _refused("min_paragraphs", long, spec.min_paragraphs)
        if bad_words and bad_words.search(text.text.lower()):
            return _refused("bad_words", 1, 0)
        return None

    return check


def _refused(rule: str, measured: float, limit: float) -> RefusedText:
    return RefusedText(f"c4.{rule}", {"measured": float(measured), "limit": float(limit)})


def _line_rule(spec: C4) -> Callable[[str], str]:
    """The line without blanks at its ends and citations; '' if it is too short or ends in a wrong way."""
    too_long = re.compile(rf"(?<!\S)\S{{{spec.max_word_length + 1}}}") if spec.max_word_length else None

    def may_count(line: str) -> str:
        line = bare = line.strip()
        if too_long and len(line) > spec.max_word_length and too_long.search(line):
            return ""
        if spec.citations:
            line = _CITATION.sub("", line)
        if spec.terminal_punctuation and (not line.endswith(_TERMINAL) or line.endswith(_ELLIPSIS)):
            return ""
        if spec.min_words_per_line and _has_fewer_words(bare, spec.min_words_per_line):
            return ""
        return line

    return may_count


def _has_fewer_words(line: str, most: int) -> bool:
    return not line or len(line.split(None, most - 1)) < most


def _bad_words(words: tuple[str, ...]) -> re.Pattern[str] | None:
    """A pattern of the words between characters that are not part of words."""
    if not words:
        return None
    return re.compile(rf"(?:\W|^)(?:{'|'.join(map(re.escape, sorted(words)))})(?:\W|$)")
