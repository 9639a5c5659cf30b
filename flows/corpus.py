"""corpus: text from its sources to tokens that a training can read.

atelier corpus data.source='texts/*.jsonl' data.field=text
"""

from dataclasses import dataclass

from engine.spec.data import Data, Tokenizer
from infra.dag import Reference
from tasks.curate import curate
from tasks.encode import encode
from tasks.learn_tokenizer import learn_tokenizer


@dataclass(frozen=True)
class Text:
    """Tokens of every source with their shares, and the tokenizer that made them."""

    tokens: dict[str, Reference]
    weights: dict[str, float]
    tokenizer: Reference


def corpus(data: Data, tokenizer: Tokenizer) -> Text:
    sources = data.sources()
    corpora = {name: curate(name, source, data) for name, source in sources.items()}
    vocabulary = learn_tokenizer(corpora, tokenizer)
    tokens = {name: encode(name, corpora[name], vocabulary) for name in sources}
    return Text(
        tokens=tokens, weights={name: source.weight for name, source in sources.items()}, tokenizer=vocabulary
    )
