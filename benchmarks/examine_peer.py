"""The side of benchmarks/examine.py that needs lm-eval: python benchmarks/examine_peer.py order.json

Runs in an interpreter that has lm-eval, and for speed also torch and Atelier's dependencies.

  theirs   lm-eval's answers to tasks: of each question a list of [log-likelihood, is greedy], or its text
  speed    CPU seconds of lm-eval and of Atelier in one process, warm, without loading, in rotated order
"""

import io
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}

import torch
from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]
from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]
from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

from atelier.engine.config.exam import Examine, ExamineConfig
from atelier.engine.config.parallel import Parallel
from atelier.engine.data.asked import PosedSet
from atelier.engine.examine import Examiner
from atelier.engine.inference.opened import read_generator
from atelier.engine.io.artifact import open_input
from atelier.engine.io.process import Progress
from atelier.engine.parallel.gang import start_gang

BATCHES = (1, 4, 16, 64)
Order = dict[str, Any]


def language_model(order: Order, batch: int = 16) -> HFLM:
    return HFLM(
        pretrained=order["export"],
        device="cpu",
        batch_size=batch,
        dtype=order["dtype"],
        max_length=order["sequence"],
        softmax_dtype="float32",
    )


def theirs(order: Order) -> dict[str, Any]:
    found = simple_evaluate(
        model=language_model(order),
        tasks=order["tasks"],
        task_manager=TaskManager(include_path=order["folder"], include_defaults=False),
        bootstrap_iters=0,
    )
    assert found is not None
    answers: dict[str, Any] = {}
    for task, samples in found["samples"].items():
        lines = sorted(samples, key=lambda line: line["doc_id"])
        answers[task] = [line["filtered_resps"] for line in lines]
    return {"answers": answers}


def instances(posed: PosedSet) -> tuple[str, list[Instance]]:
    """lm-eval's requests for a set, and the method that answers them."""
    kind = posed.settings.kind
    asked: list[tuple[Any, ...]] = []
    for one in posed.questions:
        if kind == "text":
            asked.append((one["targets"][0],))
        elif kind == "free":
            until = {"until": list(posed.settings.until), "max_gen_toks": posed.settings.max_tokens}
            asked.append((posed.context(one), {**until, "do_sample": False}))
        else:
            asked += posed.pairs(one, None)
    method = {"text": "loglikelihood_rolling", "free": "generate_until"}.get(kind, "loglikelihood")
    return method, [Instance(request_type=method, doc={}, arguments=each, idx=0) for each in asked]  # pyright: ignore[reportArgumentType]


def cpu_seconds(act: Callable[[], object]) -> float:
    begin = time.process_time()
    act()
    return time.process_time() - begin


def speed(order: Order) -> dict[str, Any]:
    """Requests per CPU-second: medians of rounds; lm-eval at its best batch of a first round of all."""
    torch.set_num_threads(1)
    scratch, lm = Path(order["scratch"]), language_model(order)
    gang = start_gang(Parallel(shard=1, threads=1, device="cpu"), "")
    settings = Examine(sequence=order["sequence"], overlap=0.0)
    model = open_input(order["model"])
    speaker = read_generator(model, scratch, gang.device)
    config = ExamineConfig(examine=settings, threads=1)
    examiner = Examiner(speaker.model, speaker.vocabulary, config, Progress(io.StringIO()))
    found: dict[str, Any] = {}
    for kind, url in order["sets"].items():
        whole = PosedSet.of(open_input(url), scratch)
        posed = PosedSet(whole.settings, whole.questions[: order["rows"]], whole.shots, whole.url)
        method, asked = instances(posed)

        def peer(batch: int, method: str = method, asked: list[Instance] = asked) -> None:
            lm.batch_size_per_gpu = batch
            getattr(lm, method)(asked, disable_tqdm=True)

        def own(posed: PosedSet = posed) -> None:
            examiner.lines(posed)

        for warm in (lambda: peer(BATCHES[-1]), own):
            warm()
        first = {batch: cpu_seconds(lambda batch=batch: peer(batch)) for batch in BATCHES}
        best = min(first, key=first.__getitem__)
        seconds: dict[str, list[float]] = {"atelier": [], "lm-eval": []}
        acts = [("atelier", own), ("lm-eval", lambda best=best: peer(best))]
        for number in range(order["rounds"]):
            for name, act in acts if number % 2 else acts[::-1]:
                seconds[name].append(cpu_seconds(act))
        rates = {name: round(len(asked) / median(each), 1) for name, each in seconds.items()}
        found[kind] = {
            "requests": len(asked),
            "requests per CPU-second": rates,
            "times lm-eval": round(median(seconds["lm-eval"]) / median(seconds["atelier"]), 2),
            "lm-eval's batch": best,
            "lm-eval's CPU seconds by batch": {str(size): round(one, 3) for size, one in first.items()},
        }
        print(kind, json.dumps(found[kind]), flush=True)
    return found


def main() -> None:
    order = json.loads(Path(sys.argv[1]).read_text())
    verb = {"theirs": theirs, "speed": speed}[order["verb"]]
    Path(order["result"]).write_text(json.dumps(verb(order)))


if __name__ == "__main__":
    main()
