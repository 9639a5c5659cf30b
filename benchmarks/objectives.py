"""What each of Titan's objectives brings, on held-out text: the adversarial head beside a logistic regression
on bigrams, samples it ranked, lengths that were asked for, prompts, memory, orders and distances.

python benchmarks/objectives.py [--steps 1500] [--store DIR] [--tiny]      an hour on two cores

Trains Titan's teacher with an assistant that imitates the text (`atelier titan`; resumable in DIR), where
the objectives with classes have one row in twenty. At this size that is too few for them to learn anything,
so the teacher then goes on three times, each time with most rows for some objectives. Every interval is one
of 95 %.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT), str(Path(__file__).parent)]

from aims import AIMS
from intervals import auc, mean_of, resampled
from machine import keep

from engine.artifact import Input, open_input
from engine.data.asking import prefix_of
from engine.data.rows.load import rows_of
from engine.data.rows.natural import IMITATIONS
from engine.data.windows import NOT_SCORED, PADDING
from engine.model.load import read_weights
from engine.sampling import continuation
from engine.scoring import label_nats
from engine.speaker import Speaker, read_speaker
from engine.spec.objective.control import Control
from engine.spec.objective.distance import Distance
from engine.spec.objective.document import DocumentLM
from engine.spec.objective.reorder import Reorder
from engine.spec.sampling import Sampling
from engine.spec.wishes import Wishes
from tests.engine.house import artifact

Batch = dict[str, np.ndarray]
LENGTHS = (16, 32, 64, 96, 128)  # that are asked for; rows of the control stage have room for all
TEMPERATURES = (0.8, 0.5)  # of samples that are ranked: as natural text is, and where models loop


class Study:
    """A trained teacher and what it was trained on."""

    def __init__(self, store: Path, steps: int, scratch: Path, *, tiny: bool) -> None:
        self.store, self.steps, self.scratch, self.tiny = store, steps, scratch, tiny
        self.sequence = 64 if tiny else 256
        self._train()
        self.teacher = self.artifact("model", "teacher")
        self.rng = np.random.default_rng(1)
        self.ask(self.teacher)

    def ask(self, model: Input) -> None:
        """What follows is asked of this model."""
        folder = self.scratch / Path(model.url).name
        folder.mkdir(exist_ok=True)
        self.speaker: Speaker = read_speaker(model, folder, torch.device("cpu"))
        self.model, self.vocabulary = self.speaker.model, self.speaker.vocabulary

    def aim(self, name: str) -> None:
        """What follows is asked of the teacher that has gone on with this aim."""
        place = self.store / "aims" / name
        if not (place / "model" / "record.json").exists():
            print(f"{name}: the teacher goes on", flush=True)
            self._go_on(name, place)
            files = {path.name: path.read_bytes() for path in (place / "out").iterdir()}
            files.pop("body.json")
            artifact(place / "model", "model", files)
        self.ask(open_input(str(place / "model")))
        self.sequence = 64 if self.tiny else AIMS[name].sequence

    def found(self, aim: str, name: str, part: Callable[["Study"], dict[str, Any]]) -> dict[str, Any]:
        """What the part finds; of an earlier call with this store, if it came so far."""
        place = self.store / "found" / f"{name}.json"
        if not place.exists():
            if aim:
                self.aim(aim)
            numbers = part(self)
            print(f"{name}: {json.dumps(numbers)}", flush=True)
            place.parent.mkdir(exist_ok=True)
            place.write_text(json.dumps(numbers))
        return json.loads(place.read_text())

    def _go_on(self, name: str, place: Path) -> None:
        aim = AIMS[name]
        steps, sequence = (8, 64) if self.tiny else (aim.steps, aim.sequence)
        objective = {
            kind: {"kind": kind, "weight": share, "rows": share} | aim.settings.get(kind, {})
            for kind, share in aim.shares.items()
        }
        kinds = {"natural": "imitations", "control": "attributes"}
        streams = [
            {"input": kinds.get(kind, "tokens"), "kind": kind, "weight": share, "rows": objective[kind]}
            for kind, share in aim.shares.items()
        ]
        optim = {"kind": "adamw", "lr": aim.lr, "schedule": {"kind": "wsd", "warmup": 50, "decay": 0.4}}
        _, model = read_weights(self.teacher, self.scratch)
        role = {"model": model.model_dump(mode="json"), "objective": objective, "optim": optim}
        fingerprint = hashlib.sha256(str(place).encode()).hexdigest()
        segment = {"fingerprint": fingerprint, "url": str(place / "trajectory"), "start": 0, "end": steps}
        member = {"role": role, "segments": [segment], "init": "teacher", "output": "out"}
        train = {
            "steps": steps, "global_batch": 8 if self.tiny else aim.rows, "sequence": sequence,
            "checkpoint_every": 200, "eval_every": 200, "eval_sequences": 32,
        }  # fmt: skip
        inputs = {kind: self.only(kind).url for kind in ("tokens", "tokenizer", "imitations", "attributes")}
        run = {
            "schema": 1, "task": "train", "version": 1,
            "config": {"trainings": [{"members": {"model": member}, "streams": streams, "train": train}]},
            "inputs": inputs | {"teacher": self.teacher.url}, "outputs": {"out": str(place / "out")},
            "scratch": str(place / "scratch"), "seed": 1,
            "layout": {"shard": 1, "threads": os.cpu_count() or 1, "device": "cpu"},
        }  # fmt: skip
        place.mkdir(parents=True, exist_ok=True)
        path = place / "run.json"
        path.write_text(json.dumps(run))
        command = [sys.executable, "-W", "ignore", "-m", "engine.train", str(path)]
        subprocess.run(command, cwd=PROJECT, stdout=subprocess.DEVNULL, check=True)

    def _train(self) -> None:
        words = [
            "titan", f"experiment={'tiny' if self.tiny else 'laptop'}", "tracker=none",
            "~roles.student_a", "~roles.student_b", "score.controls=false", "finetune.draws=1",
            "finetune.epochs=1",
        ]  # fmt: skip
        if not self.tiny:
            words += [
                f"train.steps={self.steps}", "ahead.steps=256",
                "imitate.paragraphs=3000", "imitate.tokens=128",
            ]  # fmt: skip
        env = os.environ | {"ATELIER_ROOT": str(self.store)}
        subprocess.run([sys.executable, "-m", "flows", *words], env=env, cwd=PROJECT, check=True)

    def artifact(self, kind: str, name: str) -> Input:
        """The newest one of this name."""
        found = [open_input(str(place.parent)) for place in self.store.glob(f"{kind}/*/record.json")]
        named = [each for each in found if each.record.name == name]
        return max(named, key=lambda each: each.record.provenance["started"])

    def only(self, kind: str) -> Input:
        [place] = self.store.glob(f"{kind}/*/record.json")
        return open_input(str(place.parent))

    def rows(self, kind: str, spec: Any, source: Input) -> Any:
        return rows_of(kind).open_rows(
            spec, source, self.vocabulary, self.scratch, split="held_out", sequence=self.sequence, seed=1
        )

    @torch.inference_mode()
    def classes(self, name: str, rows: Any, most: int) -> tuple[np.ndarray, np.ndarray]:
        """(logits [N, C], classes [N]) of the first rows."""
        logits, classes = [], []
        for batch in batches(rows, most):
            hidden_BD = self.model(tensors(batch)).hidden[:, 0]
            logits.append(self.model.class_logits(hidden_BD, name).float().numpy())
            classes.append(batch["classes_B"])
        return np.concatenate(logits), np.concatenate(classes)

    def nats(self, batch: Batch) -> np.ndarray:
        """Mean nats a label of each row [B], NaN where a row has none."""
        nats_N = label_nats(self.model, tensors(batch)).numpy()
        is_label_BT = batch["labels_BT"] != NOT_SCORED
        sums_B = np.bincount(np.nonzero(is_label_BT)[0], nats_N, minlength=len(is_label_BT))
        return sums_B / np.where(is_label_BT.any(1), is_label_BT.sum(1), np.nan)


def batches(rows: Any, most: int) -> Iterator[Batch]:
    number = min(most, len(rows))
    for first in range(0, number, 16):
        places = np.arange(first, min(first + 16, number))
        yield rows.batch(places, np.zeros_like(places))


def tensors(batch: Batch) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in batch.items()}


# the parts


def adversarial(study: Study) -> dict[str, Any]:
    """AUC of the head and of a logistic regression on bigrams of tokens, on held-out paragraphs."""
    lines = [
        json.loads(line)
        for line in study.only("imitations").file(IMITATIONS, study.scratch).read_bytes().splitlines()
    ]
    train, held_out = ([one for one in lines if one["split"] == split] for split in ("train", "held_out"))

    def texts(some: list[dict[str, Any]]) -> list[str]:
        return [" ".join(map(str, one[side])) for one in some for side in ("generated", "original")]

    bigrams = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\S+", sublinear_tf=True)
    features = bigrams.fit_transform(texts(train))
    classes = np.tile([0, 1], len(train))
    folds = GroupKFold(5).split(features, classes, np.repeat(np.arange(len(train)), 2))
    search = GridSearchCV(
        LogisticRegression(max_iter=2000), {"C": [0.1, 1.0, 10.0, 100.0]}, cv=list(folds), scoring="roc_auc"
    )
    search.fit(features, classes)
    rival_N = search.decision_function(bigrams.transform(texts(held_out)))
    head_N = np.array(
        [
            study.speaker.natural(one[side][: study.sequence - 1])
            for one in held_out
            for side in ("generated", "original")
        ]
    )
    classes_N = np.tile([0, 1], len(held_out))

    def of(scores: np.ndarray, pairs: np.ndarray) -> float:
        both = np.stack([2 * pairs, 2 * pairs + 1], 1).ravel()
        return auc(scores[both], classes_N[both])

    number = len(held_out)
    return {
        "held_out_pairs": number,
        "head_auc": round(auc(head_N, classes_N), 4),
        "head_interval": resampled(study.rng, number, lambda i: of(head_N, i)),
        "bigrams_auc": round(auc(rival_N, classes_N), 4),
        "bigrams_interval": resampled(study.rng, number, lambda i: of(rival_N, i)),
        "head_minus_bigrams_interval": resampled(study.rng, number, lambda i: of(head_N, i) - of(rival_N, i)),
        "bigrams_C": search.best_params_["C"],
    }


def repeated(ids: list[int]) -> float:
    """The share of 3-grams that were there before (Welleck et al., 1908.04319, seq-rep-n)."""
    grams = [tuple(ids[i : i + 3]) for i in range(len(ids) - 2)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def ranked(study: Study) -> dict[str, Any]:
    """Repetition of the best of eight and, on average, of all eight, over beginnings of held-out paragraphs,
    and of how the paragraphs really go on.
    """
    lines = [
        json.loads(line)
        for line in study.only("imitations").file(IMITATIONS, study.scratch).read_bytes().splitlines()
    ]
    lines = [one for one in lines if one["split"] == "held_out"][: 4 if study.tiny else 150]
    most = 32 if study.tiny else 96
    natural = [repeated(one["original"][one["prefix"] :][:most]) for one in lines]
    result: dict[str, Any] = {"natural": mean_of(np.array(natural))}
    for temperature in TEMPERATURES:
        pairs = []
        for number, one in enumerate(lines):
            prompt = study.vocabulary.decode(one["original"][: one["prefix"]])
            drawn = Sampling(max_tokens=most, temperature=temperature, seed=number, best_of=8)
            eight = study.speaker.ranked(prompt, drawn)
            repetitions = [repeated(study.vocabulary.encode(candidate.text)) for candidate in eight]
            pairs.append([statistics.mean(repetitions), repetitions[0]])
        random_N, ranked_N = np.array(pairs).T
        result[f"temperature {temperature}"] = {
            "random": mean_of(random_N), "ranked": mean_of(ranked_N),
            "ranked - random": mean_of(ranked_N - random_N),
        }  # fmt: skip
    return result


def lengths(study: Study) -> dict[str, Any]:
    """Rank correlation of the length that was asked for with what came, and of the same draws unasked."""
    found: dict[str, list[tuple[int, int]]] = {"asked": [], "not asked": []}
    for asked in LENGTHS:
        for number in range(2 if study.tiny else 16):
            for way, wishes in (("asked", Wishes(length=asked)), ("not asked", Wishes())):
                found[way].append((asked, produced(study, wishes, seed=1000 * asked + number)))

    def correlation(pairs: np.ndarray, chosen: np.ndarray) -> float:
        return float(spearmanr(pairs[chosen, 0], pairs[chosen, 1]).statistic)

    result: dict[str, Any] = {}
    for way, pairs in found.items():
        array = np.array(pairs)
        every = np.arange(len(array))
        result[way] = {
            "correlation": round(correlation(array, every), 4),
            "interval": resampled(study.rng, len(array), lambda i, a=array: correlation(a, i)),
            "median_of": {
                str(asked): statistics.median(n for wanted, n in pairs if wanted == asked)
                for asked in LENGTHS
            },
        }
    return result


def produced(study: Study, wishes: Wishes, seed: int) -> int:
    """Tokens that come before the end, 256 at most."""
    prefix = prefix_of(wishes, study.vocabulary, first_prompt=0, num_prompts=0)
    end = study.vocabulary.end_id
    drawn = Sampling(max_tokens=48 if study.tiny else 256, temperature=0.8, seed=seed)
    return len([one for one in continuation(study.model, prefix.ids, drawn, end, None) if one != end])


def prompts(study: Study) -> dict[str, Any]:
    """Loss of paragraphs behind all their attributes and behind none, by paragraph."""
    source, most = study.only("attributes"), 64 if study.tiny else 1000
    told, untold = (study.rows("control", Control(asked=asked, dropped=0.0), source) for asked in (1.0, 0.0))
    pairs = []
    for with_them, without in zip(batches(told, most), batches(untold, most), strict=True):
        counts = [(batch["labels_BT"] != NOT_SCORED).sum(1) for batch in (with_them, without)]
        nats = [study.nats(batch) for batch in (with_them, without)]
        pairs.append(np.stack(nats, 1)[counts[0] == counts[1]])  # those that both rows hold whole
    with_N, without_N = np.concatenate(pairs).T
    return {
        "with": mean_of(with_N), "without": mean_of(without_N), "with - without": mean_of(with_N - without_N),
    }  # fmt: skip


def memory(study: Study) -> dict[str, Any]:
    """Loss of the rows that continue a document, with their memory and with the same tokens unseen."""
    rows = study.rows("document", DocumentLM(), study.only("tokens"))
    pairs = []
    for batch in batches(rows, 200 if study.tiny else 1500):
        has_it_B = batch["memory_BT"].any(1)
        if not has_it_B.any():
            continue
        batch = {name: values[has_it_B] for name, values in batch.items()}
        blind = dict(batch)
        is_memory_BT = batch["memory_BT"] > 0
        blind["documents_BT"] = np.where(is_memory_BT, PADDING, batch["documents_BT"])
        blind["memory_BT"] = np.zeros_like(batch["memory_BT"])
        pairs.append(np.stack([study.nats(batch), study.nats(blind)], 1))
    on_N, off_N = np.concatenate(pairs).T
    return {"on": mean_of(on_N), "off": mean_of(off_N), "on - off": mean_of(on_N - off_N)}


def accuracy(study: Study, name: str, spec: Any, chance: float) -> dict[str, Any]:
    """Of the class head on held-out rows, beside what one knows without reading."""
    rows = study.rows(name, spec, study.only("tokens"))
    logits_NC, classes_N = study.classes(name, rows, 100 if study.tiny else 2000)
    return mean_of((logits_NC.argmax(1) == classes_N).astype(float)) | {"chance": round(chance, 4)}


def chance_of_orders(max_segments: int) -> float:
    """A row shows of how many segments it is; every order is as frequent as any other."""
    return max_segments / Reorder(max_segments=max_segments).num_classes


PARTS: dict[str, dict[str, Any]] = {  # by the aim that the teacher has gone on with
    "": {"document_memory": memory},
    "natural": {"adversarial": adversarial, "repetition": ranked},
    "control": {"length": lengths, "control_loss": prompts},
    "distance": {"distance": partial(accuracy, name="distance", spec=Distance(), chance=1 / 3)},
    "reorder": {
        "reorder": partial(
            accuracy, name="reorder", spec=Reorder(), chance=chance_of_orders(Reorder().max_segments)
        )
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--store", type=Path, default=Path("objectives"))
    parser.add_argument("--tiny", action="store_true", help="a minute: tries the script, shows nothing")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # of this process: products of a few rows are no work for two
    with tempfile.TemporaryDirectory() as scratch:
        study = Study(chosen.store.resolve(), chosen.steps, Path(scratch), tiny=chosen.tiny)
        numbers: dict[str, Any] = {
            "steps": chosen.steps,
            "further steps": {name: f"{aim.steps} of {aim.rows} rows" for name, aim in AIMS.items()},
        }
        for aim, parts in PARTS.items():
            for name, part in parts.items():
                numbers[name] = study.found(aim, name, part)
    keep("objectives", numbers, is_trial=chosen.tiny)


if __name__ == "__main__":
    main()
