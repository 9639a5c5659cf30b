"""One flow over two sites, set up as on two machines: each creates its keys, accepts the other's card, sets a
policy for it, and runs its agent.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.command import Command, CommandStore
from tests.flow.kills import weights_of
from tests.infra.sites.agents import Carrier
from tests.ports import free_port

pytestmark = pytest.mark.slow
WORDS = ("pretrain", "experiment=tiny", "tracker=none", "score.baselines=false", "sites=[a,b]")


class Machine:
    """A site of a store and keys of its own."""

    def __init__(self, folder: Path, name: str, address: str) -> None:
        self.store = CommandStore(folder / name / "store")
        self.store.root.mkdir(parents=True)
        self.env = {"ATELIER_SITE": str(folder / name / "keys")}
        self.card, self.address = folder / f"{name}.json", address
        self.run("site", "create", name, "--address", address)
        text = self.run("site", "card")  # beside what it says on stderr
        self.card.write_text(text[text.index("{") : text.rindex("}") + 1])

    def start(self, *words: str) -> Command:
        return self.store.start(*words, env=self.env)

    def run(self, *words: str, code: int = 0) -> str:
        command = self.start(*words)
        assert command.wait() == code, command.text
        return command.text

    @contextmanager
    def serving(self) -> Iterator[None]:
        """With its agent, which listens where its card says."""
        agent = self.start("site", "serve", *([] if "/" in self.address else ["--listen", self.address]))
        try:
            yield
        finally:
            os.kill(agent.process.pid, signal.SIGTERM)
            assert agent.wait() in (0, 130, 143), agent.text


@pytest.mark.parametrize("carrier", ["grpc", "bucket"])
def test_two_machines_make_one_model_and_what_one_makes_comes_to_the_other(
    tmp_path: Path, carrier: Carrier
) -> None:
    (tmp_path / "between").mkdir()
    a, b = (
        Machine(tmp_path, name, f"127.0.0.1:{free_port()}" if carrier == "grpc" else f"{tmp_path}/between")
        for name in ("a", "b")
    )
    assert "b is not trusted here" in a.run("plan", *WORDS, code=2)
    a.run("site", "accept", str(b.card))
    b.run("site", "accept", str(a.card))
    with a.serving(), b.serving():
        lifted_by = "at b: atelier site allow a --tasks curate,encode,learn_tokenizer,train"
        assert lifted_by in a.run("plan", *WORDS, code=2)
        b.run("site", "allow", "a", "--tasks", "curate,encode,learn_tokenizer,train", "--send", "model")
        a.run("site", "allow", "b", "--hourly", "0.01")
        assert "but a allows 0.01 to and from b" in a.run("plan", *WORDS, code=2)
        a.run("site", "allow", "b", "--hourly", "1000")
        a.run(*WORDS)
        one, other = weights_of(a.store), weights_of(b.store)
        assert one == other and one
        a.run(*WORDS, "sites.at={train: b}", "train.seed=2", "train.steps=12")
    homemade, elsewhere = ({each["fingerprint"]: each for each in m.store.records("model")} for m in (a, b))
    assert len(elsewhere) == 2 and homemade.keys() == elsewhere.keys()
    assert sorted(each["provenance"].get("site", "") for each in homemade.values()) == ["", "b"]
    assert weights_of(a.store) == weights_of(b.store)
    assert a.run("site", "audit", str(tmp_path / "b" / "keys" / "audit.jsonl")).count("differs") == 0
    a.store.wait_for_quiet()
    b.store.wait_for_quiet()
