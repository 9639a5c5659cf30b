"""State of a role's outer steps (outer.py)."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atelier.engine.checkpoint.state import Nested, Tree
from atelier.engine.config.base import Json
from atelier.engine.config.conversions import OPTIMIZER
from atelier.engine.config.error import ConfigError
from atelier.engine.extensions.sites.config.train.link import Link
from atelier.engine.extensions.sites.round_log import FILE, RoundLog
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.loop.attachments import Attachment
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.weights import RoleWeights


@dataclass
class OuterState(Attachment):
    """State of a role's outer steps on this rank: weights after the last one (`anchor`), momentum, residual,
    and weights when it last sent (`sent`). `added`: digests of the contributions added last, by site;
    `pending`: `added` when each round in flight was sent.
    """

    name = "outer"

    anchor: dict[str, Tensor] = field(default_factory=dict)
    momentum: dict[str, Tensor] = field(default_factory=dict)
    residual: dict[str, Tensor] = field(default_factory=dict)
    sent: dict[str, Tensor] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)
    pending: dict[int, dict[str, str]] = field(default_factory=dict)
    log: RoundLog = field(default_factory=RoundLog)  # used if codecs are chosen, or membership is elastic
    kept: dict[str, Tree] = field(default_factory=dict)  # elastic membership: RoleState.learned
    tokens: dict[str, int] = field(default_factory=dict)  # that other sites have learned from, by site
    passed: int = 0  # the last round in which this site skipped steps
    begun: Mapping[str, str] = field(default_factory=dict)  # `added` at the first step
    teachers: tuple[str, ...] = ()  # digests of teachers that are finished models

    @staticmethod
    def of(link: Link, weights: RoleWeights, teachers: Iterable[ArtifactInput] = ()) -> "OuterState":
        """State at the first step of a role with these finished teachers. Raises ConfigError if the model has
        buffers.
        """
        if weights.buffers():
            names = ", ".join(list(weights.buffers())[:3])
            raise ConfigError("train.link", f"the model's {names} are buffers; sites exchange only weights")
        live = {name: weight.detach() for name, weight in weights.trainable().items()}

        def zeros(*, is_used: bool) -> dict[str, Tensor]:
            return {name: torch.zeros_like(weight) for name, weight in live.items()} if is_used else {}

        return OuterState(
            anchor={name: weight.clone() for name, weight in live.items()},
            momentum=zeros(is_used=link.outer.kind == "nesterov"),
            residual=zeros(is_used=link.feeds_back),
            sent=zeros(is_used=link.delay > 0),
            teachers=tuple(map(_digest, teachers)),
        )

    def begin(self, weights: str, link: Link) -> None:
        """Store the digest of all `weights` at the first step. Sites exchange only deltas, so all must begin
        with equal bits. Equal seeds and fingerprints are not enough: two kinds of CPUs draw other numbers,
        and a model that was trained in another layout has other bits.
        """
        text = "".join([weights, *self.teachers])
        self.begun = {min(link.rows): hashlib.sha256(text.encode()).hexdigest()}
        self.added = dict(self.begun)

    def state(self) -> dict[str, Tree]:
        return {
            "anchor": {**self.anchor},
            "momentum": {**self.momentum},
            "residual": {**self.residual},
            "sent": {**self.sent},
            "added": {**self.added},
            "pending": {number: {**added} for number, added in self.pending.items()},
            "log": {**self.log.lines},
            "kept": {**self.kept},
            "tokens": {**self.tokens},
            "passed": self.passed,
        }

    def restore(self, state: Nested, step: int) -> None:
        """As in Attachment."""
        self.added = dict(state["added"])
        self.pending = dict(state.get("pending", {}))
        self.log = RoundLog(dict(state.get("log", {})))
        self.kept = dict(state.get("kept", {}))
        self.tokens = dict(state.get("tokens", {}))
        self.passed = state.get("passed", 0)

    def summary(self, steps: int) -> dict[str, Json]:
        """The digest of the round log, and how many samples each site has learned."""
        learned = self.log.learned() if self.log.lines else {}
        found: dict[str, Json] = {"rounds": self.log.digest} if self.log.lines else {}
        return found | ({"learned_samples": {**learned}} if learned else {})

    def files(self) -> dict[str, bytes]:
        """The round log."""
        return {FILE: self.log.text} if self.log.lines else {}

    @property
    def tokens_elsewhere(self) -> int:
        """Up to the last outer step."""
        return sum(self.tokens.values())


def takes_part(member: RoleState) -> bool:
    """Whether a role takes outer steps."""
    return OuterState.name in member.attached


def outer_of(member: RoleState) -> OuterState:
    """The state of a role that takes outer steps."""
    found = member.attached[OuterState.name]
    assert isinstance(found, OuterState)
    return found


def _digest(model: ArtifactInput) -> str:
    """One digest of all files of a model's weights."""
    digests = [
        entry.sha256
        for name, entry in zip(model.names(), model.record.files, strict=True)
        if name.endswith(".safetensors") and name != OPTIMIZER  # states of optimisers stay at their site
    ]
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()
