"""Published configurations: exact parameter counts, and the cost of distilling from them."""

from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.foreign.families import family_of
from atelier.engine.config.model.gpt import GPT
from atelier.flows.run.compose import compose
from atelier.flows.run.plan import make_plan
from atelier.flows.run.plan_document import PlanRow
from tests.stored_models import store_with

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "bos_token_id": 128000,
    "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3",
    },
    "transformers_version": "4.43.0.dev0", "use_cache": True, "vocab_size": 128256,
}  # fmt: skip
QWEN: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 12288,
    "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
    "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True,
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
    "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.36.0.dev0", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
QWEN_EXPERTS: dict[str, Any] = {
    **QWEN, "architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1, "hidden_size": 2048,
    "intermediate_size": 6144, "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
    "moe_intermediate_size": 768, "norm_topk_prob": True, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}  # fmt: skip
PUBLIC = {  # as their model cards count them
    "Llama 3.1 8B": (LLAMA, 8_030_261_248),
    "Qwen3 8B": (QWEN, 8_190_735_360),
    "Mixtral 8x7B": (MIXTRAL, 46_702_792_704),
    "Qwen3-30B-A3B": (QWEN_EXPERTS, 30_532_122_624),
}


def spec_of(name: str) -> GPT:
    config = PUBLIC[name][0]
    return family_of(config, name).spec(config, name)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_parameters_of_a_published_configuration_are_counted_exactly(name: str) -> None:
    print(f"{name}: {spec_of(name).num_params():,} parameters")
    assert spec_of(name).num_params() == PUBLIC[name][1]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_plan_prices_distillation_from_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    spec = spec_of(name)
    store = store_with(tmp_path, spec)

    def row(flow: str, *words: str) -> PlanRow:
        same = (
            "pool=h200",
            "pool.gpus=8",
            "tokenizer.model=guest",
            "train.steps=1000",
            "train.sequence=4096",
        )
        plan = make_plan(compose(flow, [*words, *same, "train.global_batch=64"]), store)
        assert not plan.refusals
        return next(row for row in plan.rows if row["task"] == "train")

    taught = row("distill", "role@roles.teacher=finished", "roles.teacher.init=guest")
    alone = row("pretrain", "model=gpt_nano")
    print(f"{name}: {taught['step_s']:.1f} s a step of a taught gpt_nano, {alone['step_s']:.2f} s alone")
    forward_s = spec.flops_per_token(4096) / 3 * 64 * 4096 / 8 / (989e12)
    assert forward_s < taught["step_s"] - alone["step_s"] < 4 * forward_s
