"""Whether transformers' AutoTokenizer cuts text as an exported tokenizer.json does. It builds the tokenizers
of some families itself, with rules of its own: those of Qwen 2 whatever the file says (transformers 5.24).
"""

import random
from collections.abc import Iterator
from pathlib import Path

from atelier.engine.config.error import ConfigError, DataError, printable
from atelier.engine.data.vocabulary import Vocabulary

TEXTS = 200  # that are compared
WORDS = (
    *("def", "return", "the", "HTTP", "snake_case", "camelCase", "don't", "we'LL", "x1", "12345", "3.14e-5"),
    *("Größe", "naïve", "nai\u0308ve", "\ufb01", "É", "中文", "русский", "עברית", "한국어", "🙂"),
    *("==", "->", "!!!", "(", "):", "..."),
)
BLANKS = (" ", " ", " ", "", "  ", "\n", "\n\n\n", "\t", " \n ", "\r\n", "\u00a0", "\u3000")
NOT_COMPARED = "its tokenizer is not compared with AutoTokenizer's: transformers is not installed"


def compare_ids(folder: Path, vocabulary: Vocabulary, family: str) -> str:
    """Compare the ids of TEXTS texts under the AutoTokenizer of the folder, which has config.json and the
    tokenizer's files, with those under this vocabulary; a line for the user. Raises ConfigError where they
    differ.
    """
    try:
        import transformers  # optional, and it takes seconds to load
    except ImportError:
        return NOT_COMPARED
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # of whatever type
        said = printable(" ".join(str(error).split()))
        raise DataError(f"export: AutoTokenizer cannot read the tokenizer ({said})") from None
    version = transformers.__version__
    for text in drawn_texts():
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        if ids != (ours := vocabulary.encode(text)):
            raise ConfigError(
                "export",
                f"AutoTokenizer of transformers {version} cuts {text!r} into {len(ids)} tokens, the model's"
                f" tokenizer into {len(ours)} others: for family {family} it takes {type(theirs).__name__}",
                "give another --family, or train with the tokenizer of a published model of this family",
            )
    return f"ids of {TEXTS} texts are those of AutoTokenizer (transformers {version})"


def drawn_texts() -> Iterator[str]:
    """TEXTS texts, always the same."""
    for number in range(TEXTS):
        dice = random.Random(number)
        words = dice.choices(WORDS, k=dice.randrange(1, 12))
        yield "".join(dice.choice(BLANKS) + word for word in words) + dice.choice(("", "", "\n", " "))
