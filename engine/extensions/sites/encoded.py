"""Tensors of a weight in a message, by codec: names, types, shapes, and so bytes. Sender and reader share
this arithmetic. Torch-free.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from atelier.engine.config.error import ConfigError
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.rounds import cut
from atelier.engine.io.tensorfile import TensorEntry, head
from atelier.engine.io.weight_files import METADATA

SCALES, CODES = "scales", "codes"  # int8, int4, int2
INDICES, VALUES = "indices", "values"  # topk
LEFT, RIGHT = "left", "right"  # powersgd
Layout = dict[str, TensorEntry]  # the weights of a contribution, in the order of their names
_ALIGN = 4  # bytes: every tensor of a message begins at a multiple of its elements' size
_LARGEST = 2**31  # numbers of a tensor that 32-bit indices reach


def part_name(weight: str, part: str) -> str:
    """The name of a part of a weight; no weight's own name has a colon."""
    return f"{weight}:{part}"


def parts_of(codec: Codec, weight: TensorEntry) -> list[TensorEntry]:
    """The tensors of one weight in a message, in their order. Raises ConfigError for a weight that is too
    large for the codec.
    """
    name, numbers = weight.name, math.prod(weight.shape)
    if codec.bits:
        codes = -(-numbers * codec.bits // 8)
        return [
            TensorEntry(part_name(name, SCALES), "F32", (-(-numbers // codec.block),)),
            TensorEntry(part_name(name, CODES), "U8", (-(-codes // _ALIGN) * _ALIGN,)),
        ]
    if codec.kind == "topk":
        if numbers >= _LARGEST:
            raise ConfigError(
                "train.link.codec", f"topk: {name} has too many numbers ({numbers})", "another codec"
            )
        count = num_sent(codec, numbers)
        return [
            TensorEntry(part_name(name, INDICES), "I32", (count,)),
            TensorEntry(part_name(name, VALUES), "F32", (count,)),
        ]
    if codec.kind == "powersgd":
        if not is_factored(codec, weight.shape):
            return [TensorEntry(name, "F32", weight.shape)]
        rows, columns = matrix(weight.shape)
        return [
            TensorEntry(part_name(name, LEFT), "F32", (rows, codec.rank)),
            TensorEntry(part_name(name, RIGHT), "F32", (columns, codec.rank)),
        ]
    return [TensorEntry(name, "BF16" if codec.kind == "bf16" else weight.dtype, weight.shape)]


def num_sent(codec: Codec, numbers: int) -> int:
    """How many of a tensor's numbers topk sends: the share, rounded up."""
    return min(numbers, math.ceil(codec.share * numbers))


def matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor for powersgd: all dims but the last are rows."""
    return math.prod(shape[:-1]), shape[-1]


def is_factored(codec: Codec, shape: tuple[int, ...]) -> bool:
    """Whether two factors of a tensor are smaller than the tensor; otherwise it is sent whole, in float32."""
    if len(shape) < 2:
        return False
    rows, columns = matrix(shape)
    return codec.rank * (rows + columns) < rows * columns


def message_bytes(codec: Codec, weights: Iterable[TensorEntry]) -> int:
    """Bytes of the body of a message of these weights, its header included."""
    return body_bytes([part for weight in weights for part in parts_of(codec, weight)])


def body_bytes(entries: Sequence[TensorEntry]) -> int:
    """Bytes of a body of these tensors, its header included."""
    return len(head(entries, METADATA)) + sum(entry.num_bytes for entry in entries)


def layouts_of(weights: Mapping[str, TensorEntry], fragments: int) -> list[Layout]:
    """The layout of all weights, then, if there are several, that of each fragment. Raises ConfigError for
    too many fragments.
    """
    whole = {name: weights[name] for name in sorted(weights)}
    sizes = {name: math.prod(entry.shape) for name, entry in whole.items()}
    found = cut(sizes, fragments) if fragments > 1 else []
    return [whole, *({name: whole[name] for name in whole if name in names} for names in found)]


def sizes_of(codecs: Iterable[Codec], layouts: Iterable[Layout]) -> dict[str, list[int]]:
    """By codec, the bytes of a contribution's body in each layout."""
    layouts = [*layouts]
    return {codec.text: [message_bytes(codec, each.values()) for each in layouts] for codec in codecs}
