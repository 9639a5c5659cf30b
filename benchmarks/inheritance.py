"""Savings from growing a model instead of starting again: tokens and CPU seconds until it has the final loss
of the same model trained from scratch. Each way beside its simplest rival, over seeds.

python benchmarks/inheritance.py [--seeds 1 2 3] [--steps 320] [--store DIR] [--tiny]    25 CPU minutes a seed

  language     one language, then both with a longer vocabulary | the old vocabulary kept; a third of the
                                                                  learning rate; no more of the first
  depth        blocks that add nothing at first                 | copies stacked; states grown
  width        copies that share unequally                      | copies that share equally
  experts      copies of the MLP, a router that learns          | routers as drawn (CPM-2's); states grown
  small_large  a smaller teacher whose weight falls to nothing  | its weight stays

`states grown`: as the first way, with the parent's optimiser states too (convert.optimizer=grown). Each way
is trained for 1/8, 1/4, 1/2 and all of the steps, each with its own decay of the learning rate after a common
trunk. Between two lengths the loss is interpolated linearly over the logarithm of the tokens. CPU seconds are
those tokens times the seconds a token, one thread. Finished parts are reused.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from machine import keep
from parts import PROJECT, Parts, Way, corpus, interval, options, published, run_flow, tokens_to

from atelier.engine.checkpoint.folder import address
from atelier.engine.config.base import parse
from atelier.engine.config.conversion.depth import Depth
from atelier.engine.config.conversion.upcycle import Upcycle
from atelier.engine.config.conversion.vocabulary import ToVocabulary
from atelier.engine.config.conversion.width import Width
from atelier.engine.config.conversions import ConversionSpec
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role
from atelier.engine.conversion.measure import held_out, mean_loss
from atelier.engine.io.artifact import open_input
from atelier.engine.loop.resume import CHECKPOINTS
from atelier.engine.model.load import read_model

LENGTHS = (0.125, 0.25, 0.5, 1.0)  # of the scratch model's steps
DECAY = 0.25
MEASURED = 200_000  # bytes of held-out text of a language, at most
SLOW = 3e-3  # a learning rate, of 1e-2
SPECIALS = [f"<|{each}|>" for each in ("mask", "cls", "sep", "topic", "keywords", "sentiment", "length")]
MIX = 3.0  # rows of the second language for each of the first
AIMS = {"language": 1.5, "depth": 2.0, "width": 1.5, "experts": 2.0, "small_large": 1.5}


class Inheritance(Parts):
    def __init__(self, chosen: argparse.Namespace) -> None:
        super().__init__(chosen, sequence=128, corpus_words=["tokenizer=bpe4k", "tokenizer.vocab=1024"])
        self.batch = 8
        self.steps = max(32, self.steps - self.steps % 32)  # every length and its trunk are whole steps
        self.large = GPT(num_layers=4, hidden=64 if self.tiny else 128, num_heads=4, vocab=self.vocab)
        self.text = self._languages()

    def _languages(self) -> dict[str, dict[str, str]]:
        """Tokens of both languages in the first one's tokenizer and in the one that was extended for both,
        and these tokenizers.
        """
        few = "train.steps=8 grow.steps=8 grow.experts_steps=8 finetune.epochs=1 finetune.num_labels=32"
        decoder = (
            "model=gpt_nano objective=lm upcycle={num_experts:4,experts_per_token:2,router:learned}"
            " grow.scratch=false generate.num_labels=32 generate.epochs=1 score.memory_gb=0"
            f" tokenizer.specials={json.dumps(SPECIALS, separators=(',', ':'))}"
        )
        sizes = "tokenizer.vocab=1024 grow.vocab=1536 parallel.threads=1"
        words = ["cpm2", *few.split(), *decoder.split(), *sizes.split()]
        store = self.store / "languages"
        run_flow(store, words)
        found: dict[str, dict[str, str]] = {"old": {}, "new": {}}
        for place in sorted((store / "tokens").iterdir()):
            record = open_input(str(place)).record
            which = "old" if record.summary["vocab"] == 1024 else "new"
            found[which]["code" if record.name == "second" else "prose"] = str(place)
            found[which]["tokenizer"] = str(
                store / "tokenizer" / record.parents["tokenizer"][: len(place.name)]
            )
        [old] = Path(found["old"]["tokenizer"]).glob("payload*/tokenizer.json")
        words = ["corpus", "data.source=stdlib-code", f"tokenizer.load={old}"]
        found["old"]["code"] = corpus(self.store / "old-code", words)["tokens"]
        return found

    def way(
        self, name: str, seed: int, model: GPT, *, more: Mapping[str, Any] | None = None, **how: Any
    ) -> Way:
        """A model trained for each length. `more`: of its role; `how`: of its parts."""
        lengths = how.pop("lengths", LENGTHS)
        beside = how.pop("beside", {})
        found: Way = {}
        for share in sorted(lengths, reverse=True):  # the longest first: the others branch off from its trunk
            steps = round(share * self.steps)
            branch = round((1 - DECAY) * steps)
            found[share] = self.part(
                f"{name}-{share}", seed, beside | {"model": self.role(model, "model", DECAY, **more or {})},
                steps=steps, trunk=(f"{name}-trunk", branch), checkpoint_every=self.steps * 3 // 32, **how,
            )  # fmt: skip
            if name.endswith("_states") and not found[share]["began_with_states"]["model"]:
                raise SystemExit(f"seed {seed}: {name} did not begin with its parent's states")
        return found

    def finished(self, seed: int, name: str) -> str:
        """The model of a way's whole length."""
        return self.publish(seed, f"{name}-1.0", "model")

    def last_checkpoint(self, seed: int, name: str) -> str:
        """That of a way's whole length, with the optimiser's states."""
        place = self.store / f"seed-{seed}" / f"{name}-1.0" / "trajectory" / "model" / CHECKPOINTS
        return address(str(place), self.steps)

    def converted(
        self,
        seed: int,
        name: str,
        rule: ConversionSpec,
        model: GPT,
        source: str,
        tokens: str = "",
        states: str = "",
        **inputs: str,
    ) -> tuple[str, GPT, dict[str, Any]]:
        """The converted model's folder, spec and record's summary. `states`: the checkpoint whose optimiser's
        states are grown, too.
        """
        place = self.store / f"seed-{seed}" / name
        made = gpt(rule.converted(model))
        if made.vocab == "auto":
            made = made.resolved(int(open_input(inputs["tokens.main"]).record.summary["vocab"]))
        if not (place / "model" / "record.json").exists():
            inputs |= {"model": source, "tokens": tokens or self.inputs["tokens"]}
            run = {
                "schema": 1, "task": "convert", "version": 1, "inputs": inputs,
                "config": {
                    "rule": rule.model_dump(mode="json"), "measured": 16384, "states": states,
                    "optim": parse(Role, self.role(model, "model", DECAY), "").optim.as_identity(),
                },
                "outputs": {"model": str(place / "output")}, "scratch": str(place / "scratch"),
                "layout": {"shard": 1, "threads": 1, "device": "cpu"},
            }  # fmt: skip
            place.mkdir(parents=True, exist_ok=True)
            (place / "run.json").write_text(json.dumps(run))
            command = [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "atelier.engine.convert",
                str(place / "run.json"),
            ]
            subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
            published(place / "output", place / "model")
        return str(place / "model"), made, dict(open_input(str(place / "model")).record.summary)

    def bits(self, seed: int, part: str, text: Mapping[str, str]) -> dict[str, float]:
        """Bits a byte of each language's held-out text."""
        folder = self.publish(seed, part, "model")
        kept = Path(folder).with_name("bits.json")
        if not kept.exists():
            scratch = self.store / "scratch"
            model = read_model(open_input(folder), scratch)[0].eval()
            found = {}
            for name in ("prose", "code"):
                tokens = open_input(text[name])
                number = round(MEASURED / bytes_per_token(tokens))  # the same text in any tokenizer
                rows, _ = held_out(tokens, scratch, self.sequence, number)
                loss = mean_loss(model, rows, torch.device("cpu"))
                found[name] = loss / math.log(2) / bytes_per_token(tokens)
            kept.write_text(json.dumps(found))
        return json.loads(kept.read_text())

    def seed(self, seed: int) -> dict[str, Any]:
        found = {"language": self.language(seed)}
        scratch = self.way("scratch", seed, self.large, keep=1)
        whole = scratch[1.0]

        shallow = self.large.model_copy(update={"num_layers": 2})
        small = self.way("shallow", seed, shallow, lengths=(1.0,), keep=1)
        parent = self.finished(seed, "shallow")
        ways, about = {}, {}
        rules = {"zero": Depth(), "stacked": Depth(how="stacked"), "zero_states": Depth(optimizer="grown")}
        for how, rule in rules.items():
            states = self.last_checkpoint(seed, "shallow") if rule.optimizer == "grown" else ""
            folder, made, about[how] = self.converted(
                seed, f"depth-{how}", rule, shallow, parent, states=states
            )
            ways[how] = self.way(f"deep-{how}", seed, made, init=folder)
        found["depth"] = self.told(self.large, whole, ways, parent=(shallow, small[1.0])) | {"steps 0": about}

        half = self.large.hidden // 2
        narrow = self.large.model_copy(update={"hidden": half, "num_heads": 2})
        small_one = self.way("narrow", seed, narrow, lengths=(1.0,))
        parent, ways, about = self.finished(seed, "narrow"), {}, {}
        for how, spread in (("unequal", 0.5), ("equal", 0.0)):
            rule = Width(spread=spread, seed=seed)
            folder, made, about[how] = self.converted(seed, f"width-{how}", rule, narrow, parent)
            ways[how] = self.way(f"wide-{how}", seed, made, init=folder)
        found["width"] = self.told(made, whole, ways, parent=(narrow, small_one[1.0])) | {"steps 0": about}

        found["experts"] = self.experts(seed, whole)
        found["small_large"] = self.taught(seed, whole, shallow, small[1.0])
        return found

    def language(self, seed: int) -> dict[str, Any]:
        """Prose, then prose and code: bits a byte of code to come to."""
        old, new = self.text["old"], self.text["new"]
        model = self.large.model_copy(update={"vocab": vocab_of(old["prose"])})
        first = self.way("prose", seed, model, text={"main": (old["prose"], 1.0)}, lengths=(1.0,))
        parent = self.finished(seed, "prose")
        rule = ToVocabulary()
        folder, made, about = self.converted(
            seed, "vocabulary", rule, model, parent, old["prose"],
            **{"tokens.main": new["code"], "tokenizer": new["tokenizer"]},
        )  # fmt: skip
        both = {"main": (new["prose"], 1.0), "second": (new["code"], MIX)}
        scratch = self.way("both-scratch", seed, made, text=both, lengths=(1.0,))
        ways = {
            "grown": self.way("both-grown", seed, made, text=both, init=folder),
            "old_vocabulary": self.way(
                "both-old", seed, model, init=parent,
                text={"main": (old["prose"], 1.0), "second": (old["code"], MIX)},
            ),
            "slow": self.way(
                "both-slow", seed, made, text=both, init=folder,
                more={"optim": self.role(made, "model", DECAY)["optim"] | {"lr": SLOW}},
            ),
            "no_mix": self.way("code-grown", seed, made, text={"main": (new["code"], 1.0)}, init=folder),
        }  # fmt: skip
        texts = {"grown": new, "slow": new, "old_vocabulary": old, "no_mix": new}
        names = {
            "grown": "both-grown", "slow": "both-slow", "old_vocabulary": "both-old", "no_mix": "code-grown"
        }  # fmt: skip
        bits = {
            way: {share: self.bits(seed, f"{names[way]}-{share}", texts[way]) for share in LENGTHS}
            for way in ways
        }
        aim = self.bits(seed, "both-scratch-1.0", new)
        scratch_part = scratch[1.0] | {"loss": {"model": aim["code"]}}
        as_losses = {
            way: {
                share: part | {"loss": {"model": bits[way][share]["code"]}}
                for share, part in ways[way].items()
            }
            for way in ways
        }
        bytes_of = {which: mixed_bytes(self.text[which]) for which in ("old", "new")}
        told = self.told(made, scratch_part, as_losses, parent=(model, first[1.0]))
        if told["old_vocabulary"]["tokens"]:  # as many bytes: its tokens are shorter
            told["old_vocabulary"]["bytes"] = (
                told["old_vocabulary"]["tokens"] * bytes_of["new"] / bytes_of["old"]
            )
        before = self.bits(seed, "prose-1.0", old)["prose"]
        nats = math.log(2) * bytes_per_token(open_input(old["prose"]))  # of an old token
        forgetting = {
            way: {share: round((one["prose"] - before) * nats, 4) for share, one in bits[way].items()}
            for way in bits
        }
        return told | {
            "step 0": about, "bits": bits | {"scratch": aim, "first": {"prose": before}},
            "nats a token by which prose rose": forgetting,
        }  # fmt: skip

    def experts(self, seed: int, dense: dict[str, Any]) -> dict[str, Any]:
        """A dense model, then a mixture of eight experts."""
        learned = Upcycle(num_experts=8, experts_per_token=2, seed=seed)
        drawn = Upcycle(num_experts=8, experts_per_token=1, router="orthogonal", seed=seed)
        made = gpt(learned.converted(self.large))
        scratch = self.way("experts-scratch", seed, made, lengths=(1.0,))[1.0]
        parent, ways, about = self.finished(seed, "scratch"), {}, {}
        grown = learned.model_copy(update={"optimizer": "grown"})
        for how, rule in (("learned", learned), ("orthogonal", drawn), ("learned_states", grown)):
            states = self.last_checkpoint(seed, "scratch") if rule is grown else ""
            folder, made, about[how] = self.converted(
                seed, f"upcycle-{how}", rule, self.large, parent, states=states
            )
            ways[how] = self.way(f"experts-{how}", seed, made, init=folder)
        ways["dense_continued"] = self.way("dense-continued", seed, self.large, init=parent)
        made = gpt(learned.converted(self.large))
        return self.told(made, scratch, ways, parent=(self.large, dense)) | {"step 0": about}

    def taught(
        self, seed: int, scratch: dict[str, Any], small: GPT, parent: dict[str, Any]
    ) -> dict[str, Any]:
        """A small finished teacher of a larger model (knowledge inheritance, 2105.13880)."""
        folder, ways = self.publish(seed, "shallow-1.0", "model"), {}
        until = round(0.25 * self.steps)
        for how in ("falling", "constant"):
            logits: dict[str, Any] = {"kind": "logits", "weight": 0.5}
            if how == "falling":
                logits["schedule"] = {"kind": "linear", "end": until}
            objective = {"lm": {"kind": "lm", "weight": 0.5}, "logits": logits}
            teacher = {"teacher": self.role(small, "teacher", objective={"lm": {"kind": "lm"}})}
            ways[how] = self.way(
                f"taught-{how}", seed, self.large, beside=teacher, frozen=folder, lengths=LENGTHS[1:],
                more={"objective": objective, "teacher": "teacher"},
            )  # fmt: skip
        return self.told(self.large, scratch, ways, parent=(small, parent))

    def told(
        self, model: GPT, scratch: dict[str, Any], ways: Mapping[str, Way], parent: tuple[GPT, dict[str, Any]]
    ) -> dict[str, Any]:
        """By way: how many times fewer tokens, CPU seconds, and FLOPs with the parent's it took to come to
        the loss of `scratch`; None where it did not.
        """
        aim, tokens = scratch["loss"]["model"], scratch["tokens"]["model"]
        scratch_s = scratch["cpu_s"] / tokens
        each = model.flops_per_token(self.sequence)
        spent = parent[0].flops_per_token(self.sequence) * parent[1]["tokens"]["model"]
        found: dict[str, Any] = {"aim": aim}
        for name, way in ways.items():
            needed = tokens_to(aim, way)
            seconds = way[1.0]["cpu_s"] / way[1.0]["tokens"]["model"]
            found[name] = {
                "losses": {share: part["loss"]["model"] for share, part in sorted(way.items())},
                "tokens": tokens / needed if needed else None,
                "cpu_s": scratch_s * tokens / (seconds * needed) if needed else None,
                "flops_with_parent": each * tokens / (each * needed + spent) if needed else None,
            }
        return found


def gpt(spec: ModelSpec) -> GPT:
    assert isinstance(spec, GPT)
    return spec


def bytes_per_token(tokens: Any) -> float:
    summary = tokens.record.summary
    return summary["held_out_bytes"] / summary["held_out_tokens"]


def vocab_of(tokens: str) -> int:
    return int(open_input(tokens).record.summary["vocab"])


def mixed_bytes(text: Mapping[str, str]) -> float:
    """Bytes a token of both languages as they are mixed."""
    prose, code = (bytes_per_token(open_input(text[name])) for name in ("prose", "code"))
    return (prose + MIX * code) / (1 + MIX)


def summary(steps: int, by_seed: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    numbers: dict[str, Any] = {"steps": steps, "lengths": LENGTHS}
    for kind, aim in AIMS.items():
        seeds = [each[kind] for each in by_seed.values()]
        ways = [name for name, value in seeds[0].items() if isinstance(value, dict) and "losses" in value]
        numbers[kind] = {"times fewer tokens, aimed at": aim}
        for way in ways:
            told: dict[str, Any] = {}
            for cost in ("tokens", "bytes", "cpu_s", "flops_with_parent"):
                values = [one[way].get(cost) for one in seeds]
                known = [value for value in values if value is not None]
                if known:
                    all_came = len(known) == len(
                        values
                    )  # a mean only of all: those that are late are missing
                    told[cost] = {
                        "by_seed": [value and round(value, 3) for value in values],
                        "mean": round(statistics.mean(known), 3) if all_came else None,
                        "interval": interval(known) if all_came else None,
                    }
            gaps = [one[way]["losses"][1.0] - one["aim"] for one in seeds]
            told["above scratch at equal length"] = {
                "mean": round(statistics.mean(gaps), 4), "interval": interval(gaps),
            }  # fmt: skip
            numbers[kind][way] = told
    rises = [each["language"]["nats a token by which prose rose"] for each in by_seed.values()]
    numbers["prose forgotten, nats a token"] = {
        way: {
            share: {
                "mean": round(statistics.mean(one[way][share] for one in rises), 4),
                "interval": interval([one[way][share] for one in rises]),
            }
            for share in LENGTHS
        }
        for way in rises[0]
    }
    return numbers | {"by_seed": by_seed}


def main() -> None:
    chosen = options(__doc__ or "", steps=320, store="inheritance")
    chosen.threads = 1
    bench = Inheritance(chosen)
    with ThreadPoolExecutor(2) as pool:  # each training has one thread
        found = dict(zip(chosen.seeds, pool.map(bench.seed, chosen.seeds), strict=True))
    is_trial = chosen.tiny or len(found) < 3
    keep("inheritance", summary(bench.steps, found), is_trial=is_trial, made_by=bench.made_by)


if __name__ == "__main__":
    main()
