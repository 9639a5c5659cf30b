"""Text generation with a trained model: text in, text out."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from atelier.engine.config.data import CLS
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.generation import GENRES, GenerationAttributes, Sampling
from atelier.engine.config.objective.natural import Natural
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.seed import seed_of
from atelier.engine.config.soft_prompt import SoftPrompt
from atelier.engine.data.control_prompt import Prefix, prefix_of
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.data.words import Sentences
from atelier.engine.inference.models import TextModel
from atelier.engine.inference.sampling import continuation, continuations, room_behind
from atelier.engine.inference.scoring import row_class_logits

TOGETHER = 16  # candidates drawn at once
HEAD = "natural"  # class head of models that rank their samples


class RankedText(NamedTuple):
    """A continuation with its naturalness by the model."""

    text: str
    natural: float  # probability in [0, 1] by the model's class head


class Generator:
    """A model with its tokenizer. `num_tokens` counts the tokens drawn."""

    def __init__(self, model: TextModel, vocabulary: Vocabulary) -> None:
        if isinstance(model, nn.Module):
            model.eval()
        self.model = model
        self.vocabulary = vocabulary
        self.num_tokens = 0

    def stream(self, prompt: str, sampling: Sampling) -> Iterator[str]:
        """The continuation of `prompt`, streamed in whole characters; an empty prompt starts after the token
        that begins texts, or else one that ends them. With best_of > 1 the most natural candidate, once all
        are drawn.
        """
        if sampling.best_of > 1:
            return iter([self.ranked(prompt, sampling)[0].text])
        return self._streamed(self.before(prompt, sampling), sampling, self.vocabulary.ends)

    def ranked(self, prompt: str, sampling: Sampling) -> list[RankedText]:
        """`best_of` continuations, by descending naturalness under the model's adversarial head (self-ranking
        of 2112.12731, section 3.3).

        Raises ConfigError for a model without that head.
        """
        check_judge(self.model, self.vocabulary)
        before, found = self.before(prompt, sampling), []
        seeds = [
            seed_of(sampling.seed, "candidate", n) if n else sampling.seed for n in range(sampling.best_of)
        ]
        most = room_behind(self.model, before.ids, sampling.max_tokens)
        for first in range(0, len(seeds), TOGETHER):
            for ids in self._drawn(before, sampling, seeds[first : first + TOGETHER]):
                text = self.vocabulary.behind(before.ids, ids)
                is_cut = len(before.ids) + len(ids) == most  # the head learned from whole sentences
                read = [*before.ids, *ids]
                whole = self._sentences.whole(read, len(before.ids)) if is_cut else read
                found.append(RankedText(text, self.natural(whole)))
        return sorted(found, key=lambda candidate: -candidate.natural)

    @cached_property
    def _sentences(self) -> Sentences:
        return Sentences(self.vocabulary)

    def natural(self, ids: list[int]) -> float:
        """The probability in [0, 1] that a paragraph is natural, by the class head HEAD."""
        device = self.model.device
        tokens_BT = torch.tensor([[self.vocabulary.special(CLS), *ids]], device=device)
        batch = {
            "tokens_BT": tokens_BT,
            "positions_BT": torch.arange(tokens_BT.shape[1], device=device)[None],
            "documents_BT": torch.zeros_like(tokens_BT),
            "bidirectional_B": torch.ones(1, dtype=torch.long, device=device),
        }
        logits_BC = row_class_logits(self.model, Natural(), batch)
        return float(logits_BC.float().softmax(-1)[0, 1])

    def before(self, prompt: str, sampling: Sampling) -> Prefix:
        """The prefix of the text: the control prompt, if attributes are given, and the prompt."""
        if sampling.wishes.is_empty:
            ids = self._ids(prompt)
            if self.model.spec.reads_encoder:
                return Prefix([self.vocabulary.start_id], [], [*ids, self.vocabulary.end_id])
            return Prefix(ids, [])
        first, number = self._genre(sampling.wishes)
        prefix = prefix_of(sampling.wishes, self.vocabulary, first_prompt=first, num_prompts=number)
        ids = self._ids(prompt) if prompt else []
        return Prefix([*prefix.ids, *ids], [*prefix.prompts, *[-1] * len(ids)])

    def _drawn(self, before: Prefix, sampling: Sampling, seeds: list[int]) -> list[list[int]]:
        """A continuation for each seed, with the same draws as if drawn alone."""
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]

        def draws(_: int) -> Tensor:
            return torch.cat([torch.rand(1, dtype=torch.float64, generator=each) for each in generators])

        ends = self.vocabulary.ends
        rows = continuations(
            self.model,
            [before.ids] * len(seeds),
            length=room_behind(self.model, before.ids, sampling.max_tokens),
            temperatures_B=torch.full((len(seeds),), sampling.temperature, dtype=torch.float64),
            top_p=sampling.top_p,
            draws=draws,
            ends=ends,
            soft=before.soft,
            encoders=None if before.encoder is None else [before.encoder] * len(seeds),
        )
        rows = [[token for token in row if token not in ends] for row in rows]
        self.num_tokens += sum(map(len, rows))
        return rows

    def _genre(self, wishes: GenerationAttributes) -> tuple[int, int]:
        """The first soft prompt of the requested genre, and their number."""
        num_prompts = getattr(self.model, "num_prompts", getattr(self.model.spec, "prompts", 0))
        if not num_prompts:
            raise ConfigError(
                "control prompt",
                "the model was not trained with control prompts (genre, topic ...)",
                "leave them out; the teacher of `atelier titan` learns them with an objective of kind"
                " control (conf/objective/titan.yaml)",
            )
        genres: tuple[str, ...] = getattr(self.model, "genres", getattr(self.model.spec, "genres", GENRES))
        if wishes.genre and wishes.genre not in genres:
            near = nearest(wishes.genre, genres)
            raise ConfigError(
                "genre",
                f"{wishes.genre!r} is none of the model's: {', '.join(genres)}",
                f"did you mean {near}?" if near else "give one of these",
            )
        length = num_prompts // len(genres)
        return (genres.index(wishes.genre) * length, length - 1) if wishes.genre else (0, 0)

    def _ids(self, prompt: str) -> list[int]:
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            fault = f"character {error.start} is half of a surrogate pair, which is not text"
            raise ConfigError("prompt", fault) from None
        before, ids = self.vocabulary.before, self.vocabulary.encode(prompt)
        return self.prompted(ids, before) or [self.vocabulary.end_id]

    def prompted(self, ids: Sequence[int], before: Sequence[int] = ()) -> list[int]:
        """`before` and `ids` with the model's soft prompt, if it has one."""
        spec = getattr(self.model, "spec", None)
        soft = getattr(spec, "soft_prompt", SoftPrompt())
        return soft.put(before, ids, 0 if spec is None else spec.tokens)

    def text(self, prompt: str, sampling: Sampling) -> str:
        """The whole continuation of `prompt`, as `stream` yields it."""
        return "".join(self.stream(prompt, sampling))

    def answer(self, ids: list[int], sampling: Sampling, ends: tuple[int, ...]) -> Iterator[str]:
        """The text after `ids` up to one of `ends`, streamed in whole characters."""
        return self._streamed(Prefix(self.prompted(ids), []), sampling, ends)

    def _streamed(self, before: Prefix, sampling: Sampling, ends: tuple[int, ...]) -> Iterator[str]:
        return self.vocabulary.stream(before.ids, self._counted(before, sampling, ends))

    def _counted(self, before: Prefix, sampling: Sampling, ends: tuple[int, ...]) -> Iterator[int]:
        for token in continuation(self.model, before.ids, sampling, ends, before.soft, before.encoder):
            self.num_tokens += 1
            yield token


def check_judge(model: TextModel, vocabulary: Vocabulary) -> None:
    """Raise ConfigError if a model used for ranking has no head for natural text."""
    if HEAD not in getattr(model, "classes", getattr(model.spec, "classes", {})):
        raise ConfigError(
            "best-of",
            "the model has no head that recognises natural text",
            "train one with objective kind natural, or leave --best-of out",
        )
    vocabulary.special(CLS)


def check_vocabulary(vocabulary: Vocabulary, spec: ModelSpec, place: str) -> None:
    """Raise ConfigError if a model's vocabulary is not the tokenizer's."""
    if vocabulary.size != spec.ids:
        raise ConfigError(
            place,
            f"the model has {spec.ids} tokens, the tokenizer {vocabulary.size}",
            "use the tokenizer that the model was trained with, or train a new model with this one",
        )
