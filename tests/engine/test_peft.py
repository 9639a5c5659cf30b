"""Exported adapters: peft computes the tuned model from them, or they are refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from atelier.engine.config.error import ConfigError
from atelier.engine.config.foreign.adapters import (
    CONFIG,
    INNER,
    MATRIX,
    OUTER,
    PREFIX,
    WEIGHTS,
    check_peft,
    names_of,
    written,
)
from atelier.engine.config.model.gpt import GPT
from atelier.engine.model.lora import with_addition
from tests.engine.model.test_foreign import CASES, Checkpoint, apart, logits

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
RANK, ALPHA = 4, 6.0
ATTENTION = ("query", "key", "value", "out")


def adapter(
    folder: Path, made: Checkpoint, spec: GPT, leaves: tuple[str, ...]
) -> dict[str, tuple[Tensor, Tensor]]:
    """An adapter of these matrices of every block, as it is exported; the additions by our names."""
    known = names_of(made.family, spec)
    modules = {theirs: ours for theirs, ours in known.ours.items() if ours.rpartition(".")[2] in leaves}
    found, weights = dict[str, tuple[Tensor, Tensor]](), dict[str, Tensor]()
    for theirs, ours in modules.items():
        outputs, inputs = spec.shapes()[ours + MATRIX]
        pair = (torch.randn(RANK, inputs) / 4, torch.randn(outputs, RANK) / 4)
        found[ours + MATRIX] = pair
        weights |= {f"{PREFIX}{theirs}{leaf}": one for leaf, one in zip((INNER, OUTER), pair, strict=True)}
    folder.mkdir()
    save_file(weights, folder / WEIGHTS)
    ends = [theirs.rpartition(".")[2] for theirs in modules]
    how = written(RANK, ALPHA, ends, base="base", turned=not known.turned.isdisjoint(modules))
    (folder / CONFIG).write_text(json.dumps(how))
    check_peft(made.family.name, weights, "export")
    return found


@pytest.mark.filterwarnings("ignore::UserWarning")  # peft tells of matrices that are turned
@pytest.mark.parametrize(
    ("case", "leaves", "is_read"),
    [
        ("llama", (*ATTENTION, "gate", "up", "down"), True),
        ("qwen2", (*ATTENTION, "gate", "up", "down"), True),
        ("qwen3", (*ATTENTION, "gate", "up", "down"), True),
        ("mistral", (*ATTENTION, "gate", "up", "down"), True),
        ("gpt2", ("out", "up", "down"), True),
        ("mixtral", ATTENTION, True),
        ("mixtral", (*ATTENTION, "router"), True),
        ("qwen3 experts", (*ATTENTION, "router"), True),
        ("qwen3 experts, not normed", ATTENTION, True),
        ("qwen3 experts, not normed", ("up",), False),
        ("qwen3 experts, not normed", (*ATTENTION, "gate", "up", "down"), False),
    ],
)
def test_peft_computes_the_tuned_model_from_an_adapter_or_it_is_refused(
    case: str, leaves: tuple[str, ...], is_read: bool, tmp_path: Path
) -> None:
    made = Checkpoint(tmp_path, *CASES[case])
    spec = made.family.spec(made.config, "")
    assert isinstance(spec, GPT)
    if not is_read:
        with pytest.raises(ConfigError, match=r"export: model\.layers\.0\..* and would build another model"):
            adapter(tmp_path / "adapter", made, spec, leaves)
        return
    additions = adapter(tmp_path / "adapter", made, spec, leaves)
    model: Any = made.ours()
    state = dict(model.state_dict())
    for name, pair in additions.items():
        state[name] = with_addition(state[name], *pair, ALPHA / RANK)
    model.load_state_dict(state)
    theirs = peft.PeftModel.from_pretrained(made.theirs, str(tmp_path / "adapter")).eval()
    ids_BT = torch.randint(300, (1, 64))
    with torch.inference_mode():
        distance = apart(logits(model, ids_BT), theirs(ids_BT).logits)
    print(f"{case}: {len(additions)} matrices, logits {distance:.1e} of their scale apart")
    assert distance < 1e-4  # a matrix with its addition is rounded, a product beside it is not
