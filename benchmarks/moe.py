"""Forward and backward time of one mixture-of-experts layer, beside transformers' block in each of its ways
and a loop over experts that gathers and adds: 8, 64 and 256 experts, evenly and unevenly loaded.

pip install --no-deps --target PEERS transformers ...; python benchmarks/moe.py --peers PEERS

All ways have the same weights, tokens and choices; results are compared before anything is timed. The order
of the ways rotates. Numbers are medians of seconds, and of CPU seconds of all threads.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

import torch
from machine import keep
from torch import Tensor, nn

from atelier.engine.config.experts import Experts
from atelier.engine.config.model.gpt import GPT
from atelier.engine.io.machine import num_cores
from atelier.engine.model.expert_mlp import mlp
from atelier.engine.model.moe import MoE
from atelier.engine.parallel.gang import keep_freed_memory

Layer = Callable[[Tensor], Tensor]
CASES = {8: (2, 1024), 64: (4, 256), 256: (8, 128)}  # experts: chosen of a token, inner width
TOKENS, HIDDEN = 2048, 512
DEFAULT = "grouped_mm"  # what transformers takes where nothing is asked
LONG = 30.0  # seconds after which a way is not tried again
MOST_COPIES = 4e9  # bytes of weights, one copy a token and expert


def router_of(mine: MoE) -> Tensor:
    """[X, D]"""
    return cast(Tensor, mine.router.weight).detach()


class Loop(nn.Module):
    """What one writes first: every expert gathers its tokens and adds its results."""

    def __init__(self, mine: MoE, per_token: int) -> None:
        super().__init__()
        self.router, self.per_token = nn.Parameter(router_of(mine).clone()), per_token
        self.experts = [
            tuple(nn.Parameter(weight.detach().clone()) for weight in weights)
            for weights in zip(*mine.experts.weights(), strict=True)
        ]
        for number, weight in enumerate(weight for weights in self.experts for weight in weights):
            self.register_parameter(f"weight{number}", weight)

    def forward(self, x_ND: Tensor) -> Tensor:
        share_NK, chosen_NK = (x_ND @ self.router.T).softmax(-1).topk(self.per_token)
        share_NK = share_NK / share_NK.sum(-1, keepdim=True)
        y_ND = torch.zeros_like(x_ND)
        for number, weights in enumerate(self.experts):
            token_Q, place_Q = (chosen_NK == number).nonzero(as_tuple=True)
            if len(token_Q):
                y_QD = mlp(x_ND[token_Q], weights, "silu") * share_NK[token_Q, place_Q, None]
                y_ND = y_ND.index_add(0, token_Q, y_QD.to(y_ND.dtype))
        return y_ND


def peer(mine: MoE, per_token: int, inner: int, way: str) -> nn.Module:
    from transformers import MixtralConfig  # pyright: ignore[reportMissingImports]  # in --peers
    from transformers.models.mixtral.modeling_mixtral import (  # pyright: ignore[reportMissingImports]
        MixtralSparseMoeBlock,
    )

    config = MixtralConfig(
        hidden_size=HIDDEN, intermediate_size=inner, num_local_experts=mine.num_experts,
        num_experts_per_tok=per_token, experts_implementation=way,  # pyright: ignore[reportCallIssue]
    )  # fmt: skip
    block = MixtralSparseMoeBlock(config)
    gate, up, down = (weight.detach() for weight in mine.experts.weights())
    block.gate.weight.data.copy_(router_of(mine))
    block.experts.gate_up_proj.data.copy_(torch.cat([gate, up], 1))  # pyright: ignore[reportCallIssue]
    block.experts.down_proj.data.copy_(down)  # pyright: ignore[reportCallIssue]
    return block


def layers(number: int, *, has_peers: bool) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """By way; and those that are not tried, with the reason."""
    per_token, inner = CASES[number]
    spec = GPT(
        num_layers=1, hidden=HIDDEN, num_heads=8, num_experts=number, experts_per_token=per_token,
        experts=Experts(ffn=inner),
    )  # fmt: skip
    mine = MoE(spec, 0)
    for weight in mine.parameters():
        nn.init.normal_(weight, std=0.05)
    found: dict[str, nn.Module] = {"atelier": mine, "loop": Loop(mine, per_token)}
    left: dict[str, str] = {}
    for way in ("eager", "grouped_mm", "batched_mm") if has_peers else ():
        copies = 4.0 * TOKENS * per_token * 3 * HIDDEN * inner
        if way == "batched_mm" and copies > MOST_COPIES:
            left[f"transformers {way}"] = f"{copies / 1e9:.0f} GB of copied weights"
        else:
            found[f"transformers {way}"] = peer(mine, per_token, inner, way)
    return found, left


def tokens_for(mine: MoE, *, skew: float) -> Tensor:
    """[1, N, D] tokens that lean to the first experts: the busiest has about a fifth of 64 at skew 1."""
    x_ND = torch.randn(TOKENS, HIDDEN).to(router_of(mine).device)
    if skew:
        router_XD = router_of(mine)
        liked_X = -torch.arange(1, mine.num_experts + 1).float().log() * skew
        x_ND += torch.linalg.lstsq(router_XD, liked_X[:, None]).solution.T
    return x_ND[None]


def passed(layer: nn.Module, x_BTD: Tensor) -> Tensor:
    """Forward and backward; the result."""
    layer.zero_grad(set_to_none=True)
    x_BTD = x_BTD.detach().requires_grad_()
    if isinstance(layer, Loop):
        y_BTD = layer(x_BTD[0])[None]
    else:
        found = layer(x_BTD)
        y_BTD = found.y_BTD if isinstance(layer, MoE) else found
    y_BTD.square().mean().backward()
    return y_BTD.detach()


def timed(
    ways: dict[str, nn.Module], x_BTD: Tensor, rounds: int, wait: Callable[[], None] = lambda: None
) -> dict[str, dict[str, float]]:
    """`wait`: for what the device still computes."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    order = list(ways)
    for _ in range(rounds):
        for name in order:
            if sum(each for each, _ in seconds[name]) > LONG:
                continue
            began, worked = time.perf_counter(), time.process_time()
            passed(ways[name], x_BTD)
            wait()
            seconds[name].append((time.perf_counter() - began, time.process_time() - worked))
        order = order[1:] + order[:1]
    return {
        name: {
            "seconds": round(statistics.median(each for each, _ in found), 4),
            "cpu_seconds": round(statistics.median(each for _, each in found), 4),
            "rounds": len(found),
        }
        for name, found in seconds.items()
    }


def measured(number: int, skew: float, rounds: int, *, has_peers: bool) -> dict[str, Any]:
    torch.manual_seed(number)
    ways, left = layers(number, has_peers=has_peers)
    mine = ways["atelier"]
    assert isinstance(mine, MoE)
    x_BTD = tokens_for(mine, skew=skew)
    expected = passed(mine, x_BTD)
    for name, layer in ways.items():
        distance = float((passed(layer, x_BTD) - expected).abs().max() / expected.abs().max())
        assert distance < 1e-4, f"{name} computes something else: {distance}"
    load_X = mine(x_BTD).load_X
    found: dict[str, Any] = timed(ways, x_BTD, rounds)
    best = min(each["seconds"] for name, each in found.items() if name != "atelier")
    found |= {"busiest": round(float(load_X.max() / load_X.sum()), 3), "unmet": int((load_X == 0).sum())}
    found["best other / atelier"] = round(best / found["atelier"]["seconds"], 3)
    if has_peers:
        usual = found[f"transformers {DEFAULT}"]["seconds"]
        found["transformers' default / atelier"] = round(usual / found["atelier"]["seconds"], 3)
    return found | ({"not tried": left} if left else {})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=Path, help="folder with transformers")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=num_cores())
    parser.add_argument("--experts", type=int, nargs="+", default=list(CASES))
    chosen = parser.parse_args()
    if chosen.peers:
        sys.path.append(str(chosen.peers))
    torch.set_num_threads(chosen.threads)
    keep_freed_memory()  # as in training: for all ways alike
    numbers = {
        f"{number} experts, {name}": measured(number, skew, chosen.rounds, has_peers=bool(chosen.peers))
        for number in chosen.experts
        for name, skew in (("even", 0.0), ("skewed", 1.0))
    }
    about = {"tokens": TOKENS, "hidden": HIDDEN, "threads": chosen.threads, "rounds": chosen.rounds}
    cases = {f"{number}": {"per_token": each[0], "inner": each[1]} for number, each in CASES.items()}
    keep("moe", {**about, "cases": cases, **numbers}, is_trial=not chosen.peers or chosen.rounds < 15)


if __name__ == "__main__":
    main()
