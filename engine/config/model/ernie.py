"""ERNIE: universal decoder blocks with two task nets on top, for understanding (NLU, bidirectional rows) and
generation (NLG, causal rows); ERNIE 3.0 (2107.02137, section 3.2) and ERNIE 3.0 Titan (2112.12731, section
3.1). The papers do not say how a net joins the universal states; here its output is added to them, and a norm
follows.

D hidden, V vocab, C classes, W width of a comparison, R prompts
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from atelier.engine.config.base import Count, Spec
from atelier.engine.config.blocks import Auto, MLPKind, check_heads
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.generation import GENRES
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.registry import Limit

NETS = ("nlu", "nlg")
SIDES = ("end", "begin")  # tokens of a segment that a pair head compares
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]


class Net(Spec):
    """The blocks of one task net, with a projection from the universal width and one back; the output is
    added to the universal states.
    """

    num_layers: int = Field(
        default=0, ge=0, le=1000, description="blocks; 0 = no net, only a norm of the universal states"
    )
    hidden: Count | Auto = Field(default="auto", description="width; auto = as universal")
    num_heads: Count | Auto = Field(default="auto", description="heads; auto = as universal")
    ffn: Count | Auto = Field(default="auto", description="inner width of the MLP; auto = from hidden")


class Ernie(MixedBlocks):
    inputs: ClassVar[tuple[str, ...]] = ("bidirectional_B", "prompts_BT")

    kind: Literal["ernie"] = "ernie"
    mlp: MLPKind = Field(default="gelu", description="as in gpt")
    norm: Literal["rms", "layer"] = Field(default="layer", description="rms or layer")
    nlu: Net = Field(default=Net(), description="net for bidirectional rows")
    nlg: Net = Field(default=Net(), description="net for causal rows")
    classes: dict[Name, Count] = Field(
        default_factory=dict, description="heads on a row's first token, by name: number of classes"
    )
    pairs: dict[Name, Count] = Field(
        default_factory=dict,
        description="heads that compare a row's segments, by name: width of the comparison",
    )
    prompts: int = Field(default=0, ge=0, description="R, rows of the soft-prompt table; 0 = none")
    genres: tuple[str, ...] = Field(
        default=GENRES, min_length=1, description="genres, which share the soft prompts equally"
    )

    @model_validator(mode="after")
    def _nets_divide(self) -> Self:
        for name in NETS:
            check_heads(self._hidden_of(name), self._heads_of(name), place=f"{name}.")
        return self

    @property
    def version(self) -> int:
        """2 with a task net: its output is added to the universal states and a norm follows; in version 1 it
        replaced them. Also 2 with experts.
        """
        return 2 if any(getattr(self, name).num_layers for name in NETS) else super().version

    @property
    def universal(self) -> GPT:
        """The universal blocks as a spec."""
        shared = self.model_dump(include=set(MixedBlocks.model_fields) - {"kind"})
        return GPT.model_validate(shared)

    def net(self, name: str) -> GPT | None:
        """The blocks of one task net as a spec; None if it has none."""
        net: Net = getattr(self, name)
        if not net.num_layers:
            return None
        own = {"num_layers": net.num_layers, "num_kv_heads": "auto", "ffn": net.ffn, "num_experts": 0}
        widths = {"hidden": self._hidden_of(name), "num_heads": self._heads_of(name)}
        return GPT.model_validate(self.universal.model_dump() | own | widths)

    def _hidden_of(self, name: str) -> int:
        hidden = getattr(self, name).hidden
        return self.hidden if hidden == "auto" else hidden

    def _heads_of(self, name: str) -> int:
        num_heads = getattr(self, name).num_heads
        return self.num_heads if num_heads == "auto" else num_heads

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every weight in the plain module; the embedding is also the head."""
        D = self.hidden
        whole = self.universal.shapes()
        norm = {name: shape for name, shape in whole.items() if name.startswith("norm.")}
        result = {name: shape for name, shape in whole.items() if name not in norm}
        for name in NETS:
            result |= {f"{name}.{weight}": shape for weight, shape in norm.items()}
            result |= {f"{name}.{weight}": shape for weight, shape in self._inside(name).items()}
        result |= {f"classes.{name}.weight": (number, D) for name, number in self.classes.items()}
        for name, width in self.pairs.items():
            result |= {f"pairs.{name}.{side}.weight": (width, D) for side in SIDES}
        if self.prompts:
            result["prompts.weight"] = (self.prompts, D)
        return result

    def _inside(self, name: str) -> dict[str, tuple[int, ...]]:
        """The weights of a task net except its last norm; none if it has no blocks."""
        net = self.net(name)
        if net is None:
            return {}
        found: dict[str, tuple[int, ...]] = {
            "enter.weight": (net.hidden, self.hidden),
            "leave.weight": (self.hidden, net.hidden),
        }
        for weight, shape in net.shapes().items():
            if weight.startswith("norm."):
                found[f"norm_inside.{weight.removeprefix('norm.')}"] = shape
            elif weight != "embed.weight":
                found[weight] = shape
        return found

    def block_flops(self, sequence: int) -> list[float]:
        """FLOPs of one token in each universal block; the last entry is the head with the more expensive task
        net, because a row passes one net. Class heads read one token per row and are not counted.
        """
        *blocks, head = self.universal.block_flops(sequence)
        return [*blocks, max(self._net_flops(name, sequence) for name in NETS) + head]

    def _net_flops(self, name: str, sequence: int) -> float:
        net = self.net(name)
        if net is None:
            return 0.0
        return sum(net.block_flops(sequence)[:-1]) + 6.0 * 2 * self.hidden * net.hidden

    def limits(self) -> list[Limit]:
        """As for the universal blocks; tensor also splits heads and MLPs of the task nets."""
        found = self.universal.limits()
        for name in NETS:
            net = self.net(name)
            if net is not None:
                found.append(Limit("tensor", f"{name}.num_heads", net.num_heads))
                found.append(Limit("tensor", f"{name}.ffn", net.inner))
        return found
