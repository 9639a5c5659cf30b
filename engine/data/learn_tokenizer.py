"""The task `learn_tokenizer`: train a byte-level BPE on the training split of corpora, or check a given
tokenizer.json.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer as Encoder
from tokenizers import decoders, models, pre_tokenizers, trainers

from atelier.engine.config.base import Json, parse
from atelier.engine.config.data import END, PAD, TEXT_ENDS, AdoptedEnds, TextEnds, Tokenizer
from atelier.engine.config.error import ConfigError
from atelier.engine.data.corpus import TRAIN, corpus_lines
from atelier.engine.data.extend_tokenizer import change_of, extended, trainer, untaught
from atelier.engine.data.source import Files
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.data.tokenizer_check import check_tokenizer
from atelier.engine.data.vocabulary import TOKENIZER, Vocabulary
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.process import Progress
from atelier.engine.io.remote import ask, open_system
from atelier.engine.io.source_files import total_bytes

MEASURED = 1 << 20  # bytes of held-out text for measuring bytes_per_token
LONGEST_PIECE = 1024  # bytes: learning time is quadratic in a piece; source code and prose have up to 100
_LONG = re.compile(
    rf"\S{{{LONGEST_PIECE // 4},}}|\s{{{LONGEST_PIECE // 4},}}"
)  # a character has at most 4 bytes


class TrainingTexts:
    """The training documents of corpora, for learning a tokenizer. Pieces (words, runs of blanks) longer than
    LONGEST_PIECE are learned in parts; `cut_pieces` counts them.
    """

    def __init__(self, corpora: list[ArtifactInput], scratch: Path, progress: Progress) -> None:
        self.corpora, self._scratch, self._progress = corpora, scratch, progress
        self.cut_pieces = 0

    def teach(self, tokenizer: Encoder, trainer: trainers.BpeTrainer) -> None:
        """Train a tokenizer; its own pre-tokenizer does not change."""
        own = tokenizer.pre_tokenizer
        short = pre_tokenizers.FixedLength(length=LONGEST_PIECE)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([own, short])
        tokenizer.train_from_iterator(self._texts(own), trainer)
        tokenizer.pre_tokenizer = own
        if self.cut_pieces:
            self._progress.warn(
                f"{self.cut_pieces} word(s) or runs of blanks have more than {LONGEST_PIECE} bytes; the"
                " tokenizer learns from parts of that length"
            )

    def _texts(self, own: pre_tokenizers.PreTokenizer) -> Iterator[str]:
        self._progress.start(
            sum(int(c.record.summary.get("documents", 0)) for c in self.corpora), "documents"
        )
        keeps_blanks = len(own.pre_tokenize_str("a b")) < 2  # pieces may be whole texts
        for corpus in self.corpora:
            for line in corpus_lines(corpus, self._scratch):
                self._progress.advance(1)
                if line["split"] == TRAIN:
                    long = (
                        [line["text"]] if keeps_blanks else [each[0] for each in _LONG.finditer(line["text"])]
                    )
                    pieces = (piece for each in long for piece, _ in own.pre_tokenize_str(each))
                    self.cut_pieces += sum(len(piece) > LONGEST_PIECE for piece in pieces)
                    yield line["text"]


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
    """Write tokenizer.json: equal training text gives equal bytes, with any number of threads. Returns the
    summary.

    With `spec.load` the given file is written unchanged; `texts`, from its model, says how texts begin and
    end; `files` is its (path, content id), or empty without check. `extends`: the tokenizer to extend; the
    summary compares the held-out tokens of `before` under both. Raises ConfigError if that file cannot be
    read or there is no corpus.
    """
    old = None if extends is None else Vocabulary.of(extends, scratch)
    texts_read = TrainingTexts(corpora, scratch, progress)
    if spec.load:
        data = _given(spec.load, files, progress)
    elif extends is not None:
        data = _extended(spec, extends, texts_read, scratch)
    else:
        data = _learned(spec, texts_read)
    around = check_tokenizer(data, spec.load, texts) if spec.load else None
    vocabulary = Vocabulary.parse(data, spec.load or TOKENIZER, around)
    if extends is not None and TEXT_ENDS in extends.names():  # texts begin and end as before
        around = parse(TextEnds, extends.json(TEXT_ENDS, scratch), TEXT_ENDS)
        vocabulary = Vocabulary.parse(data, TOKENIZER, around)
    output.add_bytes(TOKENIZER, data)
    if around is not None:
        output.add_json(TEXT_ENDS, around.told())
    measured = _bytes_per_token(vocabulary, corpora, scratch)
    summary: dict[str, Json] = {"vocab": vocabulary.size, "end": vocabulary.end_id}
    if texts_read.cut_pieces:
        summary["cut_pieces"] = texts_read.cut_pieces
    if old is not None:
        summary["tokens_added"] = vocabulary.size - old.size
        change = change_of(old, vocabulary, _held_out_texts(before or [], scratch))
        summary["cut_before"] = {name: value for name, value in change._asdict().items() if change.documents}
    return summary | ({"bytes_per_token": measured} if measured else {})


def _given(url: str, files: Files, progress: Progress) -> bytes:
    if files:
        progress.start(total_bytes(files), "bytes")
        return SourceReader(on_error="stop", place="tokenizer", progress=progress).whole(*files[0])
    try:
        system, path = open_system(url)
        return ask(system, "cat_file", path)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(
            "tokenizer.load", f"{url} cannot be read ({error})", "give the path or URL of a tokenizer.json"
        ) from None


def _learned(spec: Tokenizer, texts: TrainingTexts) -> bytes:
    if not texts.corpora:
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
    texts.teach(tokenizer, trainer)
    return (tokenizer.to_str(pretty=True) + "\n").encode()


def _extended(spec: Tokenizer, extends: ArtifactInput, texts: TrainingTexts, scratch: Path) -> bytes:
    place = "tokenizer.extend"
    old = extends.file(TOKENIZER, scratch).read_bytes()
    fresh = untaught(old, place)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    texts.teach(fresh, trainer(spec.vocab, alphabet))
    return extended(old, fresh.to_str().encode(), spec.specials, spec.vocab, place)


def _held_out_texts(corpora: list[ArtifactInput], scratch: Path) -> list[str]:
    """The first held-out documents, up to MEASURED bytes."""
    found, size = [], 0
    for corpus in corpora:
        for line in corpus_lines(corpus, scratch):
            if line["split"] != TRAIN and size < MEASURED:
                size += len(line["text"].encode())
                found.append(line["text"])
    return found


def _bytes_per_token(vocabulary: Vocabulary, corpora: list[ArtifactInput], scratch: Path) -> float:
    """UTF-8 bytes per token of the first held-out text; 0 without a corpus."""
    size = tokens = 0
    for corpus in corpora:
        for line in corpus_lines(corpus, scratch):
            if line["split"] != TRAIN and size < MEASURED:
                size += len(line["text"].encode())
                tokens += len(vocabulary.encode(line["text"]))
    return round(size / tokens, 4) if tokens else 0.0
