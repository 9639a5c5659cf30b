"""Effect of each of Titan's objectives on held-out text: the adversarial head beside a logistic regression on
bigrams, samples ranked by it, lengths of controlled text, prompts, memory, orders and distances.

python benchmarks/objectives.py [--steps 360] [--store DIR] [--tiny]      two to four hours

Trains Titan's teacher, which learns plain text first and then imitates it (`atelier titan`; resumable in
DIR). There the objectives with classes have one row in fifty, too few to learn from at this size. So the
teacher is then trained further, once for each of some aims, with most rows for one objective. All intervals
are 95 %.
"""

import argparse
import statistics
import sys
import tempfile
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
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from aims import AIMS
from heads import distant, relations, reordered
from intervals import auc, mean_of, resampled
from machine import keep
from study import Study, batches, imitated

from atelier.engine.config.batch import NOT_SCORED, PADDING
from atelier.engine.config.generation import GenerationAttributes, Sampling
from atelier.engine.config.objective.control import Control
from atelier.engine.config.objective.document import DocumentLM
from atelier.engine.data.control_prompt import prefix_of
from atelier.engine.data.datasets.natural import SIDES, Imitation
from atelier.engine.inference.sampling import continuation
from atelier.engine.io.machine import num_cores

LENGTHS = (16, 32, 64, 96, 128)  # that are asked for; rows of the control stage have room for all
MEMORY = 32  # tokens, as the teacher was trained
TEMPERATURES = (0.8, 0.5)  # of samples that are ranked: as natural text is, and where models loop


# the parts


def adversarial(study: Study, aim: str = "natural") -> dict[str, Any]:
    """AUC of the head and of a logistic regression on bigrams of tokens, on held-out paragraphs."""
    lines = imitated(study.imitations(aim), study.scratch)
    train, held_out = ([one for one in lines if one["split"] == split] for split in ("train", "held_out"))

    def texts(some: list[Imitation]) -> list[str]:
        return [" ".join(map(str, one[side])) for one in some for side in SIDES]

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
        [study.speaker.natural(one[side][: study.sequence - 1]) for one in held_out for side in SIDES]
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
    lines = imitated(study.only("imitations"), study.scratch)
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
            for way, wishes in (
                ("asked", GenerationAttributes(length=asked)),
                ("not asked", GenerationAttributes()),
            ):
                found[way].append((asked, produced(study, wishes, seed=1000 * asked + number)))

    def correlation(pairs: np.ndarray, chosen: np.ndarray) -> float:
        coefficient, _ = np.array(spearmanr(pairs[chosen, 0], pairs[chosen, 1]))
        return float(coefficient)

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


def produced(study: Study, wishes: GenerationAttributes, seed: int) -> int:
    """Tokens that come before the end, 256 at most."""
    prefix = prefix_of(wishes, study.vocabulary, first_prompt=0, num_prompts=0)
    end = study.vocabulary.end_id
    drawn = Sampling(max_tokens=48 if study.tiny else 256, temperature=0.8, seed=seed)
    return len([one for one in continuation(study.model, prefix.ids, drawn, [end], None) if one != end])


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
    """Loss of the rows that continue a document, with their memory and with the same tokens unseen: what so
    much more context brings.
    """
    rows = study.rows("document", DocumentLM(memory=MEMORY), study.only("tokens"))
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


PARTS: dict[str, dict[str, Any]] = {  # by the aim that the teacher has gone on with
    "": {"32 tokens of memory": memory},
    "reorder": {"reorder": reordered},
    "distance": {"distance": distant},
    "natural-short": {"adversarial, short": partial(adversarial, aim="natural-short")},
    "knowledge": {"relations": relations},
    "words": {"relations without their rows": relations},
    "natural": {"adversarial": adversarial, "repetition": ranked},
    "control": {"length": lengths, "control_loss": prompts},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=360)
    parser.add_argument("--store", type=Path, default=Path("objectives"))
    parser.add_argument("--threads", type=int, default=num_cores(), help="of each training")
    parser.add_argument("--tiny", action="store_true", help="a minute: tries the script, shows nothing")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # of this process: products of a few rows are no work for two
    with tempfile.TemporaryDirectory() as scratch:
        place, threads = chosen.store.resolve(), chosen.threads
        study = Study(place, chosen.steps, Path(scratch), threads=threads, tiny=chosen.tiny)
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
