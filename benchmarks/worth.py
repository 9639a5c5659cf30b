"""Is curation worth it? Held-out loss of equal models, trained on equally many tokens of a corpus with
planted junk and near-copies: as it is, curated by single filters, by several, and without what was planted.

python benchmarks/worth.py [--text stdlib-prose] [--seeds 1 2 3] [--store DIR] [--tiny]   half an hour a text

Half of the corpus is the default text (or another source), 30 % is junk of six kinds, 20 % are near-copies of
40 documents (planted.py), drawn anew for each seed. The held-out text is clean and the same for all, and so
is the tokenizer.
"""

import argparse
import json
import random
import statistics
from collections import Counter, defaultdict
from typing import Any

from machine import keep
from parts import Parts, interval, kept_seeds, options
from planted import planted

from atelier.engine.config.curation import Curation
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.run_file import RunFile
from atelier.engine.data.corpus import DOCUMENTS, HELD_OUT, corpus_lines
from atelier.engine.io.artifact import open_input
from atelier.engine.prepare import prepare
from tests.engine.data.curation.pipeline import Pipeline
from tests.engine.trainings import artifact

GOPHER = {
    "repetition": {"kind": "gopher_repetition"},
    "gopher": {"kind": "gopher_quality", "min_alphabetic_words": 0.6},  # as in conf/data/curated.yaml
}
LEARNED = {"quality": {"positives": ("good",), "negatives": ("main",)}, "filtered": ("main",)}
SHORT = {"length": {"kind": "length", "min_chars": 200}}
QUALITY = {"quality": {"kind": "quality"}}
WAYS: dict[str, dict[str, Any] | None] = {
    "as it is": None,
    "near-copies": {},
    "length": {"filters": SHORT},
    "gopher_repetition": {"filters": {"repetition": GOPHER["repetition"]}},
    "gopher_quality": {"filters": {"gopher": GOPHER["gopher"]}},
    "c4": {"filters": {"c4": {"kind": "c4"}}},
    "fineweb": {"filters": {"fineweb": {"kind": "fineweb"}}},
    "symbols": {"filters": {"symbols": {"kind": "symbols"}}},
    "language": {"filters": {"language": {"kind": "language", "languages": ["en"]}}},
    "quality": {"filters": QUALITY} | LEARNED,
    "near-copies, quality": {"filters": QUALITY, "priority": ("good",)} | LEARNED,
    "curated": {"filters": SHORT | GOPHER},
    "nothing planted": None,
}
COPIES_TOO = ("near-copies", "near-copies, quality", "curated")  # the others keep near-copies
GOOD = 0.05  # share of the clean documents that are named as good text


class Worth(Parts):
    """The clean corpus and its tokenizer, and the corpora that the ways leave."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        super().__init__(chosen, corpus_words=[f"data.source={chosen.text}"])
        lines = list(
            corpus_lines(open_input(str(next((self.store / "atelier" / "corpus").glob("*")))), self.store)
        )
        self.held_out = [dict(line) for line in lines if line["split"] == HELD_OUT]
        self.clean = [line["text"] for line in lines if line["split"] != HELD_OUT]
        self.model = GPT(num_layers=2, hidden=128, num_heads=4, num_kv_heads=2, vocab=self.vocab)

    def seed(self, seed: int) -> dict[str, Any]:
        """By way: held-out loss, and the share of the bytes of each kind of document that is kept."""
        whole = planted(self.clean[:60] if self.tiny else self.clean, seed)
        texts = {
            "as it is": whole,
            "nothing planted": [each for each in whole if each.kind == "clean"],
        }
        kinds = {each.text: each.kind for each in whole}
        result: dict[str, Any] = {}
        for way, curation in WAYS.items():
            if curation is None:
                kept = [each.text for each in texts[way]]
            else:
                kept = self._curated(seed, way, curation, [each.text for each in whole])
            self.inputs["tokens"] = self._tokens(seed, way, kept)
            part = self.part(name_of(way), seed, {"model": self.role(self.model, "model")})
            result[way] = {"loss": part["loss"]["model"], "kept": shares(kept, kinds)}
            print(f"seed {seed}: {way}: {result[way]}", flush=True)
        return result

    def _curated(self, seed: int, way: str, curation: dict[str, Any], texts: list[str]) -> list[str]:
        """The texts that are left, of the training's source."""
        folder = self.store / f"seed-{seed}" / "curated" / name_of(way)
        done = folder / "kept.jsonl"
        if not done.exists():
            folder.mkdir(parents=True, exist_ok=True)
            sources = {"main": texts}
            if "quality" in curation:
                rng = random.Random(seed)
                sources["good"] = rng.sample(self.clean, max(4, int(GOOD * len(self.clean))))
            for name, own in sources.items():
                (folder / name).mkdir(exist_ok=True)
                lines = [json.dumps({"text": text}) + "\n" for text in own]
                (folder / name / "texts.jsonl").write_text("".join(lines))
            copies = {} if way in COPIES_TOO else {"deduplicate": None}
            pipeline = Pipeline(
                folder, {name: folder / name for name in sources}, Curation.model_validate(curation | copies)
            ).run()
            kept = [*pipeline.lines("main"), *(pipeline.lines("good") if curation.get("priority") else [])]
            done.write_text("".join(json.dumps(line["text"]) + "\n" for line in kept))
        return [json.loads(line) for line in done.read_text().splitlines()]

    def _tokens(self, seed: int, way: str, texts: list[str]) -> str:
        """Tokens of these texts for training, and of the clean held-out ones."""
        folder = self.store / f"seed-{seed}" / "tokens" / name_of(way)
        if not (folder / "record.json").exists():
            train = [
                {"id": f"{n}", "group": f"{n}", "text": text, "split": "train"}
                for n, text in enumerate(texts)
            ]
            lines = "".join(json.dumps(line) + "\n" for line in [*train, *self.held_out])
            corpus = artifact(folder / "corpus", "corpus", {DOCUMENTS: lines.encode()}, documents=len(train))
            made = folder / "made"
            run = RunFile(
                schema=1, task="encode", version=1, config={}, outputs={"tokens": str(made)},
                inputs={"corpus": corpus, "tokenizer": self.inputs["tokenizer"]},
                scratch=str(folder / "scratch"),
            )  # fmt: skip
            with open("/dev/null", "w") as nowhere:
                prepare(run, nowhere)
            summary = json.loads((made / "body.json").read_text())["summary"]
            files = {path.name: path.read_bytes() for path in made.iterdir() if path.name != "body.json"}
            artifact(folder, "tokens", files, **summary)
        return str(folder)


def name_of(way: str) -> str:
    return way.replace(",", "").replace(" ", "-")


def shares(kept: list[str], kinds: dict[str, str]) -> dict[str, float]:
    """Of each kind of document: the share of its bytes in documents that are kept. Documents cut in parts
    count as clean.
    """
    whole, left = Counter[str](), Counter[str]()
    for text, kind in kinds.items():
        whole[kind] += len(text.encode())
    for text in kept:
        left[kinds.get(text, "clean")] += len(text.encode())
    return {kind: round(left[kind] / whole[kind], 3) for kind in sorted(whole)}


def summary(steps: int, by_seed: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Of each way: the mean loss, how far it lies below the corpus as it is (95 % interval of the mean over
    seeds), and what it keeps.
    """
    numbers: dict[str, Any] = {"steps": steps}
    for way in WAYS:
        losses = [found[way]["loss"] for found in by_seed.values()]
        gains = [found["as it is"]["loss"] - found[way]["loss"] for found in by_seed.values()]
        kept = defaultdict(list)
        for found in by_seed.values():
            for kind, share in found[way]["kept"].items():
                kept[kind].append(share)
        numbers[way] = {
            "loss": round(statistics.mean(losses), 4),
            "below as it is": round(statistics.mean(gains), 4),
            "interval": interval(gains),
            "kept": {kind: round(statistics.mean(shares), 3) for kind, shares in kept.items()},
        }
    return numbers | {"by_seed": by_seed}


def main() -> None:
    chosen = options(__doc__ or "", steps=320, store="worth", text="stdlib")
    bench = Worth(chosen)
    name = "worth" if chosen.text == "stdlib" else f"worth_{chosen.text.replace('-', '_')}"
    seeds: dict[int, Any] = {}
    for seed in chosen.seeds:
        seeds[seed] = bench.seed(seed)
        if chosen.go_on:
            seeds = kept_seeds(name, bench.steps) | seeds
        keep(name, summary(bench.steps, seeds), is_trial=chosen.tiny, made_by=bench.made_by)


if __name__ == "__main__":
    main()
