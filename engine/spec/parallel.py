"""The layout of a gang: mesh axes, micro-batch, threads, compile, device. Moves bits but not meaning; never
identity.
"""

from typing import Literal

from pydantic import Field

from engine.spec.base import Count, Spec
from engine.spec.error import ConfigError


class Parallel(Spec):
    replicate: int = Field(default=1, ge=1, description="axis: whole copies of the (sharded) model")
    shard: Count | Literal["auto"] = Field(
        default="auto",
        description="axis: ranks that share weights, gradients and optimiser states; auto = the pool's slots",
    )
    zero: Literal[2, 3] = Field(
        default=3, description="3 = weights gathered again for the backward pass, 2 = kept between"
    )
    compile: Literal["auto", "none", "block"] = Field(
        default="auto", description="torch.compile per block; auto = where a C++ compiler is found"
    )
    threads: Count | Literal["auto"] = Field(
        default="auto", description="CPU threads a rank; auto = cores / ranks"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="auto = cuda where there is one"
    )

    def resolved(self, slots: int, cores: int) -> "Parallel":
        """All `auto` numbers filled in from the pool's slots and the host's cores."""
        shard = max(1, slots // self.replicate) if self.shard == "auto" else self.shard
        ranks = shard * self.replicate
        threads = max(1, cores // ranks) if self.threads == "auto" else self.threads
        return self.model_copy(update={"shard": shard, "threads": threads})

    @property
    def ranks(self) -> int:
        if self.shard == "auto":
            raise ConfigError("parallel.shard", "is auto", "resolve it against a pool first")
        return self.replicate * self.shard

    def check_batch(self, global_batch: int, micro_batch: int | Literal["auto"]) -> None:
        """Refuse a batch that the ranks cannot share evenly."""
        if global_batch % self.ranks:
            fits = max(r for r in range(1, self.ranks + 1) if global_batch % r == 0)
            raise ConfigError(
                "parallel",
                f"replicate {self.replicate} x shard {self.shard} = {self.ranks} does not divide"
                f" train.global_batch {global_batch}",
                f"{fits} ranks would fit",
            )
        each = global_batch // self.ranks
        if micro_batch != "auto" and each % micro_batch:
            fits = max(m for m in range(1, micro_batch + 1) if each % m == 0)
            raise ConfigError(
                "train.micro_batch",
                f"{micro_batch} does not divide the {each} sequences of a rank",
                f"micro_batch={fits} would fit",
            )
