"""A hand-written PyTorch loop that trains the demo's teacher. Of Atelier it uses only the format of the token
file.

python benchmarks/bare_loop.py <tokens folder> --steps 100 [--compile]      used by benchmarks/peers.py
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

V, L, D, H, G, INNER, T, B = (
    int(os.environ.get("BENCHMARK_VOCAB", "4096")),
    4,
    256,
    4,
    2,
    704,
    256,
    16,
)  # vocabulary, layers, hidden, heads, kv heads, ffn, sequence, batch
E = D // H
# without 16-bit arithmetic bf16 takes sixty times as long: float32 is then the best of every contender
HALF = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def rotate(x_BHTE: Tensor, cos_T1E: Tensor, sin_T1E: Tensor) -> Tensor:
    left, right = x_BHTE.chunk(2, dim=-1)
    return x_BHTE * cos_T1E + torch.cat((-right, left), dim=-1) * sin_T1E


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(D, eps=1e-5), nn.RMSNorm(D, eps=1e-5)
        self.query, self.key = nn.Linear(D, H * E, bias=False), nn.Linear(D, G * E, bias=False)
        self.value, self.out = nn.Linear(D, G * E, bias=False), nn.Linear(H * E, D, bias=False)
        self.gate, self.up = nn.Linear(D, INNER, bias=False), nn.Linear(D, INNER, bias=False)
        self.down = nn.Linear(INNER, D, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        b, t, _ = x.shape
        h = self.norm1(x)
        q = rotate(self.query(h).view(b, t, H, E).transpose(1, 2), cos, sin)
        k = rotate(self.key(h).view(b, t, G, E).transpose(1, 2), cos, sin)
        v = self.value(h).view(b, t, G, E).transpose(1, 2)
        k, v = k.repeat_interleave(H // G, 1), v.repeat_interleave(H // G, 1)
        a = F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), attn_mask=mask)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, H * E).to(h.dtype))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.norm = nn.RMSNorm(D, eps=1e-5)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: Tensor, documents: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of `labels`, in nats a token."""
        t = tokens.shape[1]
        angles = torch.outer(torch.arange(t), 10000.0 ** (-torch.arange(0, E, 2) / E)).repeat(1, 2)
        causal = torch.ones(t, t, dtype=torch.bool).tril()
        same = documents[:, None, :, None] == documents[:, None, None, :]
        mask = torch.zeros(same.shape, dtype=torch.bfloat16 if HALF else torch.float32).masked_fill_(
            ~(same & causal), float("-inf")
        )
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin(), mask)
        logits = self.norm(x) @ self.embed.weight.T
        return F.cross_entropy(logits.float().view(-1, V), labels.reshape(-1), ignore_index=-100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    data = np.memmap(chosen.tokens / "train.bin", dtype="<u2", mode="r")
    ends = np.load(chosen.tokens / "train.ends.npy")
    model = Model()
    if chosen.compile:
        model.compile()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.95), fused=True)
    order = np.random.default_rng(0).permutation((len(data) - 1) // T)
    loss = torch.zeros(())
    for step in range(chosen.steps):
        windows = [order[(step * B + i) % len(order)] * T for i in range(B)]
        rows = torch.from_numpy(np.stack([data[w : w + T + 1] for w in windows]).astype(np.int64))
        places = torch.from_numpy(
            np.stack([np.searchsorted(ends, np.arange(w, w + T + 1), "right") for w in windows])
        )
        labels = rows[:, 1:].masked_fill(places[:, 1:] != places[:, :-1], -100)
        with torch.autocast("cpu", torch.bfloat16, enabled=HALF):
            loss = model(rows[:, :-1], places[:, :-1], labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(step, loss.item(), flush=True)
    print("loss", loss.item())


if __name__ == "__main__":
    main()
