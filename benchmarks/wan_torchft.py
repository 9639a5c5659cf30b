"""A site of benchmarks/wan.py that trains with torchft's streaming DiLoCo (0.2, meta-pytorch/torchft): the
same model, rows, inner and outer optimiser, 50 steps in five fragments, each with 9 steps until it is waited
for (torchft allows at most one less than between two fragments); float32, by gloo.

python benchmarks/wan_torchft.py SITE OWN_ADDRESS FIRST_ADDRESS STEPS MODEL ROWS SEQUENCE     prints seconds
"""

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torchft.coordination import LighthouseServer  # pyright: ignore  # a peer, not a dependency
from torchft.local_sgd import DiLoCo  # pyright: ignore
from torchft.manager import Manager  # pyright: ignore
from torchft.process_group import ProcessGroupGloo  # pyright: ignore

from atelier.engine.config.model.gpt import GPT
from atelier.engine.model.load import build

PORT, PATIENCE = 7950, timedelta(minutes=20)
EVERY, DELAY = 50, 9


def main() -> None:
    site, own, first, steps, model, rows, sequence = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    spec = GPT(**json.loads(model))
    body: Any = build(spec)
    for weight in body.parameters():
        torch.nn.init.normal_(weight, std=0.02) if weight.dim() > 1 else torch.nn.init.ones_(weight)
    fragments = [torch.nn.ModuleList([block]) for block in body.blocks]
    fragments[0].append(body.embed)
    fragments[-1].append(body.norm)
    inner = torch.optim.AdamW(body.parameters(), lr=1e-3)
    outer = [torch.optim.SGD(each.parameters(), lr=0.7, momentum=0.9, nesterov=True) for each in fragments]
    lighthouse = LighthouseServer(f"{own}:{PORT}", min_replicas=2) if own == first else None
    store = TCPStore(own, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=PATIENCE),
        load_state_dict=lambda _: None,
        state_dict=dict,
        min_replica_size=2,
        use_async_quorum=False,
        init_sync=False,  # both begin with the same seed
        timeout=PATIENCE,
        quorum_timeout=PATIENCE,
        connect_timeout=PATIENCE,
        rank=0,
        world_size=1,
        store_addr=own,
        store_port=store.port,
        lighthouse_addr=f"http://{first}:{PORT}",
        replica_id=site,
        hostname=own,
    )
    generator = torch.Generator().manual_seed(ord(site[0]))
    times = []
    with DiLoCo(manager, fragments, inner, outer, sync_every=EVERY, fragment_sync_delay=DELAY):
        for _ in range(int(steps)):
            tokens_BT = torch.randint(spec.tokens, (int(rows), int(sequence)), generator=generator)
            batch = {
                "tokens_BT": tokens_BT, "positions_BT": torch.arange(int(sequence)).expand(int(rows), -1),
                "documents_BT": torch.zeros_like(tokens_BT),
            }  # fmt: skip
            logits_BTV = body(batch).hidden @ body.head_weight.T
            loss = torch.nn.functional.cross_entropy(
                logits_BTV.flatten(0, 1), tokens_BT.roll(-1, 1).flatten()
            )
            inner.zero_grad()
            loss.backward()
            inner.step()
            times.append(time.perf_counter())
    assert manager.current_step() == int(steps) // (EVERY // len(fragments)), "an exchange has failed"
    print(json.dumps({"times": times}), flush=True)
    time.sleep(2)  # the other site still asks this one
    del lighthouse
    os._exit(0)


if __name__ == "__main__":
    main()
