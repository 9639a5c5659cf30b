"""Soft prompts (engine/config/soft_prompt.py): a table beside the embedding, and its files in peft's format.

L vectors, D hidden
"""

import json
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atelier.engine.config.error import DataError
from atelier.engine.config.model.encdec import EncDec
from atelier.engine.config.role import Trainable
from atelier.engine.config.seed import seed_of
from atelier.engine.config.soft_prompt import Mask
from atelier.engine.config.text_blocks import TextBlocks
from atelier.engine.io.tensorfile import in_file_order
from atelier.engine.model.load import draw
from atelier.engine.model.lora import CONFIG, WEIGHTS
from atelier.engine.model.weights import Sink, Weight, entries_of, write_files

SOFT, TABLE = "soft", "soft.weight"
VIRTUAL = "prompt_embeddings"  # peft's name of the table


class SoftTable(nn.Module):
    """forward: rows [B, T], negative = none -> [B, T, D + 1]; the last number is 1 for a row of the table. So
    a rank that keeps only some tokens keeps both.
    """

    def __init__(self, length: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, hidden))

    def forward(self, rows_BT: Tensor) -> Tensor:
        found_BTD = F.embedding(rows_BT.clamp(min=0), self.weight)
        return torch.cat([found_BTD, (rows_BT >= 0)[..., None].to(found_BTD.dtype)], dim=-1)


def embedded(tokens_BT: Tensor, embed: nn.Module, soft: nn.Module, vocab: int) -> Tensor:
    """[B, T, D]: rows of the table for ids from `vocab` on, the embedding for others."""
    x_BTD, found_BTE = embed(tokens_BT.clamp(max=vocab - 1)), soft(tokens_BT - vocab)
    return torch.where(found_BTE[..., -1:] > 0, found_BTE[..., :-1], x_BTD)


def hidden_from_each_other(is_soft_BT: Tensor, mask: Mask) -> Tensor:
    """[B, 1, T, T] bool: which tokens (last dim) a mask hides from which (CPM-2, 2106.10715)."""
    reads, read = is_soft_BT[:, None, :, None], is_soft_BT[:, None, None, :]
    text, soft = reads & ~read, ~reads & read
    return {"none": text & soft, "prompt_to_text": text, "text_to_prompt": soft, "both": text | soft}[mask]


def tune_prompt(model: nn.Module, trainable: Trainable) -> None:
    """Freeze all weights except the soft prompt, in place; does nothing for other kinds."""
    if trainable.kind == "prompt":
        model.requires_grad_(False)
        model.get_submodule(SOFT).requires_grad_(True)


def first_prompt(
    trainable: Trainable, embed_VD: Tensor, ids: Sequence[int], *, num_ids: int, seed: int, name: str
) -> Tensor:
    """[L, D] initial values: normal with the embedding's spread, its mean row, rows of random tokens, or rows
    of `ids` (such as those of a text), repeated to fill the table.
    """
    length, key = trainable.length, seed_of(seed, name, TABLE)
    if trainable.first == "random":
        return draw(torch.Size((length, embed_VD.shape[1])), "normal", float(embed_VD.float().std()), key)
    if trainable.first == "mean":
        return embed_VD[:num_ids].float().mean(0).repeat(length, 1)
    if trainable.first == "vocabulary":
        generator = torch.Generator().manual_seed(key)
        ids = torch.randint(num_ids, (length,), generator=generator).tolist()
    if not ids:
        raise DataError(f"trainable.first={trainable.first}: the text has no tokens")
    return embed_VD[[ids[n % len(ids)] for n in range(length)]].float().clone()


def write_prompt(weights: Mapping[str, Weight], spec: TextBlocks, sink: Sink | None, *, base: str) -> None:
    """Pass the table alone to `sink` as peft's two files. A collective."""
    chosen = {VIRTUAL: weights[TABLE]}
    write_files({WEIGHTS: in_file_order(entries_of(chosen))}, chosen, sink)
    if sink is not None:
        sink(CONFIG, [(json.dumps(config_of(spec, base), indent=1, sort_keys=True) + "\n").encode()])


def config_of(spec: TextBlocks, base: str) -> dict[str, object]:
    """peft's config. peft puts the vectors before all text and hides nothing; other positions and masks are
    stored in `atelier_place` and `atelier_mask`.
    """
    place, mask = spec.soft_prompt.place, spec.soft_prompt.mask
    return {
        "base_model_name_or_path": base,
        "inference_mode": True,
        "num_attention_heads": spec.num_heads,
        "num_layers": spec.num_layers,
        # only an encoder has the vectors
        "num_transformer_submodules": 1,
        "num_virtual_tokens": spec.soft_prompt.length,
        "peft_type": "PROMPT_TUNING",
        "prompt_tuning_init": "RANDOM",
        "task_type": "SEQ_2_SEQ_LM" if isinstance(spec, EncDec) else "CAUSAL_LM",
        "token_dim": spec.hidden,
        **({} if place == "front" else {"atelier_place": place}),
        **({} if mask == "none" else {"atelier_mask": mask}),
    }
