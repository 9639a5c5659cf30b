"""The task `learn_tokenizer`: train a byte-level BPE on the training split of one or more corpora, or check a
given tokenizer.json.
"""

from collections.abc import Iterator
from pathlib import Path

import fsspec
from tokenizers import Tokenizer as Encoder
from tokenizers import decoders, models, pre_tokenizers, trainers

from atelier.engine.config.base import Json, parse
from atelier.engine.config.data import END, PAD, TEXT_ENDS, AdoptedEnds, TextEnds, Tokenizer
from atelier.engine.config.error import ConfigError
from atelier.engine.data.corpus import TRAIN, corpus_lines
from atelier.engine.data.extend_tokenizer import change_of, extended, trainer, untaught
from atelier.engine.data.source import Files
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.data.vocabulary import TOKENIZER, Vocabulary, named_end, tokenizer_of
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.process import Progress
from atelier.engine.io.source_files import total_bytes

MEASURED = 1 << 20  # bytes of held-out text by which bytes_per_token is measured


def learn_tokenizer(
    spec: Tokenizer,
    corpora: list[ArtifactInput],
    files: Files,
    output: ArtifactOutput,
    scratch: Path,
    progress: Progress,
    texts: AdoptedEnds | None = None,
    extends: ArtifactInput | None = None,
    before: list[ArtifactInput] | None = None,
) -> dict[str, Json]:
    """Write tokenizer.json: the same bytes from the same training text, whatever the threads. Returns the
    summary.

    With `spec.load` the given file is written unchanged, and `texts`, of the model that it came with, say
    how texts begin and end. `files` is its (path, content id), or empty when it need not be checked.
    `extends`: the tokenizer that this one begins with; the summary says how the held-out text of `before` is
    cut by both. Raises ConfigError when that file cannot be read or there is no corpus.
    """
    old = None if extends is None else Vocabulary.of(extends, scratch)
    if spec.load:
        data = _given(spec.load, files, progress)
    elif extends is not None:
        data = _extended(spec, extends, corpora, scratch, progress)
    else:
        data = _learned(spec, corpora, scratch, progress)
    around = None if texts is None else text_ends(texts, tokenizer_of(data, spec.load), spec.load)
    vocabulary = Vocabulary.parse(data, spec.load or TOKENIZER, around)
    if extends is not None and TEXT_ENDS in extends.names():  # its texts begin and end as they did
        around = parse(TextEnds, extends.json(TEXT_ENDS, scratch), TEXT_ENDS)
        vocabulary = Vocabulary.parse(data, TOKENIZER, around)
    output.add_bytes(TOKENIZER, data)
    if around is not None:
        output.add_json(TEXT_ENDS, around.model_dump(mode="json"))
    measured = _bytes_per_token(vocabulary, corpora, scratch)
    summary: dict[str, Json] = {"vocab": vocabulary.size, "end": vocabulary.end_id}
    if old is not None:
        summary["tokens_added"] = vocabulary.size - old.size
        change = change_of(old, vocabulary, _held_out_texts(before or [], scratch))
        summary["cut_before"] = {name: value for name, value in change._asdict().items() if change.documents}
    return summary | ({"bytes_per_token": measured} if measured else {})


def text_ends(texts: AdoptedEnds, tokenizer: Encoder, place: str) -> TextEnds:
    """How texts begin and end with an adopted tokenizer: documents end with the token that is named so, where
    it is one of the ends. Raises ConfigError for ids and names that the tokenizer lacks.
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
        raise ConfigError(
            f"{place}: eos_token_id", "no token ends texts: a text would have no end", f"add {END} as one"
        )
    if texts.begin is None:
        return TextEnds(begin=_added_before(tokenizer, place), ends=ends)
    begin = tokenizer.token_to_id(texts.begin) if texts.begin else None
    if texts.begin and begin is None:
        raise ConfigError(f"{place}: bos_token", f"{texts.begin!r}, which the tokenizer lacks", "its own")
    return TextEnds(begin=begin, ends=ends)


def _added_before(tokenizer: Encoder, place: str) -> int | None:
    """The token that the tokenizer itself puts before a text."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    plain, whole = (tokenizer.encode("a", add_special_tokens=added).ids for added in (False, True))
    places = (n for n in range(len(whole) - len(plain) + 1) if whole[n : n + len(plain)] == plain)
    before = whole[: next(places, 0)] if plain else []
    if len(before) > 1:
        raise ConfigError(place, f"puts {len(before)} tokens before every text", "one, or none")
    return before[0] if before else None


def _given(url: str, files: Files, progress: Progress) -> bytes:
    if files:
        progress.start(total_bytes(files), "bytes")
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


def _extended(
    spec: Tokenizer, extends: ArtifactInput, corpora: list[ArtifactInput], scratch: Path, progress: Progress
) -> bytes:
    place = "tokenizer.extend"
    old = extends.file(TOKENIZER, scratch).read_bytes()
    fresh = untaught(old, place)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fresh.train_from_iterator(_training_texts(corpora, scratch, progress), trainer(spec.vocab, alphabet))
    return extended(old, fresh.to_str().encode(), spec.specials, spec.vocab, place)


def _held_out_texts(corpora: list[ArtifactInput], scratch: Path) -> list[str]:
    """The first held-out documents, MEASURED bytes of them."""
    found, size = [], 0
    for corpus in corpora:
        for line in corpus_lines(corpus, scratch):
            if line["split"] != TRAIN and size < MEASURED:
                size += len(line["text"].encode())
                found.append(line["text"])
    return found


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
