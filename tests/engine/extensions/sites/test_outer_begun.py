"""Sites that begin with different bits under one fingerprint are refused: they exchange only deltas, so their
weights would stay different.
"""

from contextlib import nullcontext
from pathlib import Path

import pytest
from safetensors.torch import load, save

from atelier.engine.config.error import DataError
from atelier.engine.config.role import Trainable
from tests.engine.extensions.sites.at_sites import all_at_once, all_refuse
from tests.engine.extensions.sites.test_outer import EVERY, STEPS, Sites
from tests.engine.trainings import artifact, model, role, student, tokens, train
from tests.parity.cases import finished_model

OTHERS = r"round-000001/[ab].*: [ab] began with other weights than this site"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"tokens": tokens(tmp_path_factory.mktemp("text"))}


def test_sites_that_begin_as_models_of_other_bits_are_told_so(tmp_path: Path, text: dict[str, str]) -> None:
    """Also where what differs is not trained."""
    before = Sites(tmp_path / "before", text)
    before.train(role(), steps=EVERY)
    files = {path.name: path.read_bytes() for path in before.setups["a"].output("m").iterdir()}
    weights = load(files["model.safetensors"])
    name = next(iter(weights))
    other = files | {"model.safetensors": save({**weights, name: weights[name] + 1e-4}, {"format": "pt"})}

    def run(sites: Sites, found: dict[str, dict[str, bytes]], problem: str = "") -> None:
        def at(site: str) -> None:
            setup = sites.setups[site]
            model = artifact(setup.folder / "init", "model", found[site])
            setup.inputs = {**setup.inputs, "init": model}
            spec = role(lr=1e-2, trainable=Trainable(kind="lora", rank=2))
            member = setup.member("m", spec, STEPS, init="init")
            sizes = {"global_batch": 4, "micro_batch": 1, "link": sites.link_of(site)}
            setup.train(setup.training({"m": member}, train(STEPS, **sizes)))

        all_refuse(sites.setups, at, problem) if problem else all_at_once(sites.setups, at)

    equal = Sites(tmp_path / "equal", text)
    run(equal, {"a": files, "b": files})
    assert len(set(equal.models())) == 1
    run(Sites(tmp_path / "other", text), {"a": files, "b": other}, OTHERS)


@pytest.mark.parametrize("kind", ["strict", "elastic"])
def test_sites_that_draw_other_first_weights_are_told_so(
    tmp_path: Path, text: dict[str, str], kind: str
) -> None:
    """From one seed, as CPUs of two kinds do; the coordinator of an elastic membership goes on without b."""
    sites = Sites(tmp_path, text, **({"membership": {"kind": kind}} if kind == "elastic" else {}))

    def at(site: str) -> None:
        training = sites.training(site, role(lr=1e-2))
        train = training.train.model_copy(update={"seed": ord(site)})
        sites.setups[site].train(training.model_copy(update={"train": train}))

    def ends_apart(site: str) -> None:
        with pytest.raises(DataError, match=OTHERS) if site == "b" or kind == "strict" else nullcontext():
            at(site)

    all_at_once("ab", ends_apart)
    assert [setup.output("m").exists() for setup in sites.setups.values()] == [kind == "elastic", False]


def test_sites_whose_finished_teachers_have_other_bits_are_told_so(
    tmp_path: Path, text: dict[str, str]
) -> None:
    """Under one fingerprint, made in two layouts."""

    def run(sites: Sites, seeds: dict[str, int], problem: str = "") -> None:
        def at(site: str) -> None:
            setup = sites.setups[site]
            setup.inputs = dict(text)
            teacher = finished_model(setup, "teacher", model(32), seed=seeds[site])
            how = train(EVERY, global_batch=4, micro_batch=1, link=sites.link_of(site))
            roles = {"teacher": teacher, "student": student(16, attach="frozen")}
            setup.train(setup.training(roles, how))

        all_refuse("ab", at, problem) if problem else all_at_once("ab", at)

    run(Sites(tmp_path / "equal", text), {"a": 1, "b": 1})
    run(Sites(tmp_path / "other", text), {"a": 1, "b": 2}, OTHERS)
