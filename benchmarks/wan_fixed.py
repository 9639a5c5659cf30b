"""The codec that each site chooses beside fixed ones at the same cap: is it the least lossy one within the
budget?

python benchmarks/wan_fixed.py [--tiny]    as root; 15 minutes, two quiet cores

The trainings of benchmarks/wan.py, one of each: namespaces, caps, model, fragments. `stall`: the share of the
time between step 50 and the last round that a site waited for contributions of the other, for the site that
waited longer. A codec is within the budget if its stall is at most `link.stall` above that of no codec and no
cap, where sites wait for each other too. `fits`: the least lossy codec within the budget, null = none;
`chosen`: how often the chooser of site a took which codec, without its first and last message. changed: the
cap goes from 100 to 10 to 1 Mbit/s in one run; `settled`: rounds from the step of a change on until the codec
is the one that fits at the new cap, a round being all fragments (the cap may change ten seconds later); null
= never, or nothing fits.
"""

import argparse
import collections
import tempfile
from pathlib import Path
from typing import Any

from machine import keep, use_own_code
from wan import LINK, give_sizes, namespaces, run, settled

from atelier.engine.extensions.sites.config.train.link import Link

FIXED = {  # Mbit/s -> codecs, the least lossy first; what is lossier than one that fits says nothing
    100.0: ("none", "bf16"),
    10.0: ("bf16", "int8", "int4"),
    1.0: ("int2", "topk"),
}
STALL: float = Link.model_fields["stall"].default


def measured(size: argparse.Namespace, caps: dict[int, float], link: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), size, caps, link)
    print(caps, link.get("codec", "chosen"), found["stall"], found["steps_per_s"], flush=True)
    return found


def fixed(kind: str) -> dict[str, Any]:
    own = {key: value for key, value in LINK.items() if key != "choose"}
    return own | {"codec": {"kind": kind}}


def shown(found: dict[str, Any]) -> dict[str, float]:
    return {"stall": round(found["stall"], 4), "steps_per_s": round(found["steps_per_s"], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=0, help="of each training (200); a multiple of 50")
    parser.add_argument("--tiny", action="store_true", help="a small model and few steps: does it run?")
    size = parser.parse_args()
    use_own_code()
    give_sizes(size)
    caps: dict[str, Any] = {}
    with namespaces():
        free = measured(size, {0: 0.0}, fixed("none"))
        for cap, kinds in FIXED.items():
            each = {kind: measured(size, {0: cap}, fixed(kind)) for kind in kinds}
            own = measured(size, {0: cap}, LINK)
            fits = [kind for kind, one in each.items() if one["stall"] <= free["stall"] + STALL]
            caps[f"{cap:g}"] = {
                "fixed": {kind: shown(one) for kind, one in each.items()},
                "chooser": shown(own),
                "fits": fits[0] if fits else None,
                "chosen": dict(collections.Counter(own["codecs"]["a"][1:-1])),
            }
        third = size.steps // 3
        changed = measured(size, {0: 100.0, third: 10.0, 2 * third: 1.0}, LINK)
    interval = LINK["every"] // LINK["fragments"]
    changes = [third // interval, 2 * third // interval]
    messages = settled(changed["codecs"]["a"], [caps[cap]["fits"] for cap in ("10", "1")], changes)
    keep(
        "wan_fixed",
        {
            "no cap": shown(free),
            "caps_mbit": caps,
            "changed": {
                "codecs": changed["codecs"]["a"],
                "settled": [n if n is None else round(n / LINK["fragments"], 1) for n in messages],
            },
        },
        is_trial=size.tiny,
    )


if __name__ == "__main__":
    main()
