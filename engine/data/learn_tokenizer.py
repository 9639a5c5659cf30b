"""The task `learn_tokenizer`: train a byte-level BPE on the training split of one or more corpora, or check a
given tokenizer.json.
"""

from collections.abc import Iterator
from pathlib import Path

import fsspec
from tokenizers import Tokenizer as Encoder
from tokenizers import decoders, models, pre_tokenizers, trainers

from atelier.engine.config.base import Json
from atelier.engine.config.data import END, PAD, Tokenizer
from atelier.engine.config.error import ConfigError
from atelier.engine.data.corpus import TRAIN, corpus_lines
from atelier.engine.data.source import Files, SourceReader
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.process import Progress

TOKENIZER = "tokenizer.json"
MEASURED = 1 << 20  # bytes of held-out text by which bytes_per_token is measured


def learn_tokenizer(
    spec: Tokenizer,
    corpora: list[ArtifactInput],
    files: Files,
    output: ArtifactOutput,
    scratch: Path,
    progress: Progress,
) -> dict[str, Json]:
    """Write tokenizer.json: the same bytes from the same training text, whatever the threads. Returns the
    summary.

    With `spec.load` the given file is written unchanged. `files` is its (path, content id), or empty when it
    need not be checked. Raises ConfigError when that file cannot be read or there is no corpus.
    """
    data = _given(spec.load, files, progress) if spec.load else _learned(spec, corpora, scratch, progress)
    vocabulary = Vocabulary.parse(data, spec.load or TOKENIZER)
    for name in spec.specials:
        vocabulary.special(name)
    output.add_bytes(TOKENIZER, data)
    measured = _bytes_per_token(vocabulary, corpora, scratch)
    summary: dict[str, Json] = {"vocab": vocabulary.size, "end": vocabulary.end_id}
    return summary | ({"bytes_per_token": measured} if measured else {})


def _given(url: str, files: Files, progress: Progress) -> bytes:
    if files:
        return SourceReader(on_error="stop", place="tokenizer", progress=progress).whole(*files[0])
    try:
        system, path = fsspec.core.url_to_fs(url)
        return system.cat_file(path)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(
            "tokenizer.load", f"{url} cannot be read ({error})", "give the path or URL of a tokenizer.json"
        ) from None


def _learned(spec: Tokenizer, corpora: list[ArtifactInput], scratch: Path, progress: Progress) -> bytes:
    if not corpora:
        raise ConfigError(
            "tokenizer",
            "has neither a corpus to learn from nor a file to load",
            "give tokenizer.load=<tokenizer.json>",
        )
    tokenizer = Encoder(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab,
        special_tokens=[END, PAD, *spec.specials],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_texts(corpora, scratch, progress), trainer)
    return (tokenizer.to_str(pretty=True) + "\n").encode()


def _training_texts(corpora: list[ArtifactInput], scratch: Path, progress: Progress) -> Iterator[str]:
    progress.start(sum(int(c.record.summary.get("documents", 0)) for c in corpora), "documents")
    for corpus in corpora:
        for line in corpus_lines(corpus, scratch):
            progress.advance(1)
            if line["split"] == TRAIN:
                yield line["text"]


def _bytes_per_token(vocabulary: Vocabulary, corpora: list[ArtifactInput], scratch: Path) -> float:
    """UTF-8 bytes per token of held-out text, measured on its beginning; 0 without a corpus."""
    size = tokens = 0
    for corpus in corpora:
        for line in corpus_lines(corpus, scratch):
            if line["split"] != TRAIN and size < MEASURED:
                size += len(line["text"].encode())
                tokens += len(vocabulary.encode(line["text"]))
    return round(size / tokens, 4) if tokens else 0.0
