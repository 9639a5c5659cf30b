"""Table of config.json keys without effect on a finished model's output, each with the reason: for any value,
or for the listed values. Other keys are refused by name. Torch-free.

To add a row, first check how transformers uses the key in every family: tests/foreign/kinds/checkpoints.py
draws keys of this table and compares logits.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from atelier.engine.config.base import Json


class Idle(NamedTuple):
    """`keys`: names, or patterns with *. `values`: the values without effect; () = any."""

    why: str
    keys: tuple[str, ...]
    values: tuple[Json, ...] = ()

    def has(self, key: str) -> bool:
        return any(fnmatchcase(key, each) for each in self.keys)

    def takes(self, value: Json) -> bool:
        """Whether the value is one of `values`; 0 equals 0.0 but not false."""
        kind = bool if isinstance(value, bool) else object
        alike = [each for each in self.values if isinstance(each, bool) == (kind is bool)]
        return not self.values or value in alike


ORIGIN = "origin of the file"
TOKENS = "special tokens are not part of the network; the row `texts` lists those taken over"
GENERATION = "text generation, for which `atelier generate` has its own settings"
OUTPUTS = "values returned besides the logits"
TRAINING = "used only in training"
SPEED = "way of computing the same numbers"
LENGTH = "limit for tokenizers; for positions it is max_position_embeddings"
LABELS = "for a classification head, which a language model does not have"
OFF = "switched off"

IDLE = (
    Idle(
        ORIGIN,
        (
            "_commit_hash", "_from_auto", "_name_or_path", "finetuning_task", "model_name", "name_or_path",
            "transformers_version", "unsloth_*", "is_llama_config", "tokenizer_class", "task_specific_params",
        ),
    ),
    Idle("for another program", ("transformers.js_config",)),
    Idle(
        TOKENS,
        (
            "bos_token_id", "cls_token_id", "decoder_start_token_id", "eos_token_id", "mask_token_id",
            "pad_token_id", "prefix", "sep_token_id", "unk_token_id",
        ),
    ),
    Idle(
        GENERATION,
        (
            "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
            "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
            "forced_eos_token_id", "length_penalty", "max_length", "max_new_tokens", "min_length",
            "min_new_tokens", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
            "remove_invalid_values", "repetition_penalty", "suppress_tokens", "temperature", "top_k", "top_p",
            "typical_p",
        ),
    ),
    Idle(
        OUTPUTS,
        (
            "output_attentions", "output_hidden_states", "output_past", "output_scores", "return_dict",
            "return_dict_in_generate", "torchscript",
        ),
    ),
    Idle(
        TRAINING,
        (
            "attention_dropout", "gradient_checkpointing", "initializer_range", "loss_type",
            "neftune_noise_alpha", "use_bfloat16",
        ),
    ),
    Idle(
        SPEED,
        (
            "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal",
            "_experts_implementation", "_flash_attn_2_enabled", "attn_implementation", "dtype",
            "chunk_size_feed_forward", "experts_implementation", "torch_dtype", "use_flash_attention",
            "use_cache", "use_flash_attention_2", "use_flash_attn",
        ),
    ),
    Idle(
        LENGTH,
        (
            "max_seq_len", "max_seq_length", "max_sequence_length", "model_max_length", "seq_length",
            "tokenizer_model_max_length",
        ),
    ),
    Idle(LABELS, ("_num_labels", "id2label", "label2id", "num_labels", "problem_type")),
    Idle(OFF, ("add_cross_attention", "attention_bias", "mlp_bias", "tie_encoder_decoder"), (False, None)),
    Idle(OFF, ("is_encoder_decoder", "rope_interleaved", "use_mrope"), (False,)),
    Idle(OFF, ("cross_attention_hidden_size", "quantization_config", "auto_map"), (None,)),
    Idle(OFF, ("pruned_heads",), ({}, None)),
    Idle("the model reads from left to right either way", ("is_decoder",), (False, True)),
)  # fmt: skip
# keys that are always refused, and the remedy
NEVER = {
    "auto_map": ("names custom code, which is never run", "use a family of engine/config/family"),
    "quantization_config": ("marks quantised weights", "use the checkpoint before quantisation"),
}


def row_of(key: str, rows: Iterable[Idle]) -> Idle | None:
    """The first row that lists the key."""
    return next((row for row in rows if row.has(key)), None)
