"""In which arithmetic models were trained, or would be: 16 bits may be computed in float32."""

from atelier.engine.spec.pool import Pool
from atelier.engine.spec.record import Record
from atelier.engine.spec.train import Train
from atelier.infra.code_map import TRAINED
from atelier.infra.dag import Node, Product


def computed(node: Node, product: Product, record: Record | None, pool: Pool) -> str:
    """What a finished model says it was trained in, and what one would be trained in on the pool; '' for what
    is not trained, or not known.
    """
    if product.kind != "model" or node.task not in TRAINED:
        return ""
    return str(record.summary.get("computed") or "") if record is not None else here(node, pool)


def here(node: Node, pool: Pool) -> str:
    """The arithmetic of a training on the pool: float32 where 16 bits would only be emulated."""
    precision = Train.model_validate(node.config["train"]).precision
    return "fp32" if precision == "bf16" and not pool.half else precision


def other_than_here(node: Node, product: Product, record: Record, pool: Pool) -> str:
    """Why a finished model is not what this pool would make, bit for bit; '' when it may be."""
    was = computed(node, product, record, pool)
    now = here(node, pool) if was else ""
    return f"computed in {was}, where this pool computes {now}" if was != now else ""
