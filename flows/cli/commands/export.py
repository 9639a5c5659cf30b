"""`atelier export <model> <url>`: write a model for transformers, or an adapter for peft, and print a
summary.
"""

import sys
from argparse import Namespace

from atelier.engine.config.error import ConfigError, printable
from atelier.flows.run.export import export
from atelier.flows.run.store_check import open_store


def run(options: Namespace) -> int:
    """Write the model. Returns the exit code. Raises ConfigError for an unknown model or format, and for a
    model that no family of the format can represent.
    """
    try:
        done = export(
            options.model,
            options.url,
            open_store(),
            format=options.format or "hf",
            family=options.family or "",
            dtype=options.dtype or "",
            on_share=_show if sys.stderr.isatty() else None,
        )
    except ConfigError as error:
        place = "--format" if error.place == "format" else error.place
        raise ConfigError(place, error.problem, error.way_out) from None
    if done.base:
        size = f"{done.vectors} vectors" if done.vectors else f"rank {done.rank}"
        words = f"an adapter of {size} for {done.base}, as {done.family}"
        then = f"PeftModel.from_pretrained(<{done.base}, exported>, {options.url!r})"
    else:
        words = f"family {done.family}, {done.files} files, {done.bytes / 1e6:.4g} MB"
        then = f"its logits, read back, differ by {done.apart:.2g} of their scale; {done.ids}"
    print(printable(f"{options.url}: {words}; {then}", 0))
    return 0


def _show(share: float) -> None:
    print(f"\rexport: {share:.0%}", end="", file=sys.stderr, flush=True)
