"""For the part `tiers` of gpu.py: the models that it trains, by whether the device is a CPU, and passes
through a model whose weights are streamed from its files.
"""

import statistics
import time
from pathlib import Path
from typing import Any

import torch

from atelier.engine.config.experts import Experts
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.router.topk import TopK
from atelier.engine.io.artifact import open_input
from atelier.engine.model.load import read_weights
from atelier.engine.tier.ring import outputs_of, read_model_within, ring_of

VOCAB = 32768
ROUTED = Experts(ffn=2816, router=TopK(balance="bias"))  # 1.1 B parameters of experts
MIXTURES: dict[bool, tuple[GPT, dict[str, int]]] = {
    False: (
        GPT(num_layers=8, hidden=1024, num_heads=8, vocab=VOCAB, num_experts=16, experts=ROUTED),
        {"sequence": 2048, "global_batch": 32, "micro_batch": 16},
    ),
    True: (
        GPT(
            num_layers=2, hidden=32, num_heads=2, vocab=512, num_experts=4,
            experts=ROUTED.model_copy(update={"ffn": 64}),
        ),
        {"sequence": 16, "global_batch": 4, "micro_batch": 2},
    ),
}  # fmt: skip


@torch.inference_mode()
def passes(url: str, scratch: Path, batch: dict[str, int], device: torch.device) -> dict[str, dict[str, Any]]:
    """A pass of one batch with all weights on the device, and with two thirds of them resident and the
    rest streamed.
    """
    source = open_input(url)
    _, spec = read_weights(source, scratch)
    tokens_BT = torch.arange(batch["sequence"]).expand(batch["micro_batch"], -1) % spec.tokens
    on_host = {
        "tokens_BT": tokens_BT,
        "positions_BT": torch.arange(batch["sequence"]).expand_as(tokens_BT),
        "documents_BT": torch.zeros_like(tokens_BT),
    }
    given = {name: each.to(device) for name, each in on_host.items()}

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    size, found, results = 4 * spec.num_params(), {}, {}
    for case, memory in {"resident": 0, "streamed": int(0.67 * size)}.items():
        one, _ = read_model_within(source, scratch, memory, device=device, dtype=torch.float32)
        seconds = []
        for _ in range(5):
            wait()
            begin = time.perf_counter()
            [output] = outputs_of(one.eval(), [given])
            wait()
            seconds.append(time.perf_counter() - begin)
        results[case] = output.hidden
        ring = ring_of(one)
        found[case] = {
            "ms": round(1e3 * statistics.median(seconds[1:]), 2),
            "bits of resident": torch.equal(results[case], results["resident"]),
            "read_gb a pass": round(ring.bytes_read / len(seconds) / 1e9, 4) if ring is not None else 0,
        }
        del one, ring
    return found
