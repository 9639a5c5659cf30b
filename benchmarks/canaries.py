"""Test whether private training hides single rows: canaries in the text of an adapter, with noise and
without.

nice -n 19 python benchmarks/canaries.py [--seeds 3] [--noise 2.0]

A low-rank adapter of a pretrained model is tuned on 256 rows of a noisy cycle. Among them are 20 canaries,
rows of 16 random tokens, each once an epoch. The exposure of a canary (1802.08232) is log2 of the number of
candidates minus log2 of its rank among them, by the loss of its last 8 tokens after its first 8. Candidates
have the same first 8 tokens and other last ones, drawn in the same way. If the model has never met a canary,
its rank is uniform, and the exposure 1.44 on average; 20 such canaries are measured too. `interval` is the 95
% interval of the mean over canaries and seeds, by resampling seeds and the canaries in them. Results at this
size may not hold at another.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from intervals import RESAMPLES
from machine import keep, use_own_code

from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.role import Trainable
from atelier.engine.config.schedule import Schedule
from atelier.engine.extensions.privacy.config.train.privacy import Privacy
from atelier.engine.model.contract import Model
from atelier.engine.model.load import build
from tests.engine.trainings import TrainingSetup, artifact, role, tokens, train

VOCAB, ROW, KNOWN = 64, 16, 8  # tokens; of a row; of these the first, which candidates share
CANARIES, ROWS, BATCH, EPOCHS = 20, 256, 32, 30
CANDIDATES = 1000
MODEL = GPT(num_layers=2, hidden=64, num_heads=4, vocab=VOCAB)
ADAPTER = Trainable(kind="lora", rank=8)
CLIP = 0.5


def cycle(draw: np.random.Generator, rows: int) -> np.ndarray:
    """[rows, ROW]: a cycle of larger steps than the pretraining's: something to learn."""
    first = draw.integers(0, VOCAB, (rows, 1))
    return (first + np.cumsum(draw.integers(5, 8, (rows, ROW)), 1)) % VOCAB


def text_of(folder: Path, rows: np.ndarray, held_out: np.ndarray) -> str:
    """A tokens artifact in which each row is a document, and so a row of the training."""
    files = {}
    for split, found in (("train", rows), ("held_out", held_out)):
        ids = np.append(found.flatten(), 0).astype("<u2")  # the last window needs a token after it
        ends = np.append(np.arange(ROW, found.size + 1, ROW), found.size + 1).astype("<i8")
        place = folder / f"{split}.npy"
        folder.mkdir(parents=True, exist_ok=True)
        np.save(place, ends, allow_pickle=False)
        files |= {f"{split}.bin": ids.tobytes(), f"{split}.ends.npy": place.read_bytes()}
    return artifact(folder, "tokens", files, vocab=VOCAB)


def losses(model: Model, rows: torch.Tensor) -> torch.Tensor:
    """Of each token of each row but the first, nats."""
    count = len(rows)
    batch = {
        "tokens_BT": rows[:, :-1],
        "positions_BT": torch.arange(ROW - 1).expand(count, -1),
        "documents_BT": torch.zeros(count, ROW - 1, dtype=torch.long),
        "labels_BT": rows[:, 1:],
    }
    with torch.no_grad():
        logits_BTV = model(batch).hidden @ model.head_weight.T
    return F.cross_entropy(logits_BTV.transpose(1, 2), rows[:, 1:], reduction="none")


def model_of(weights: Path) -> Model:
    model = build(MODEL)
    state = load_file(weights)
    model.load_state_dict({name: one.float() for name, one in state.items()}, strict=False)
    return model


def exposures(setup: TrainingSetup, canaries: np.ndarray, draw: np.random.Generator) -> list[float]:
    """Of each canary, bits."""
    model, found = model_of(setup.output("m") / "model.safetensors"), []
    for canary in canaries:
        others = draw.integers(0, VOCAB, (CANDIDATES, ROW))
        others[:, :KNOWN] = canary[:KNOWN]
        both = torch.from_numpy(np.concatenate([canary[None], others])).long()
        scores = losses(model, both)[:, KNOWN - 1 :].sum(1)
        rank = 1 + int((scores[1:] < scores[0]).sum())
        found.append(float(np.log2(CANDIDATES + 1) - np.log2(rank)))
    return found


def pretrained(folder: Path, seed: int) -> str:
    """A model of the cycle with small steps; its URL."""
    setup = TrainingSetup(folder, {"tokens": tokens(folder / "text", num_tokens=40_000, seed=seed)})
    how = train(300, global_batch=16, micro_batch=16, sequence=ROW, seed=seed, checkpoint_every=300)
    setup.train(setup.training({"m": role(shape=MODEL, lr=3e-3)}, how))
    return setup.as_input("m")


def tuned(folder: Path, base: str, text: str, privacy: Privacy, seed: int) -> TrainingSetup:
    setup = TrainingSetup(folder, {"tokens": text, "init": base})
    optim = AdamW(lr=1e-2, schedule=Schedule(kind="constant", warmup=8), weight_decay=0.0)
    spec = role(shape=MODEL, trainable=ADAPTER, init="init").model_copy(update={"optim": optim})
    steps = EPOCHS * ROWS // BATCH
    how = train(
        steps,
        global_batch=BATCH,
        micro_batch=1 if privacy.is_on else BATCH,
        sequence=ROW,
        seed=seed,
        checkpoint_every=steps,
        privacy=privacy,
    )
    setup.train(setup.training({"m": setup.member("m", spec, steps, init="init")}, how))
    return setup


def resampled_means(bits: np.ndarray, draw: np.random.Generator, chosen: np.ndarray) -> np.ndarray:
    """Means of resamples of the canaries in the `chosen` seeds [resamples, seeds]."""
    number = bits.shape[1]
    return np.array([np.mean([bits[s][draw.integers(0, number, number)] for s in some]) for some in chosen])


def interval(means: np.ndarray) -> list[float]:
    return [round(float(q), 3) for q in np.quantile(means, [0.025, 0.975])]


def compared(planted: np.ndarray, never: np.ndarray) -> dict[str, Any]:
    """Exposures [seeds, canaries] of both, and their difference."""
    draw, seeds = np.random.default_rng(0), len(planted)
    chosen = draw.integers(0, seeds, (RESAMPLES, seeds))
    means = [resampled_means(bits, draw, chosen) for bits in (planted, never)]
    low, high = interval(means[0])
    return {
        "planted": summary(planted, means[0]),
        "never planted": summary(never, means[1]),
        "difference": interval(means[0] - means[1]),
        "planted covers never planted": bool(low <= never.mean() <= high),
    }


def summary(bits: np.ndarray, means: np.ndarray) -> dict[str, Any]:
    return {
        "mean": round(float(bits.mean()), 3),
        "interval": interval(means),
        "most": round(float(bits.max()), 3),
        "by_seed": [round(float(row.mean()), 3) for row in bits],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--noise", type=float, default=2.0)
    given = parser.parse_args()
    use_own_code()
    torch.set_num_threads(1)
    arms = {
        "with noise": Privacy(kind="record", clip=CLIP, noise=given.noise),
        "clipped, without noise": Privacy(kind="record", clip=CLIP, noise=0.0),
        "plain": Privacy(),
    }
    bits: dict[str, dict[str, list[list[float]]]] = {
        arm: {"planted": [], "never planted": []} for arm in arms
    }
    loss: dict[str, list[float]] = {arm: [] for arm in arms}
    claims: list[Any] = []
    before: list[float] = []  # held-out losses of the pretrained models
    for seed in range(1, given.seeds + 1):
        draw = np.random.default_rng(seed)
        planted, never = (draw.integers(0, VOCAB, (CANARIES, ROW)) for _ in range(2))
        rows = draw.permutation(np.concatenate([cycle(draw, ROWS - CANARIES), planted]))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            held_out = cycle(draw, 64)
            text = text_of(folder / "tuned", rows, held_out)
            base = pretrained(folder / "base", seed)
            found = losses(model_of(folder / "base/outputs/m/model.safetensors"), torch.from_numpy(held_out))
            before.append(round(float(found.mean()), 4))
            for place, (arm, privacy) in enumerate(arms.items()):
                setup = tuned(folder / str(place), base, text, privacy, seed)
                told = setup.summary("m")
                loss[arm].append(round(told["eval_loss"], 4))
                if arm == "with noise":
                    claims.append(told["privacy"])
                ranks = np.random.default_rng(seed + 1000)
                bits[arm]["planted"].append(exposures(setup, planted, ranks))
                bits[arm]["never planted"].append(exposures(setup, never, ranks))
    cases: dict[str, Any] = {}
    for arm in arms:
        both = (np.array(bits[arm][what]) for what in ("planted", "never planted"))
        cases[arm] = {"exposure": compared(*both), "held_out_loss": loss[arm]}
    sizes = {
        "canaries": CANARIES,
        "rows": ROWS,
        "batch": BATCH,
        "epochs": EPOCHS,
        "times_a_canary": EPOCHS,
        "candidates": CANDIDATES,
        "untuned_held_out_loss": before,
        "params": MODEL.num_params(),
        "rank": ADAPTER.rank,
    }
    keep("canaries", sizes | {"seeds": given.seeds, "claimed": claims[0], "cases": cases})


if __name__ == "__main__":
    main()
