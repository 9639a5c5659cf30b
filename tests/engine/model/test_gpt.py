"""The decoder against a reference written token by token; documents, branches and decoding."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.gpt import GPT
from atelier.engine.model import gpt
from atelier.engine.model.load import build, initialise
from atelier.engine.model.transformer import dropout, layer_keys, noise_keys

V = 61
LLAMA: dict[str, Any] = {
    "num_layers": 2,
    "hidden": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "vocab": V,
    "init_std": 0.2,
}
GPT2: dict[str, Any] = {
    "num_layers": 2, "hidden": 32, "num_heads": 2, "mlp": "gelu", "positions": "learned", "max_positions": 64,
    "norm": "layer", "tied": False, "vocab": V, "init_std": 0.2,
}  # fmt: skip


def model_of(dtype: torch.dtype = torch.float64, **settings: Any) -> gpt.Decoder:
    model = build(GPT(**settings)).to(dtype)
    initialise(model, seed=1, name="test")
    assert isinstance(model, gpt.Decoder)
    return model


def test_dropout_has_keys_for_any_number_of_blocks() -> None:
    keys_BT = noise_keys(1, torch.arange(2), torch.arange(3))
    found = [layer_keys(keys_BT, layer) for layer in range(100)]
    assert len({tuple(each.flatten().tolist()) for each in found}) == 100
    assert torch.equal(found[4], keys_BT + 4 * 0x2545F4914F6CDD1D)  # as it was where that was no error


def packed(*rows: list[int], seed: int = 0) -> dict[str, Tensor]:
    """Random tokens; each row is a list of document lengths."""
    generator = torch.Generator().manual_seed(seed)
    positions = [[p for length in row for p in range(length)] for row in rows]
    documents = [[d for d, length in enumerate(row) for _ in range(length)] for row in rows]
    tokens = torch.randint(0, V, (len(rows), len(positions[0])), generator=generator)
    return {
        "tokens_BT": tokens,
        "positions_BT": torch.tensor(positions),
        "documents_BT": torch.tensor(documents),
    }


def reference(spec: GPT, weights: dict[str, Tensor], tokens: list[int]) -> Tensor:
    """Hidden states [T, D] of one document, every token and head by itself."""

    def norm(name: str, x: Tensor) -> Tensor:
        if spec.norm == "rms":
            return x / (x.pow(2).mean() + spec.norm_eps).sqrt() * weights[f"{name}.weight"]
        centred = x - x.mean()
        return (
            centred / (centred.pow(2).mean() + spec.norm_eps).sqrt() * weights[f"{name}.weight"]
            + weights[f"{name}.bias"]
        )

    def turned(x: Tensor, position: int) -> Tensor:
        if spec.positions == "learned":
            return x
        half = len(x) // 2
        result = x.clone()
        for i in range(half):
            angle = position * spec.rope_theta ** (-2 * i / len(x))
            result[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
            result[i + half] = x[i] * math.sin(angle) + x[i + half] * math.cos(angle)
        return result

    stream = [weights["embed.weight"][token] for token in tokens]
    if spec.positions == "learned":
        stream = [x + weights["positions.weight"][t] for t, x in enumerate(stream)]
    wide, group = spec.head_width, spec.num_heads // spec.kv_heads
    for layer in range(spec.num_layers):
        block = {
            n.removeprefix(f"blocks.{layer}."): w
            for n, w in weights.items()
            if n.startswith(f"blocks.{layer}.")
        }
        inputs = [norm(f"blocks.{layer}.norm1", x) for x in stream]
        query, key, value = (
            [block[f"attention.{kind}.weight"] @ x for x in inputs] for kind in ("query", "key", "value")
        )
        for t in range(len(tokens)):
            heads = []
            for head in range(spec.num_heads):
                mine, shared = (
                    slice(head * wide, (head + 1) * wide),
                    slice(head // group * wide, (head // group + 1) * wide),
                )
                q = turned(query[t][mine], t)
                scores = torch.stack([q @ turned(key[s][shared], s) / wide**0.5 for s in range(t + 1)])
                heads.append(sum(p * value[s][shared] for s, p in enumerate(scores.softmax(0))))
            stream[t] = stream[t] + block["attention.out.weight"] @ torch.cat(heads)
        for t, x in enumerate(stream):
            h = norm(f"blocks.{layer}.norm2", x)
            up = block["mlp.up.weight"] @ h
            if spec.mlp == "swiglu":
                gate = block["mlp.gate.weight"] @ h
                inner = gate * gate.sigmoid() * up
            else:
                inner = 0.5 * up * (1 + torch.tanh((2 / math.pi) ** 0.5 * (up + 0.044715 * up**3)))
            stream[t] = x + block["mlp.down.weight"] @ inner
    return torch.stack([norm("norm", x) for x in stream])


@pytest.mark.parametrize("settings", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_equals_a_reference_that_computes_each_document_token_by_token(settings: dict[str, Any]) -> None:
    model = model_of(**settings)
    batch = packed([5, 7], [12])
    hidden = model(batch).hidden
    weights = dict(model.named_parameters())
    assert hidden.dtype == torch.float64
    for row, begin, end in ((0, 0, 5), (0, 5, 12), (1, 0, 12)):
        expected = reference(model.spec, weights, batch["tokens_BT"][row, begin:end].tolist())
        assert (hidden[row, begin:end] - expected).abs().max() < 1e-12


@pytest.mark.parametrize(
    "settings", [LLAMA, GPT2, LLAMA | {"tied": False, "num_kv_heads": "auto", "ffn": 40}]
)
def test_weights_have_the_names_shapes_and_count_of_the_spec(settings: dict[str, Any]) -> None:
    spec = GPT(**settings)
    with torch.device("meta"):
        model = build(spec)
    assert {name: tuple(weight.shape) for name, weight in model.named_parameters()} == spec.shapes()
    assert list(model.state_dict()) == [name for name, _ in model.named_parameters()]  # no buffers
    assert sum(weight.numel() for weight in model.parameters()) == spec.num_params()


def autocast(precision: str) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_another_document_in_the_row_changes_no_bit(precision: str) -> None:
    model = model_of(torch.float32, **LLAMA)
    batch = packed([9, 20, 3])
    changed = dict(batch, tokens_BT=batch["tokens_BT"].clone())
    changed["tokens_BT"][0, :9] = (changed["tokens_BT"][0, :9] + 1) % V
    with autocast(precision):
        before, after = model(batch).hidden, model(changed).hidden
    assert torch.equal(before[0, 9:], after[0, 9:])
    assert not torch.equal(before[0, :9], after[0, :9])


def test_a_later_token_changes_no_bit_of_an_earlier_one() -> None:
    model = model_of(torch.float32, **LLAMA)
    batch = packed([30])
    changed = dict(batch, tokens_BT=batch["tokens_BT"].clone())
    changed["tokens_BT"][0, 20] = (changed["tokens_BT"][0, 20] + 1) % V
    before, after = model(batch).hidden, model(changed).hidden
    assert torch.equal(before[0, :20], after[0, :20])
    assert not torch.equal(before[0, 20:], after[0, 20:])


@pytest.mark.parametrize("settings", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_options_behind_one_prompt_are_scored_as_each_alone(settings: dict[str, Any]) -> None:
    model = model_of(**settings)
    prompt, options = [3, 1, 4, 1, 5], [[9, 2], [6, 5, 3], [5]]
    tokens, positions, branches = list(prompt), list(range(5)), [0] * 5
    for number, option in enumerate(options, start=1):
        tokens += option
        positions += range(5, 5 + len(option))
        branches += [number] * len(option)
    row = {
        "tokens_BT": torch.tensor([tokens]),
        "positions_BT": torch.tensor([positions]),
        "documents_BT": torch.zeros(1, len(tokens), dtype=torch.long),
        "branches_BT": torch.tensor([branches]),
    }
    together = model(row).hidden[0]
    begin = 5
    for option in options:
        alone = packed([5 + len(option)]) | {"tokens_BT": torch.tensor([prompt + option])}
        expected = model(alone).hidden[0]
        assert (together[:5] - expected[:5]).abs().max() < 1e-12
        assert (together[begin : begin + len(option)] - expected[5:]).abs().max() < 1e-12
        begin += len(option)


@pytest.mark.parametrize("settings", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_decoding_with_a_cache_equals_one_forward(settings: dict[str, Any]) -> None:
    model = model_of(**settings)
    batch = packed([20], [12, 8])
    whole = model(batch).hidden
    cache = model.new_cache(2, 20, torch.float64)
    pieces, begin = [], 0
    for length in (7, 1, 1, 4, 1, 6):
        piece = {name: tensor[:, begin : begin + length] for name, tensor in batch.items()}
        pieces.append(model(piece, cache).hidden)
        begin += length
    assert (torch.cat(pieces, dim=1) - whole).abs().max() < 1e-12


def test_prompts_of_different_length_decode_together_as_alone() -> None:
    model = model_of(**LLAMA)
    long, short, more = [7, 8, 9, 10, 11], [1, 2], [20, 21, 22]
    rows = [long, short + [0] * 3]
    prompts = {
        "tokens_BT": torch.tensor(rows),
        "positions_BT": torch.tensor([[0, 1, 2, 3, 4], [0, 1, 0, 0, 0]]),
        "documents_BT": torch.tensor([[0] * 5, [0, 0, -1, -1, -1]]),
    }
    cache = model.new_cache(2, 8, torch.float64)
    assert model(prompts, cache).hidden.isfinite().all()
    for step, token in enumerate(more):
        new = {
            "tokens_BT": torch.full((2, 1), token),
            "positions_BT": torch.tensor([[5 + step], [2 + step]]),
            "documents_BT": torch.zeros(2, 1, dtype=torch.long),
        }
        last = model(new, cache).hidden[:, 0]
        for row, prompt in enumerate((long, short)):
            tokens = prompt + more[: step + 1]
            alone = packed([len(tokens)]) | {"tokens_BT": torch.tensor([tokens])}
            assert (last[row] - model(alone).hidden[0, -1]).abs().max() < 1e-12


def test_a_full_cache_says_how_much_it_holds() -> None:
    model = model_of(**LLAMA)
    with pytest.raises(ConfigError, match="12 tokens do not fit in 8"):
        model(packed([12]), model.new_cache(1, 8, torch.float64))


def test_a_row_longer_than_the_learned_positions_is_refused() -> None:
    model = model_of(**GPT2)
    with pytest.raises(ConfigError, match="65 tokens per row, but 64 positions; max_positions=65"):
        model(packed([65]))


@pytest.fixture
def warnings_each_time() -> Iterator[None]:
    """Torch has some of them once a process alone."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.parametrize(
    "settings", [LLAMA, GPT2, LLAMA | {"qk_norm": True}], ids=["llama", "gpt2", "norms of queries and keys"]
)
@pytest.mark.usefixtures("warnings_each_time")
def test_bf16_autocast_is_near_fp32_and_keeps_fp32_gradients(settings: dict[str, Any]) -> None:
    model = model_of(torch.float32, **settings)
    batch = packed([40, 20], [60], [1, 59])
    exact = model(batch).hidden
    with autocast("bf16"):
        rough = model(batch).hidden
    assert rough.dtype == torch.float32
    assert (rough - exact).abs().mean() < 0.02 * exact.abs().mean()
    rough.square().mean().backward()
    for name, weight in model.named_parameters():
        if name != "head.weight":  # applied by the objectives
            assert (
                weight.grad is not None
                and weight.grad.dtype == torch.float32
                and weight.grad.isfinite().all()
            )


def test_dropout_is_a_function_of_seed_sample_and_place_and_off_in_evaluation() -> None:
    model = model_of(torch.float32, **LLAMA | {"dropout": 0.5})
    batch = packed([16])

    def seeded(seed: int, sample: int = 7) -> Tensor:
        keys = noise_keys(seed, torch.tensor([sample]), torch.arange(16))
        return model(batch | {"noise_BT": keys}).hidden

    assert torch.equal(seeded(1), seeded(1))
    assert not torch.equal(seeded(1), seeded(2))
    assert not torch.equal(seeded(1), seeded(1, sample=8))
    model.eval()
    assert torch.equal(seeded(1), seeded(2))


def test_dropout_zeroes_its_share_and_keeps_the_mean() -> None:
    ones = torch.ones(64, 32, 50)
    keys = noise_keys(3, torch.arange(64), torch.arange(32))
    dropped = dropout(ones, 0.3, keys, 0)
    share = (dropped == 0).double().mean((0, 1)), (dropped == 0).double().mean((0, 2))
    assert all((part - 0.3).abs().max() < 0.06 for part in share)
    assert abs((dropped == 0).double().mean().item() - 0.3) < 0.005
    assert abs(dropped.mean().item() - 1.0) < 0.01
    other = (dropout(ones, 0.3, keys, 1) == 0).double()
    assert abs((other * (dropped == 0)).mean().item() - 0.09) < 0.005  # independent


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # torch's compiler makes and hides warnings of its own
def test_blocks_compile_whole_and_once_for_all_layers() -> None:
    torch._dynamo.utils.counters.clear()
    settings = LLAMA | {"num_layers": 12}
    plain, compiled = model_of(torch.float32, **settings), model_of(torch.float32, **settings)
    for block in compiled.blocks:
        block.compile(fullgraph=True)
    batch = packed([10, 22], [32])
    results = []
    for model in (plain, compiled):
        hidden = model(batch).hidden
        hidden.pow(3).sum().backward()  # a square's gradient is all but 0 behind a norm
        results.append((hidden, model.embed.weight.grad))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for ours, theirs in zip(*results, strict=True):
        assert ours is not None and theirs is not None
        assert (ours - theirs).abs().max() < 1e-4 * ours.abs().max()
