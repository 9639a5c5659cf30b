"""Fine-tuning on several ranks, from the command line: the DAG on four ranks beside one, and a run that is
killed inside each of its draws.
"""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.faults.command import CommandStore
from tests.flow.kills import killed_and_finished, steps_of, weights_of

pytestmark = pytest.mark.slow

TINY = ("experiment=tiny", "tracker=none", "score.max_examples=8")
BASE = ("pretrain", *TINY[:2], "model=gpt_nano", "name=base", "train.steps=8", "score.baselines=false")
TUNE = ("finetune", *TINY, "init=base")
FOUR = ("parallel.tensor=2", "parallel.shard=2")
DRAWS = ["base/pretrained-0", "base/scratch-0"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> CommandStore:
    store = CommandStore(tmp_path_factory.mktemp("base"))
    code, _, err = store.finish(*BASE)
    assert code == 0, err
    return store


def tuned(base: CommandStore, place: Path, *given: str) -> CommandStore:
    """A copy of the store in which the model was tuned."""
    shutil.copytree(base.root, place)
    store = CommandStore(place)
    code, _, err = store.finish(*TUNE, *given)
    assert code == 0, err
    return store


def weights(store: CommandStore) -> dict[str, dict[str, torch.Tensor]]:
    return {
        record["name"]: load_file(
            next((store.root / "model" / record["fingerprint"][:16]).rglob("*.safetensors"))
        )
        for record in store.records("model")
        if record["name"] in DRAWS
    }


def test_four_ranks_tune_score_and_continue_all_draws_and_controls_as_one_does(
    base: CommandStore, tmp_path: Path
) -> None:
    exact = ("train.precision=fp64", "finetune.epochs=5")  # ten steps
    one = tuned(base, tmp_path / "one", *exact)
    four = tuned(base, tmp_path / "four", *exact, *FOUR, "score.tensor=2", "score.shard=2")
    mine, theirs = weights(one), weights(four)
    assert sorted(mine) == sorted(theirs) == sorted(DRAWS)
    for name, found in mine.items():
        apart = max((found[key] - theirs[name][key]).abs().max().item() for key in found)
        assert apart < 1e-8, (name, apart)
    made = [(record["name"], record["fingerprint"]) for record in one.records("model")]
    assert sorted(made) == sorted((record["name"], record["fingerprint"]) for record in four.records("model"))
    scores = [
        {record["name"]: record["summary"].get("accuracy") for record in store.records("scores")}
        for store in (one, four)
    ]
    assert scores[0] == scores[1] and len(scores[0]) >= len(DRAWS)
    words = ("generate", "base/pretrained-0", "--prompt", "import ", "--max-tokens", "12")
    _, alone, _ = one.finish(*words)
    code, together, err = four.finish(*words, "--split", "tensor=2,shard=2")
    assert code == 0 and together == alone != "", err


def test_killed_inside_each_draw_it_ends_with_the_same_bits(base: CommandStore, tmp_path: Path) -> None:
    long = ("finetune.epochs=20", "train.checkpoint_every=4", "parallel.tensor=2")  # 40 steps
    whole = tuned(base, tmp_path / "whole", *long)
    shutil.copytree(base.root, tmp_path / "killed")
    killed = CommandStore(tmp_path / "killed")
    killed_and_finished(killed, (*TUNE, *long), DRAWS)
    assert weights_of(killed) == weights_of(whole)
    assert not any(steps_of(killed, name) for name in DRAWS)  # checkpoints are gone with the last draw
