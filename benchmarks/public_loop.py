"""Public training loops on the same tokens, model shape and settings as benchmarks/bare_loop.py: the
transformers Trainer, and litgpt's model in the loop of its `litgpt pretrain`, both compiled whole.

python benchmarks/public_loop.py transformers <tokens folder> --steps 100     used by peers.py --public PYTHON
Needs transformers, accelerate, lightning and litgpt, in an environment of their own (litgpt pins old ones).
Neither keeps documents apart, and litgpt does not tie the head, so both do less work than atelier.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bare_loop import HALF, INNER, B, D, G, H, L, T, V
from torch import nn


class Windows(torch.utils.data.Dataset[Any]):
    """Windows of T + 1 tokens in a fixed random order."""

    def __init__(self, folder: Path, num: int) -> None:
        self.data = np.memmap(folder / "train.bin", dtype="<u2", mode="r")
        self.order = np.random.default_rng(0).permutation((len(self.data) - 1) // T)
        self.num = num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, i: int) -> torch.Tensor:
        at = self.order[i % len(self.order)] * T
        return torch.from_numpy(self.data[at : at + T + 1].astype(np.int64))


def groups(model: nn.Module) -> list[dict[str, Any]]:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]


def transformers_trainer(folder: Path, steps: int, compiled: bool) -> float:
    """`transformers.Trainer` of a LlamaForCausalLM, in bf16 where there is 16-bit arithmetic."""
    from transformers import (  # pyright: ignore[reportMissingImports]  # in an environment of its own
        LlamaConfig,
        LlamaForCausalLM,
        Trainer,
        TrainingArguments,
    )

    config = LlamaConfig(
        vocab_size=V,
        hidden_size=D,
        intermediate_size=INNER,
        num_hidden_layers=L,
        num_attention_heads=H,
        num_key_value_heads=G,
        max_position_embeddings=T,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(groups(model), lr=2e-3, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = TrainingArguments(
            output_dir=scratch,
            per_device_train_batch_size=B,
            max_steps=steps,
            bf16=HALF,
            use_cpu=True,
            torch_compile=compiled,
            max_grad_norm=1.0,
            save_strategy="no",
            report_to="none",
            logging_steps=10,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )

        def collate(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
            batch = torch.stack(rows)[:, :T].contiguous()  # the model shifts the labels itself
            return {"input_ids": batch, "labels": batch}

        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Windows(folder, steps * B),
            data_collator=collate,
            optimizers=(optimizer, schedule),  # pyright: ignore[reportArgumentType]
        )
        return trainer.train().training_loss


def litgpt_loop(folder: Path, steps: int, compiled: bool) -> float:
    """litgpt's GPT, chunked_cross_entropy and the lines of its `fit`, in lightning's Fabric, likewise."""
    import lightning  # pyright: ignore[reportMissingImports]  # in an environment of its own
    from litgpt import GPT, Config  # pyright: ignore[reportMissingImports]  # likewise
    from litgpt.utils import chunked_cross_entropy  # pyright: ignore[reportMissingImports]  # likewise

    fabric = lightning.Fabric(accelerator="cpu", devices=1, precision="bf16-mixed" if HALF else "32-true")
    config = Config(
        name="demo",
        block_size=T,
        vocab_size=V,
        padded_vocab_size=V,
        n_layer=L,
        n_embd=D,
        n_head=H,
        n_query_groups=G,
        intermediate_size=INNER,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        norm_eps=1e-5,
        mlp_class_name="LLaMAMLP",
    )
    inner: Any = GPT(config)
    model: Any = fabric.setup(torch.compile(inner) if compiled else inner)
    optimizer: Any = fabric.setup_optimizers(
        torch.optim.AdamW(groups(model), lr=2e-3, betas=(0.9, 0.95), fused=True)
    )
    rows = torch.utils.data.DataLoader(Windows(folder, steps * B), batch_size=B)
    loss = torch.zeros(())
    for step, batch in enumerate(fabric.setup_dataloaders(rows)):
        logits = model(batch[:, :T].contiguous())
        loss = chunked_cross_entropy(logits, batch[:, 1 : T + 1].contiguous())
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(step, loss.item(), flush=True)
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=("transformers", "litgpt"))
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--eager", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loop = {"transformers": transformers_trainer, "litgpt": litgpt_loop}[chosen.peer]
    print("loss", loop(chosen.tokens, chosen.steps, not chosen.eager))


if __name__ == "__main__":
    main()
