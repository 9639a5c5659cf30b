"""Notes of a plan about finished data: the held-out share, and tokens that no training reads."""

from pathlib import Path

import pytest

from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.flows.run.plan import make_plan
from atelier.infra.store.store import Store
from tests.infra.records import Shelf

LABELS = "finetune.labels.source"
ASKED = ["experiment=tiny", "tracker=none", "train.sequence=512"]


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
    for node in collect_nodes(frozen, store):
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
    found = [note for note in make_plan(frozen, store).notes if "held out" in note or "never read" in note]
    if not is_said:
        assert not found
        return
    assert found[0].startswith("curate: 33.0 % is held out where data.held_out asks for 10 %")
    assert "train.sequence=512 are never read: 469 of 1494 of main/train;" in found[1]


def test_prompts_of_a_user_s_own_examples_are_not_cut_unless_a_number_is_given() -> None:
    def most(*words: str) -> int | str:
        return compose("titan", list(words)).arguments.model_dump()["finetune"]["labels"]["max_chars"]

    assert (most(f"{LABELS}=mine.jsonl"), most(f"{LABELS}=mine.jsonl", f"{LABELS[:-6]}max_chars=50")) == (
        "auto",
        50,
    )
