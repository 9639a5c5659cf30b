"""Specs of data: text sources, tokenizer, labelled examples, fine-tuning, scoring."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from atelier.engine.config.annotations import Described, MaskingUnits
from atelier.engine.config.base import Count, Json, Spec
from atelier.engine.config.curation import Curation
from atelier.engine.config.error import nearest, printable
from atelier.engine.config.generated import generated, is_generated
from atelier.engine.config.generation import Written
from atelier.engine.config.mixture import Assignment, Phase, Sharing, sharing_of
from atelier.engine.config.parallel import InferenceLayout
from atelier.engine.config.registry import Optim
from atelier.engine.config.role import Trainable
from atelier.engine.config.taggers import Tagger

END, PAD = "<|end|>", "<|pad|>"  # in every learned tokenizer
STARTS = (PAD, "<pad>")  # padding tokens that a decoder after an encoder may start with
MASK, CLS, SEP = "<|mask|>", "<|cls|>", "<|sep|>"  # used in rows other than windows
BYTES = 256


STDLIB_CHARS, UNCUT = 320, 1 << 30  # limit of a prompt; no limit (characters or tokens)
STDLIB = {"stdlib": "", "stdlib-prose": "prose", "stdlib-code": "code"}  # source -> part of the text


def is_stdlib(source: str) -> bool:
    """Whether it is `stdlib`, `stdlib-prose` or `stdlib-code`, with or without `:<package>,<package>`."""
    return source.partition(":")[0] in STDLIB


def stdlib_part(source: str) -> str:
    """The part of the standard library's text: prose (docstrings, help topics), code (sources without
    docstrings) or '' (all, unchanged).
    """
    return STDLIB[source.partition(":")[0]]


def share_note(held_out: int, all_of_it: int, asked: float, place: str) -> str:
    """A warning about a held-out share far from the requested one; '' if it is near."""
    share = held_out / max(1, all_of_it)
    if asked / 4 <= share <= 2 * asked:
        return ""
    return (
        f"{100 * share:.1f} % is held out where {place} asks for {100 * asked:g} %: the texts are few or"
        " long;"
        " more texts come nearer"
    )


def check_unread(spec: Spec, names: Sequence[str]) -> None:
    """Raise ValueError for a field with another value than its default, which a generated source ignores."""
    for name in names:
        value, usual = getattr(spec, name), type(spec).model_fields[name].default
        if value != usual:
            raise ValueError(f"{name}={value} does nothing with generated text; leave it out")


class Source(Spec):
    source: str = Field(
        default="stdlib",
        min_length=1,
        description=(
            "stdlib (this interpreter's standard library; stdlib-prose: docstrings, stdlib-code: code), or"
            " a path or fsspec glob of .txt, .jsonl, .parquet, .tar or .mo files, .html pages or .warc"
            " archives; languages:svo or languages:sov: a generated language"
        ),
    )
    field: str = Field(
        default="text",
        min_length=1,
        description=".jsonl field or .parquet column with the text; msgid or msgstr of a .mo",
    )
    on_error: Literal["stop", "skip"] = Field(
        default="stop", description="at a broken line: stop, or skip and count it"
    )
    weight: float = Field(
        default=1.0,
        ge=0,
        description="share of the training samples; 0 = none, or only in data.phases. Tokenizers learn"
        " from all sources",
    )
    epochs: float = Field(
        default=0.0,
        ge=0,
        description="passes over its training samples after which it stops; the others keep their ratio."
        " 0 = no cap. Needs data.assignment=exact",
    )

    @property
    def title(self) -> str:
        """A short name: stdlib, or the last part of the path without wildcards, without its extension."""
        if is_stdlib(self.source):
            return self.source.partition(":")[0]
        if is_generated(self.source):
            return generated(self.source, 1).title
        path = re.sub(r"^[\w+.-]+://|[?#].*$", "", self.source) if "://" in self.source else self.source
        plain = [part for part in path.split("/") if part.strip(".") and not set(part) & set("*?[]{}")]
        return printable(plain[-1].partition(".")[0] or plain[-1], 40) if plain else "text"

    @model_validator(mode="after")
    def _is_one_language(self) -> "Source":
        if is_generated(self.source):
            generated(self.source, 1)
            check_unread(self, ("field", "on_error"))
        return self


class Data(Source):
    held_out: float = Field(
        default=0.05, gt=0, lt=0.5, description="share of documents held out, chosen by their hash"
    )
    blend: dict[str, Source] = Field(default={}, description="more sources by name, each with its weight")
    phases: dict[str, Phase] = Field(
        default={}, description="phases by name: new source weights from a step on"
    )
    curation: Curation | None = Field(
        default=None,
        description="filters, removal of copies and of overlaps with evaluation sets; null = none",
    )
    assignment: Assignment = Field(
        default="blocks",
        description="blocks: shares rounded in blocks of 4096 samples; exact: every prefix within one sample"
        " of each share; batches: in every step, the rows of a source together, in the order of their names:"
        " sites that share the rows of a step each read a source of their own",
    )
    written: Written = Field(default=Written(), description="training text written by a finished model")
    taggers: dict[str, Tagger] = Field(
        default={},
        description="how objectives that need triples find them, by name (conf/tagger); empty = in Python"
        " source and English sentences",
    )
    attributes: Described = Field(
        default=Described(), description="how attributes of paragraphs are found or imported"
    )
    units: MaskingUnits = Field(
        default=MaskingUnits(), description="words and names that knowledge masking hides as a whole"
    )

    def sources(self) -> dict[str, Source]:
        """All sources by name; the first is `main`, the others are sorted."""
        own = {name: getattr(self, name) for name in Source.model_fields}
        return {"main": Source(**own), **dict(sorted(self.blend.items()))}

    @property
    def sharing(self) -> Sharing:
        return sharing_of(self.assignment, {name: source.epochs for name, source in self.sources().items()})

    @model_validator(mode="after")
    def _no_second_main(self) -> "Data":
        if "main" in self.blend:
            raise ValueError("blend.main: data.source is called main; give this source another name")
        return self

    @model_validator(mode="after")
    def _curates_sources(self) -> "Data":
        if self.curation is not None:
            self.curation.check_sources([*self.sources()])
        return self

    @model_validator(mode="after")
    def _genres_have_sources(self) -> "Data":
        for source in self.attributes.genre:
            if source not in self.sources():
                near = nearest(source, self.sources())
                way_out = f"did you mean {near}?" if near else f"there are: {', '.join(self.sources())}"
                raise ValueError(f"attributes.genre.{source}: there is no source {source!r}; {way_out}")
        return self

    @model_validator(mode="after")
    def _caps_are_exact(self) -> "Data":
        _ = self.sharing  # raises ValueError
        return self

    @model_validator(mode="after")
    def _phases_have_sources(self) -> "Data":
        weights = {name: source.weight for name, source in self.sources().items()}
        for phase, source in (
            (name, source) for name, each in self.phases.items() for source in each.weights
        ):
            if source not in weights:
                near = nearest(source, weights)
                way_out = f"did you mean {near}?" if near else f"there are: {', '.join(weights)}"
                raise ValueError(f"phases.{phase}.weights.{source}: there is no source {source!r}; {way_out}")
        if not self.weight:
            raise ValueError(
                "weight is 0, but the first step reads data.source; use a source with a weight there"
            )
        return self


class Tokenizer(Spec):
    kind: Literal["bpe"] = "bpe"
    vocab: int = Field(
        default=4096, ge=300, le=1_000_000, description="size of a byte-level BPE vocabulary, 300 or more"
    )
    load: str = Field(default="", description="a tokenizer.json to use instead of learning one; path or URL")
    model: str = Field(
        default="", description="finished model whose tokenizer is used instead of learning one"
    )
    extend: str = Field(
        default="",
        description="finished model whose tokenizer is extended by tokens learned on this text; its ids stay",
    )
    specials: tuple[str, ...] = Field(
        default=(), description="more special tokens, never produced from text: <|mask|>, <|cls|>, <|sep|>"
    )

    @model_validator(mode="after")
    def _check(self) -> "Tokenizer":
        given = [name for name in ("load", "model", "extend") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"tokenizer.{' and tokenizer.'.join(given)} exclude each other; leave one out")
        names = (END, PAD, *self.specials)
        if len(set(names)) < len(names) or not all(names):
            raise ValueError(
                f"tokenizer.specials: {list(self.specials)} holds a name twice, {END}, {PAD} or ''"
            )
        if self.vocab < BYTES + len(names):
            raise ValueError(
                f"tokenizer.vocab={self.vocab} has no room for {BYTES} bytes and {len(names)} special tokens;"
                f" give {BYTES + len(names)} or more"
            )
        return self


TEXT_ENDS = "text_ends.json"  # a TextEnds beside a tokenizer


class _Started(Spec):
    start: int | None = Field(
        default=None,
        description="first id that a decoder after an encoder reads; empty = the padding token among"
        f" {', '.join(STARTS)}, else the id that ends documents",
    )

    def told(self) -> dict[str, Json]:
        """As JSON, without `start` if it is not given."""
        return self.model_dump(mode="json", exclude={"start"} if self.start is None else None)


class TextEnds(_Started):
    """Ids that begin and end the texts of a model."""

    begin: int | None = Field(default=None, description="id before every text; empty = none")
    ends: tuple[int, ...] = Field(
        min_length=1, description="ids that end a text; documents end with the first"
    )


class AdoptedEnds(_Started):
    """How texts begin and end by a checkpoint's configuration files. `begin`: name of the token before texts;
    '' = none, None = the one that tokenizer.json adds.
    """

    begin: str | None = None
    ends: tuple[int, ...] = ()


class Labels(Spec):
    """Labelled examples: a prompt and a completion, which is one of a few options, or free text."""

    source: str = Field(
        default="stdlib",
        min_length=1,
        description="stdlib, or a path or glob of .jsonl, .parquet or .tar files; .mo with prompt=msgid or"
        " msgstr and completion=catalogue (the message's file); languages:svo or languages:sov: pairs of"
        " sentences of a generated language, and whether the second follows from the first",
    )
    task: Literal["keyword", "package", "kind", "name"] = Field(
        default="package",
        description=(
            "stdlib: predict the next statement's keyword, a docstring's package, or its kind (of a"
            " module, class, method or function); or write the words of a documented function's name"
        ),
    )
    free: bool = Field(
        default=False,
        description="completions are free text, which a model writes (greedily), not options that it"
        " compares; task=name has only these",
    )
    prompt: str = Field(default="prompt", description="field of the prompt; `text` is tried next")
    completion: str = Field(
        default="completion", description="field of the completion; `label` is tried next"
    )
    on_error: Literal["stop", "skip"] = Field(
        default="stop", description="at a broken line: stop, or skip and count it"
    )
    held_out: float = Field(
        default=0.3,
        gt=0,
        lt=0.9,
        description="share of test examples, chosen by the hash of their file",
    )
    max_chars: Annotated[int, Field(ge=16)] | Literal["auto"] = Field(
        default="auto",
        description=f"prompts are cut to this many characters; auto: stdlib {STDLIB_CHARS}, others uncut",
    )

    @model_validator(mode="after")
    def _is_one_language(self) -> "Labels":
        if is_generated(self.source):
            generated(self.source, 1)
            check_unread(self, ("task", "free", "prompt", "completion", "on_error", "max_chars"))
        return self

    @property
    def is_free(self) -> bool:
        """Whether completions are written, not chosen."""
        return self.free or (is_stdlib(self.source) and self.task == "name")

    @property
    def most_chars(self) -> int:
        """`max_chars`, or the number that auto stands for."""
        if self.max_chars != "auto":
            return self.max_chars
        return STDLIB_CHARS if is_stdlib(self.source) else UNCUT


ExamplesName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="a set of examples")]


class Finetune(Spec):
    labels: Labels = Field(default=Labels(), description="the labelled examples")
    num_labels: int = Field(default=256, ge=2, description="training examples per draw")
    draws: int = Field(
        default=5, ge=1, le=10_000, description="random draws of training examples, one fine-tuning each"
    )
    epochs: int = Field(default=8, ge=1, description="passes over the examples of a draw")
    batch: int = Field(default=16, ge=1, description="examples per step")
    sequence: int = Field(
        default=128, ge=16, description="tokens per example at most; longer prompts are cut on the left"
    )
    optim: Optim = Field(description="optimiser and schedule of the fine-tuning")
    trainable: Trainable = Field(default=Trainable(), description="all weights, or LoRA")
    scratch: bool = Field(default=True, description="also fine-tune the same network from random weights")

    @model_validator(mode="after")
    def _something_moves(self) -> "Finetune":
        if self.trainable.kind == "none":
            raise ValueError("trainable.kind=none moves nothing: there is nothing to tune")
        return self

    @property
    def num_steps(self) -> int:
        """Optimiser steps of one draw."""
        return max(1, self.epochs * self.num_labels // self.batch)


class Transfer(Finetune):
    """Fine-tuning on examples, with scores on other ones too."""

    also: dict[ExamplesName, Labels] = Field(
        default={}, description="more examples to score on, by name; their options must be those of `labels`"
    )


class Score(InferenceLayout):
    max_tokens: int = Field(default=200_000, ge=256, description="held-out tokens to score")
    max_examples: int = Field(default=600, ge=2, description="test examples to score")
    sequence: Count | Literal["auto"] = Field(
        default="auto", description="context in tokens; auto = as in training"
    )
    shots: int = Field(
        default=4, ge=1, description="solved examples before each question, for models without fine-tuning"
    )
    baselines: bool = Field(default=True, description="also score gzip -9, xz and an interpolated trigram")
    rows: int = Field(
        default=400, ge=0, description="held-out rows for scoring each classification head; 0 = none"
    )
    controls: bool = Field(
        default=True,
        description="also train each student without teacher, from the same seed, for comparison",
    )
    memory_gb: float = Field(
        default=0.0,
        ge=0,
        description="limit of model weights in memory, GB; 0 = no limit. Scores do not change",
        json_schema_extra={"layout": True},
    )
    precision: Literal["float32", "bf16"] = Field(default="float32", description="of weights and arithmetic")
    sample: str = Field(
        default="def ",
        description="prompt of the sample text; empty = the first words of the held-out text, the default"
        " for text other than the standard library",
    )
