"""Layouts beside one process: the same trainings in all of them. `Parity` runs one process in this one, and
the layouts of one size in one gang.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from atelier.engine.config.mixture import Stream
from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.objective.attention import Attention
from atelier.engine.config.objective.hidden import Hidden
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.optim.muon import Muon
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Role, Trainable
from atelier.engine.config.run_file import Member, Training
from tests.engine.row_inputs import VOCAB, every_objective, harbour
from tests.engine.trainings import TrainingSetup, artifact, model_files, role, student, tokens, train
from tests.forks import start_gang
from tests.parity.detectors import detecting

STEPS = 4
FEW_STEPS = 4  # of six roles in gangs of four
CHAIN_STEPS = 4  # of three to five roles after every objective, in gangs of four; of those that detect


def net(num_layers: int = 4, hidden: int = 32, **more: Any) -> GPT:
    """Four heads, two of keys and values; everything divides by 2."""
    return GPT(num_layers=num_layers, hidden=hidden, num_heads=4, num_kv_heads=2, vocab=64, **more)


def taught(training_setup: TrainingSetup, steps: int = STEPS, **how: Any) -> Training:
    """A teacher with dropout, a student from step 2 on, another behind a gate, and one of a student's own."""
    roles = {
        "teacher": role(shape=net(dropout=0.1), lr=1e-2),
        "open": student(shape=net(2, 16), start=2),
        "gated": student(shape=net(2, 16, tied=False, norm="layer"), gate=0.1),
    }
    return training_setup.training(roles, train(steps, **(HOW | how)))


def paired(training_setup: TrainingSetup) -> Training:
    """`taught` in micro-batches of two rows, which a student's ranks can share."""
    return taught(training_setup, micro_batch=2)


def alone(training_setup: TrainingSetup, **how: Any) -> Training:
    """The teacher of `taught` without its students."""
    whole = taught(training_setup, **how)
    return whole.model_copy(update={"members": {"teacher": whole.members["teacher"]}})


def mixed(training_setup: TrainingSetup, **how: Any) -> Training:
    """A mixture of experts and a dense student of it."""
    roles = {
        "moe": role(shape=net(num_experts=4), lr=1e-2),
        "dense": student(shape=net(2, 16), teacher="moe"),
    }
    return training_setup.training(roles, train(STEPS, **(HOW | how)))


def attended(training_setup: TrainingSetup, **how: Any) -> Training:
    """A teacher and three students: of its attention through a layer of its own with other heads, of the
    attention in its last block, and of its hidden states.
    """
    ways = {
        "stacked": {"a": Attention()},
        "bare": {"a": Attention(auxiliary=False)},
        "hidden": {"h": Hidden()},
    }
    small = GPT(num_layers=2, hidden=16, num_heads=2, vocab=64)
    roles = {"guide": role(shape=net(dropout=0.1), lr=1e-2)} | {
        name: role(shape=small, objective={"lm": LM(), **way}, teacher="guide") for name, way in ways.items()
    }
    return training_setup.training(roles, train(STEPS, **(HOW | {"micro_batch": 2} | how)))


def lessons() -> dict[str, Role]:
    """A teacher with dropout and students of every kind of distillation: attention as it is, through a layer
    of its own and in other heads; hidden states; logits. One learns from a student.
    """
    ways = {
        "inner": {"a": Attention(auxiliary=False, relation_heads=4)},
        "outer": {"a": Attention()},
        "states": {"h": Hidden()},
        "words": {"kd": Logits(temperature=2.0)},
        "second": {"a": Attention(), "h": Hidden(), "kd": Logits()},
    }
    small = GPT(num_layers=2, hidden=16, num_heads=2, vocab=64)
    roles = {"mentor": role(shape=net(dropout=0.1), lr=1e-2)}
    for name, way in ways.items():
        teacher = "inner" if name == "second" else "mentor"
        roles[name] = role(shape=small, objective={"lm": LM(), **way}, teacher=teacher)
    return roles


def compared(training_setup: TrainingSetup) -> Training:
    return training_setup.training(lessons(), train(FEW_STEPS, **(HOW | PAIRED)))


def classed(training_setup: TrainingSetup) -> Training:
    """As `reading`, in micro-batches whose rows a student's ranks can share."""
    return reading(training_setup, micro_batch=4)


def learned(training_setup: TrainingSetup, **how: Any) -> Training:
    """Three roots: a model like GPT-2 (learned positions, GELU, biased norms, a head of its own), one that
    Muon trains, one of which low-rank additions train.
    """
    shape = net(positions="learned", norm="layer", mlp="gelu", tied=False)
    roles = {
        "gpt2": role(shape=shape, lr=1e-2),
        "muon": role(shape=net()).model_copy(update={"optim": Muon(lr=1e-3, matrix_lr=1e-2)}),
        "lora": role(shape=net(), lr=1e-2, trainable=Trainable(kind="lora", rank=4)),
    }
    return training_setup.training(roles, train(STEPS, **(HOW | how)))


def universal(training_setup: TrainingSetup, **how: Any) -> Training:
    """Universal blocks with two task nets, one without rows; heads that nothing reads and soft prompts."""
    shape = Ernie(
        num_layers=4, hidden=32, num_heads=4, num_kv_heads=2, vocab=64, dropout=0.1, prompts=4,
        nlu=Net(num_layers=1, hidden=16, num_heads=2), nlg=Net(num_layers=2, hidden=16, num_heads=2),
        classes={"topic": 3}, pairs={"topic": 4},
    )  # fmt: skip
    return training_setup.training({"ernie": role(shape=shape)}, train(STEPS, **(HOW | how)))


def tuned(training_setup: TrainingSetup, **how: Any) -> Training:
    """A task net on frozen blocks, and a norm: stages of a pipeline without anything to train."""
    shape = Ernie(
        num_layers=4, hidden=32, num_heads=4, vocab=64, nlg=Net(num_layers=1, hidden=16, num_heads=2)
    )  # fmt: skip
    roles = {
        "net": role(shape=shape, trainable=Trainable(kind="parts", parts=("nlg",))),
        "norm": role(shape=net(), trainable=Trainable(kind="parts", parts=("norm",))),
    }
    return training_setup.training(roles, train(STEPS, **(HOW | how)))


def guests(training_setup: TrainingSetup, **how: Any) -> Training:
    """A model like Qwen3 that came from elsewhere: it teaches as it is, beside another on some of the text;
    low-rank additions tune it, and it trains on.
    """
    shape = net(qk_norm=True, head_dim=12, rope_theta=5000.0)
    rows = train(STEPS, **(HOW | how))
    members: dict[str, Role | Member] = {
        "guest": finished_model(training_setup, "guest", shape, seed=5),
        "visitor": finished_model(training_setup, "visitor", net(3, 48), seed=6),
        "pupil": student(shape=net(2, 16), teacher="guest", start=2),
        "of both": role(
            shape=net(2, 16),
            teacher="guest",
            period=2,
            objective={
                "lm": LM(),
                "kd": Logits(weight=0.5),
                "words": Logits(weight=0.3, teacher="visitor", sources=("more",), temperature=2.0),
                "heads": Attention(weight=0.2, teacher="visitor", relation_heads=4),
                "states": Hidden(weight=0.2, teacher="visitor", sources=("more",)),
            },
        ),
    }
    for name, trainable in (("tuned guest", Trainable(kind="lora", rank=4)), ("goes on", Trainable())):
        spec = role(shape=shape, lr=1e-3, trainable=trainable)
        members[name] = training_setup.member(name, spec, STEPS, init="guest")
    if "tokens.more" not in training_setup.inputs:
        training_setup.inputs["tokens.more"] = tokens(training_setup.folder / "more", seed=8)
    both = (Stream(input="tokens"), Stream(input="tokens.more", weight=0.5))
    return training_setup.training(members, rows).model_copy(update={"streams": both})


def finished_model(training_setup: TrainingSetup, name: str, shape: GPT, *, seed: int) -> Member:
    """A finished model of random weights, which teaches as it is."""
    if name not in training_setup.inputs:
        generator = torch.Generator().manual_seed(seed)
        state = {
            weight: 0.3 * torch.randn(size, generator=generator, dtype=torch.float64) + (len(size) == 1)
            for weight, size in shape.shapes().items()
        }
        files = model_files(state, shape)
        training_setup.inputs[name] = artifact(training_setup.folder / name, "model", files)
    finished = role(shape=shape, init=name, trainable=Trainable(kind="none"))
    return Member(role=finished, mode="frozen", init=name)


def readers() -> dict[str, Role]:
    """A teacher and a student after all objectives of ERNIE 3.0; the student learns from logits and attention
    too.
    """
    nets = {
        "nlu": Net(num_layers=1, hidden=16, num_heads=2),
        "nlg": Net(num_layers=1, hidden=16, num_heads=2),
    }
    more: dict[str, Any] = {"vocab": VOCAB, "classes": {"reorder": 9, "distance": 3}, "num_kv_heads": 2}
    pairs = {"reorder": 8, "distance": 4}
    wide = Ernie(num_layers=2, hidden=32, num_heads=4, dropout=0.1, pairs=pairs, **nets, **more)
    small = Ernie(num_layers=1, hidden=16, num_heads=2, **nets, **more)
    lessons = {"kd": Logits(weight=0.5), "attention": Attention(weight=0.5)}
    return {
        "reader": role(shape=wide, objective=every_objective()),
        "pupil": role(shape=small, objective=every_objective() | lessons, teacher="reader"),
    }


def reading(training_setup: TrainingSetup, steps: int = STEPS, **how: Any) -> Training:
    return training_setup.training(readers(), train(steps, **(HOW | ROWS | how)))


def headed(training_setup: TrainingSetup, **how: Any) -> Training:
    """Two heads of classes on enough blocks for several stages a rank."""
    wide = readers()["reader"]
    deep = wide.model_copy(update={"model": wide.model.model_copy(update={"num_layers": 4})})
    return training_setup.training({"deep": deep}, train(FEW_STEPS, **(HOW | ROWS | how)))


def chain(training_setup: TrainingSetup, students: dict[str, dict[str, Any]]) -> Training:
    """The teacher of `reading`; where there are students, an assistant between them and it."""
    whole = reading(training_setup, steps=CHAIN_STEPS)
    teacher, pupil = (whole.members[name].role for name in ("reader", "pupil"))
    roles = {"reader": teacher}
    if students:
        roles["assistant"] = pupil
        more = {
            name: pupil.model_copy(update={"teacher": "assistant"} | how) for name, how in students.items()
        }
        roles |= more
    return training_setup.training(roles, whole.train)


STUDENTS: dict[str, dict[str, Any]] = {"early": {}, "late": {"start": 2}, "short": {"end": 4}}


def chain_of_0(training_setup: TrainingSetup) -> Training:
    return chain(training_setup, {})


def chain_of_1(training_setup: TrainingSetup) -> Training:
    return chain(training_setup, {"early": {}})


def chain_of_3(training_setup: TrainingSetup) -> Training:
    """One that comes later and one that leaves earlier among them."""
    return chain(training_setup, STUDENTS)


ROWS: dict[str, Any] = {"global_batch": 8, "micro_batch": 2, "sequence": 32}
PAIRED: dict[str, Any] = {"global_batch": 8, "micro_batch": 4}
HOW: dict[str, Any] = {"precision": "fp64", "global_batch": 4, "micro_batch": 1}
TRAININGS = {
    "attended": attended,
    "compared": compared,
    "classed": classed,
    "paired": paired,
    "taught": taught,
    "mixed": mixed,
    "learned": learned,
    "alone": alone,
    "universal": universal,
    "tuned": tuned,
    "guests": guests,
    "reading": reading,
    "headed": headed,
    "detecting": lambda setup: setup.training(detecting(), train(CHAIN_STEPS, **(HOW | ROWS))),
    "chain of 0": chain_of_0,
    "chain of 1": chain_of_1,
    "chain of 3": chain_of_3,
}
ALIKE = {"paired": "taught", "classed": "reading"}  # the same training in one process
READING = ("reading", "headed", "classed", "detecting", "chain of 0", "chain of 1", "chain of 3")


class Parity:
    """Runs the same trainings in one process and in gangs of several sizes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.alone = TrainingSetup(folder / "alone")
        self.setups: dict[str, TrainingSetup] = {}
        self._done: set[str] = set()  # by one process

    @cached_property
    def library(self) -> TrainingSetup:
        """The setup in which one process trains `reading`."""
        return TrainingSetup(self.folder / "library", harbour(self.folder / "harbour"))

    def beside(self, training: str) -> TrainingSetup:
        """The setup in which one process has run this training; runs it first if needed."""
        training = ALIKE.get(training, training)
        training_setup = self.library if training in READING else self.alone
        if training not in self._done:
            training_setup.train(TRAININGS[training](training_setup))
            self._done.add(training)
        return training_setup

    def run(self, cases: dict[str, tuple[Parallel, str]], *words: str) -> None:
        """Train each case (layout, name of the training) in a gang that all of them share; `words`: another
        module than tests/parity/gang.py.
        """
        paths, ranks = [], 0
        for name, (where, training) in cases.items():
            inputs = self.library.inputs if training in READING else None
            training_setup = self.setups[name] = TrainingSetup(self.folder / name, inputs)
            run = training_setup.run_file(TRAININGS[training](training_setup), layout=where)
            training_setup.folder.mkdir(exist_ok=True)
            paths.append(str(training_setup.folder / "run.json"))
            Path(paths[-1]).write_text(run.model_dump_json(by_alias=True))
            ranks = where.ranks
        start_gang("tests.parity.gang", self.folder, ranks, *words, *paths)

    def of_layout(self, name: str, training: str, *groups: Mapping[str, Parallel]) -> TrainingSetup:
        """The setup of a layout, in which `training` was run; all layouts of the first group that has it are
        run in one gang.
        """
        if name not in self.setups:
            together = next(group for group in groups if name in group)
            self.run({each: (where, training) for each, where in together.items() if each not in self.setups})
        return self.setups[name]

    def check(self, name: str, training: str, roles: Iterable[str], *groups: Mapping[str, Parallel]) -> None:
        """Check that all roles of a training have, in a layout, the curves and weights of one process."""
        alone, other = self.beside(training), self.of_layout(name, training, *groups)
        for role_name in roles:
            curve, weights = apart(alone, other, role_name)
            assert curve < 1e-10 and weights < 1e-8, role_name


def quick_first(two: Mapping[str, Parallel], four: Mapping[str, Parallel], quick: Sequence[str]) -> list[Any]:
    """Names of layouts as parameters of a test; all but the quick ones are slow."""
    slow = [name for name in (*two, *four) if name not in quick]
    return [*quick, *(pytest.param(name, marks=pytest.mark.slow) for name in slow)]


def apart(alone: TrainingSetup, other: TrainingSetup, role_name: str) -> tuple[float, float]:
    mine, theirs = alone.curve(role_name), other.curve(role_name)
    assert [line["step"] for line in mine] == [line["step"] for line in theirs]
    assert [line["tokens"] for line in mine] == [line["tokens"] for line in theirs]
    values = [(a["values"], b["values"]) for a, b in zip(mine, theirs, strict=True)]
    assert all(a.keys() == b.keys() for a, b in values)
    curve = max(abs(a[key] - b[key]) for a, b in values for key in a)
    here, there = load(alone.weights(role_name)), load(other.weights(role_name))
    return curve, max((here[key] - there[key]).abs().max().item() for key in here)


def layout(**axes: Any) -> Parallel:
    """One thread a rank, nothing compiled, and these axes."""
    return Parallel(**({"shard": 1, "threads": 1, "compile": "none", "device": "cpu"} | axes))
