"""A configuration from kept groups is the one that Hydra composes."""

import os
import random
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from atelier.engine.config.error import ConfigError
from atelier.flows.run import hydra_document
from atelier.flows.run.catalog import CONF, options
from atelier.flows.run.hydra_document import composed_document

GOOD = (
    "++train.steps=7", "++optim.lr=1e-3", "++data.source=stdlib:csv", "++train.seed=", "++model.num_layers=3",
    "++roles.student_a.start=5", "++roles.new.model.hidden=8", "++a.b={c:[1,2]}", "++train={seed:9}",
    "++seed=${train.steps}", "++data.x='a b'", "++hydra.job.name=x", "++init=null", "+train.new=1",
    "~train.seed", "optim=muon", "tracker=none",
)  # fmt: skip
BAD = (
    "++train.steps=1,2", "++train.steps=(", "++train.steps=???", "++a.b.c=1", "model=none", "experiment=no",
    "train=x", "tracker@data=none", "+role@roles.pupil=student",
)  # fmt: skip


def of_hydra(flow: str, words: list[str]) -> object:
    try:
        return OmegaConf.to_container(
            hydra_document._composed(flow, words), resolve=True, throw_on_missing=True
        )
    except Exception as error:
        return str(hydra_document.explained(error))


def of_groups(flow: str, words: list[str]) -> object:
    try:
        return composed_document(flow, words)
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize("flow", ["corpus", "pretrain", "distill", "titan"])
def test_drawn_overrides_give_what_hydra_gives(flow: str) -> None:
    draw = random.Random(flow)
    good = draw.sample(GOOD, len(GOOD))
    for number in range(5):
        words = [f"experiment={draw.choice(options('experiment'))}", *good[number::5]]
        words += draw.sample(BAD, number % 2)
        assert of_groups(flow, words) == of_hydra(flow, words), words


def test_a_changed_file_counts_and_values_stay_out_of_the_kept_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "conf"
    shutil.copytree(CONF, conf)
    monkeypatch.setattr(hydra_document, "CONF", conf)
    first = composed_document("corpus", ["experiment=tiny", "++data.source=here"])
    again = composed_document("corpus", ["experiment=tiny"])
    assert first != again
    file = conf / "corpus.yaml"
    file.write_text(file.read_text() + "\nadded: 3\n")
    os.utime(file, ns=(1, 1))
    assert composed_document("corpus", ["experiment=tiny"]) == {**again, "added": 3}
    file.write_text(file.read_text().replace("added: 3", "added: ${oc.env:ATELIER_TESTS_ADDED}"))
    for value in ("x", "y"):
        monkeypatch.setenv("ATELIER_TESTS_ADDED", value)
        assert composed_document("corpus", ["experiment=tiny"]) == {**again, "added": value}
