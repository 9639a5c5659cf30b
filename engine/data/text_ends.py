"""How texts begin and end under a tokenizer."""

from tokenizers import Tokenizer

from atelier.engine.config.data import END, AdoptedEnds, TextEnds
from atelier.engine.config.error import ConfigError

ENDS = (END, "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


def named_end(tokenizer: Tokenizer) -> int | None:
    """The id of the first of ENDS that the tokenizer has."""
    return next((end for name in ENDS if (end := tokenizer.token_to_id(name)) is not None), None)


def text_ends(texts: AdoptedEnds, tokenizer: Tokenizer, place: str) -> TextEnds:
    """How texts begin and end with an adopted tokenizer: documents end with the end token's name if it is one
    of the ends. Raises ConfigError for ids and names that the tokenizer lacks.
    """
    named = named_end(tokenizer)
    for end in texts.ends:
        if not 0 <= end < 1 << 32 or tokenizer.id_to_token(end) is None:
            raise ConfigError(
                f"{place}: eos_token_id", f"{end}, but the tokenizer has no such id", "the model's tokenizer"
            )
    first = [named] if named is not None and (named in texts.ends or not texts.ends) else []
    ends = tuple(dict.fromkeys([*first, *texts.ends]))
    if not ends:
        raise ConfigError(f"{place}: eos_token_id", "the tokenizer has no end-of-text token", f"add {END}")
    start = texts.start
    if start is not None and tokenizer.id_to_token(start) is None:
        raise ConfigError(
            f"{place}: decoder_start_token_id", f"{start}, but the tokenizer has no such id", "use its own"
        )
    if texts.begin is None:
        return TextEnds(begin=_added_before(tokenizer, place), ends=ends, start=start)
    begin = tokenizer.token_to_id(texts.begin) if texts.begin else None
    if texts.begin and begin is None:
        raise ConfigError(f"{place}: bos_token", f"{texts.begin!r}, which the tokenizer lacks", "use its own")
    return TextEnds(begin=begin, ends=ends, start=start)


def _added_before(tokenizer: Tokenizer, place: str) -> int | None:
    """The token that the tokenizer itself puts before a text."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    plain, whole = (tokenizer.encode("a", add_special_tokens=added).ids for added in (False, True))
    places = (n for n in range(len(whole) - len(plain) + 1) if whole[n : n + len(plain)] == plain)
    before = whole[: next(places, 0)] if plain else []
    if len(before) > 1:
        raise ConfigError(place, f"puts {len(before)} tokens before every text", "at most one is supported")
    return before[0] if before else None
