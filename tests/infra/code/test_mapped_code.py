"""All code that an engine process loads to train is in the code map of its training, or left out by name,
including code chosen by a configuration at run time.
"""

import json
import subprocess
import sys
from typing import Any

import pytest

from atelier.engine.config.data import Score
from atelier.engine.config.experts import Experts
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.optim.muon import Muon
from atelier.engine.config.registry import kinds
from atelier.engine.config.role import Role
from atelier.engine.config.schedule import Schedule
from atelier.infra.code.code_map import LEFT_OUT, maps_of, model_kinds, training_map
from atelier.infra.dag import Node, Product, Reference, declare, scheduling, stop_scheduling
from tests.checkout import TOP
from tests.engine.trainings import VOCAB, TrainingSetup, role, train

TRAINS = """
import json, os, sys
from pathlib import Path
import numpy, pydantic, fsspec, torch.distributed.checkpoint, torch.distributed.fsdp
top, *runs = sys.argv[1:]
for run in runs:
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        continue
    from atelier.engine.train import main
    assert main([run]) == 0
    names = [n for n in sys.modules if n.startswith("atelier.engine.")]
    files = [Path(sys.modules[n].__file__).relative_to(top) for n in names if sys.modules[n].__file__]
    loaded = sorted({str(f) for f in files if f.name != "__init__.py"})
    Path(run).with_suffix(".loaded").write_text(json.dumps(loaded))
    os._exit(0)
"""
# what every training loads and only some use: other kinds than its own decide nothing; what is published is
# gathered by code that only outer steps have in their map
NAMED_ANYWHERE = ("engine/config/", "engine/loop/gather.py")
KINDS = ["dense", "muon", *sorted(kinds("router"))]


def role_of(kind: str) -> Role:
    shape: dict[str, Any] = {"num_layers": 2, "hidden": 32, "num_heads": 2, "vocab": VOCAB}
    if kind in kinds("router"):
        router = {"kind": kind} | ({"sees_future": True} if kind in ("base", "expert_choice") else {})
        experts = Experts.model_validate({"router": router})
        per_token = 1 if kind in ("hash", "base") else 2
        shape |= {"num_experts": 4, "experts_per_token": per_token, "experts": experts}
    spec = role(shape=GPT(**shape))
    if kind == "muon":
        spec = spec.model_copy(update={"optim": Muon(lr=1e-3, schedule=Schedule(kind="constant"))})
    return spec


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The files of the engine that a training of each kind loads. Each trains in a process of its own, forked
    before the engine is imported.
    """
    folder = tmp_path_factory.mktemp("loaded")
    for kind in KINDS:
        setup = TrainingSetup(folder / kind)
        run = setup.run_file(setup.training({"m": role_of(kind)}, train(2)))
        (folder / f"{kind}.json").write_text(run.model_dump_json(by_alias=True))
    runs = [str(folder / f"{kind}.json") for kind in KINDS]
    told = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", TRAINS, str(TOP), *runs],
        cwd=TOP, capture_output=True, text=True,
    )  # fmt: skip
    assert not told.returncode, told.stdout + told.stderr
    return {kind: json.loads((folder / f"{kind}.loaded").read_text()) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_training_loads_is_in_its_code_map(loaded: dict[str, list[str]], kind: str) -> None:
    spec, files = role_of(kind), loaded[kind]
    assert not [file for file in files if file.startswith("engine/extensions/")]  # it uses none
    mapped = training_map("train", {"m": spec}, "m")
    own = {f"engine/model/{spec.model.kind}.py", f"engine/model/router/{kind}.py"} & set(files)
    assert own and own <= set(mapped)
    assert [
        file for file in files if file not in mapped and not file.startswith((*LEFT_OUT, *NAMED_ANYWHERE))
    ] == []


def test_what_reads_models_depends_on_the_code_of_their_kinds() -> None:
    spec = GPT(num_layers=2, hidden=32, num_heads=2, vocab=VOCAB, num_experts=4)
    exam = {"score": Score().model_dump(mode="json"), "targets": {}, "heads": {}}
    for task, config in (("score", exam), ("write", {}), ("imitate", {}), ("convert", {})):
        product = Product(kind="scores", name="s", version=1, identity={}, parents={})
        node = Node(name=task, task=task, products={"p": product}, config=config, kinds=model_kinds(spec))
        mapped = maps_of(node)["p"]
        assert {"engine/model/gpt.py", "engine/model/router/topk.py"} <= set(mapped), task
        assert "engine/model/encdec.py" not in mapped
        assert ("engine/data/datasets/natural.py" in mapped) == (task == "imitate")
        assert "engine/inference/rivals.py" not in mapped
    exam["heads"] = {"reorder": {"kind": "reorder"}}
    node = Node(name="score", task="score", products={"p": product}, config=exam)
    judged = {"engine/inference/rivals.py", "engine/objective/reorder.py", "engine/data/datasets/reorder.py"}
    assert {file for file in judged if (TOP / file).exists()} <= set(maps_of(node)["p"])


def test_a_node_knows_the_kinds_of_the_models_that_it_reads() -> None:
    nodes: list[Node] = []

    class Records:
        def declare(self, node: Node, after: list[Reference]) -> None:
            nodes.append(node)

    token = scheduling(Records())
    try:
        made = Product(kind="model", name="m", version=1, identity={}, parents={}, kinds=("model/gpt",))
        first = declare(Node(name="train", task="train", products={"m": made}), [])
        declare(Node(name="score", task="score", products={}), [first["m"]])
    finally:
        stop_scheduling(token)
    assert [node.kinds for node in nodes] == [("model/gpt",), ("model/gpt",)]
