"""Notes of a plan about data: the held-out share, tokens that no training reads, the stream of samples."""

import re
from pathlib import Path

import pytest

from atelier.engine.config.error import ConfigError
from atelier.flows.run.compose import RunConfig, compose
from atelier.flows.run.draw import collect_nodes
from atelier.flows.run.plan import make_plan
from atelier.infra.store.store import Store
from tests.infra.records import Shelf

LABELS = "finetune.labels.source"
ASKED = ["experiment=tiny", "tracker=none", "train.sequence=512"]


def make(frozen: RunConfig, shelf: Shelf, summaries: dict[str, dict[str, int]]) -> None:
    """Publish the artifacts of these nodes with these summaries."""
    for node in collect_nodes(frozen, shelf.store):
        if node.name in summaries:
            [product] = node.products.values()
            made = shelf.publish(
                product.kind,
                product.name,
                product.parents,
                summary=summaries[node.name],
                identity_as={**product.identity},
            )
            assert made.fingerprint == product.fingerprint


@pytest.mark.parametrize(
    ("held_out_bytes", "train_tokens", "is_said"), [(330, 1494, True), (90, 1030, False)]
)
def test_a_plan_says_what_is_held_out_and_what_is_never_read_once_it_is_known(
    tmp_path: Path, held_out_bytes: int, train_tokens: int, is_said: bool
) -> None:
    store = Store(str(tmp_path / "store"))
    frozen = compose("pretrain", ASKED)
    assert not [note for note in make_plan(frozen, store).notes if "held out" in note or "never read" in note]
    shelf = Shelf(store)
    summaries = {
        "curate": {"held_out_bytes": held_out_bytes, "bytes": 1000},
        "encode": {"train_tokens": train_tokens, "held_out_tokens": 1025},
    }
    make(frozen, shelf, summaries)
    found = [note for note in make_plan(frozen, store).notes if "held out" in note or "never read" in note]
    if not is_said:
        assert not found
        return
    assert found[0].startswith("curate: 33.0 % is held out where data.held_out asks for 10 %")
    assert "train.sequence=512 are never read: 469 of 1494 of main/train;" in found[1]


def test_a_plan_says_at_which_sample_a_capped_source_stops_once_its_text_is_encoded(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    two = ["data.weight=3", "data.blend.b.source=stdlib-prose:email", "data.assignment=exact"]
    words = ["experiment=tiny", "tracker=none", "train.sequence=64", "train.steps=24", *two]
    capped = compose("pretrain", [*words, "data.blend.b.epochs=0.5"])
    [note] = notes(capped, store)
    assert note.endswith("are known once their texts are encoded")
    rows = {"encode": {"train_tokens": 64_001}, "encode-b": {"train_tokens": 64 * 20 + 1}}
    make(capped, Shelf(store), rows)
    [note] = notes(capped, store)
    found = re.fullmatch(r"train: data.epochs: b \(cap of 10 samples\) stops at sample (\d+) of 192", note)
    assert found and 36 < int(found[1]) <= 40  # the tenth of one in four
    with pytest.raises(ConfigError, match=r"data.epochs: every source has .* at sample 13 of 192"):
        make_plan(compose("pretrain", [*words, "data.blend.b.epochs=0.5", "data.epochs=0.003"]), store)
    assert not notes(compose("pretrain", words), store)


def test_a_plan_names_rounded_shares_and_rows_of_padding(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    two = ["data.weight=3.000007", "data.blend.b.source=stdlib-prose:email", "data.assignment=exact"]
    ramp = "train.progressive.rampup={start:2,by:2,samples:40}"
    words = ["experiment=tiny", "tracker=none", "train.global_batch=8", "parallel.shard=4", ramp, *two]
    rounded, padded = notes(compose("pretrain", words), store)
    assert "the weights are rounded to 100,000 parts, most for b: 0.000" in rounded
    assert "2 of 4 batches do not fit 4 data-parallel ranks" in padded and "(2 as 4, 6 as 8)" in padded


def notes(frozen: RunConfig, store: Store) -> list[str]:
    """The notes on the stream of samples."""
    keys = ("data.epochs", "data.assignment", "rampup")
    return [note for note in make_plan(frozen, store).notes if any(key in note for key in keys)]


def test_prompts_of_a_user_s_own_examples_are_not_cut_unless_a_number_is_given() -> None:
    def most(*words: str) -> int | str:
        return compose("titan", list(words)).arguments.model_dump()["finetune"]["labels"]["max_chars"]

    assert (most(f"{LABELS}=mine.jsonl"), most(f"{LABELS}=mine.jsonl", f"{LABELS[:-6]}max_chars=50")) == (
        "auto",
        50,
    )
