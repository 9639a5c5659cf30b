"""A rank that hangs, flips a bit or is slow is found and named, and the gang ends with a healthy
one's bits.
"""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import AtelierError
from atelier.engine.config.record import Record, identify
from atelier.engine.config.run_file import SegmentAddress
from atelier.engine.config.train import Health
from atelier.engine.io.fork_server import ForkServer
from atelier.infra.launch.gang import start_gang
from atelier.infra.launch.orders import GangOutput, Orders
from atelier.infra.launch.supervisor import rank_env
from atelier.infra.store.lease import Holder, take
from atelier.infra.store.store import Store
from tests.checkout import TOP, python_path
from tests.engine.trainings import ONE, TrainingSetup, role, train

STEPS, EVERY = 12, 4
MODULE = "tests.faults.sick"


class Ward(TrainingSetup):
    """A run context whose gang runs under a supervisor, over a store; `said` is what both told."""

    def __init__(self, folder: Path, server: ForkServer) -> None:
        super().__init__(folder)
        self.server = server
        self.store = Store(str(folder))
        self.said: list[dict[str, Any]] = []
        self.payload = ""

    def segment(self, name: str, start: int, end: int, *, attempt: int = 1) -> SegmentAddress:
        found = super().segment(name, start, end, attempt=attempt)
        return found.model_copy(update={"url": self.store.address("trajectory", found.fingerprint)})

    def run(self, ill: str, *, rank: int, step: int, copies: int = 2, shard: int = 1, **more: Any) -> None:
        """Train in so many copies of so many parts, with one rank falling ill at a step."""
        health = Health(**more)
        how = train(STEPS, checkpoint_every=EVERY, global_batch=12, health=health)
        layout = ONE.model_copy(update={"replicate": copies, "shard": shard})
        training = self.training({"model": role()}, how)
        run = self.run_file(training, layout=layout)
        trajectory = training.members["model"].segments[0].url
        held = take(trajectory, Holder.me())
        assert held is not None
        scratch = self.folder / "gang"
        (scratch / "work").mkdir(parents=True)
        (scratch / "sick.json").write_text(json.dumps({"ill": ill, "rank": rank, "step": step}))
        fingerprint = identify("model", 1, {}, {})
        draft = Record(
            kind="model", name="model", fingerprint=fingerprint, version=1, identity={}, parents={}
        )
        self.payload = self.store.new_payload("model", fingerprint)
        run = run.model_copy(update={"scratch": str(scratch / "work"), "outputs": {"model": self.payload}})
        orders = Orders(
            name="gang",
            module=MODULE,
            run=run,
            root=self.store.root,
            scratch=scratch,
            ranks=copies * shard,
            leases={trajectory: held.fence},
            outputs={"model": GangOutput(payload=self.payload, draft=draft)},
        )
        start_gang(orders, self.said.append, threading.Event(), self.server)

    def output(self, name: str) -> Path:
        return Path(self.payload) if self.payload else super().output(name)

    @property
    def warnings(self) -> list[str]:
        return [message["warning"] for message in self.said if "warning" in message]

    def marks(self) -> list[int]:
        return [message["resumed"] for message in self.said if "resumed" in message]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """Of the ranks of all gangs here."""
    server = ForkServer([MODULE], rank_env("", 1) | {"PYTHONPATH": python_path()}, str(TOP))
    yield server
    server.close()


@pytest.fixture
def ward(tmp_path: Path, server: ForkServer) -> Ward:
    return Ward(tmp_path, server)


@pytest.fixture(scope="module")
def dragged(tmp_path_factory: pytest.TempPathFactory, server: ForkServer) -> Ward:
    """A gang that computes what a healthy one does, one rank of it slowly."""
    ward = Ward(tmp_path_factory.mktemp("dragged"), server)
    ward.run("drag", rank=1, step=1, straggler=1.5)
    return ward


def test_a_rank_that_drags_is_named(dragged: Ward) -> None:
    [warning] = dragged.warnings
    assert "rank 1 takes" in warning and "times as long per step as the median rank" in warning


@pytest.mark.slow
def test_a_stopped_rank_is_named_with_its_step_and_the_gang_starts_again(ward: Ward, dragged: Ward) -> None:
    ward.run("stop", rank=1, step=7, hang_s=8.0)
    [warning] = ward.warnings
    assert warning.startswith("rank 1 is at step 7 (collective, stopped), rank 0 waits at step 7 (")
    assert warning.endswith("no progress for 8 s; the gang starts again from step 4 (restart 1 of 3)")
    assert ward.marks() == [0, 4]
    assert ward.weights("model") == dragged.weights("model")


@pytest.mark.slow
def test_ranks_roll_back_together_when_one_loses_its_part_of_the_weights(ward: Ward) -> None:
    ward.run("lose", rank=1, step=7, copies=1, shard=2, nan="rollback", pass_over=2)
    [warning] = ward.warnings
    assert warning.startswith("roles.model: step 7: loss nan")
    assert warning.endswith("rolled back, steps 6 to 7 are passed over (rollback 1 of 3)")
    assert ward.marks() == [0, 4], "in the same processes"
    assert len([message for message in ward.said if "pids" in message]) == 1


@pytest.mark.slow
def test_a_flipped_bit_in_one_of_two_copies_is_found_before_the_checkpoint_that_would_hold_it(
    ward: Ward, dragged: Ward
) -> None:
    ward.run("flip", rank=1, step=6)
    [warning] = ward.warnings
    assert warning.startswith("step 8: ranks 0 and 1 have other bits than the other copies of model.")
    assert "with two copies it is unknown which is right" in warning
    assert warning.endswith("the gang starts again from step 4 (restart 1 of 3)")
    assert ward.marks() == [0, 4]
    assert ward.weights("model") == dragged.weights("model")


def test_a_flipped_bit_in_one_of_three_copies_is_the_minoritys(ward: Ward) -> None:
    """Before the first checkpoint: there is nothing to begin again from."""
    with pytest.raises(AtelierError, match=r"step 3: rank 2 has other bits than the other copies of model\."):
        ward.run("flip", rank=2, step=3, copies=3, digest_every=1)
    assert not ward.warnings
