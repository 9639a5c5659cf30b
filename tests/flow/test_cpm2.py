"""CPM-2's flow, tiny: an encoder-decoder grows from one language to two and to a mixture of experts, a soft
prompt of it is tuned, and it learns to write; killed without warning it ends with the same bits.
"""

import json
import random
from pathlib import Path

import pytest

from tests.catalogues import as_catalogue
from tests.faults.command import CommandStore
from tests.flow.command import Atelier
from tests.flow.kills import killed_and_finished, weights_of

ARGUMENTS = ("cpm2", "experiment=tiny", "tracker=none")
TUNED = ("experts/pretrained-0", "experts-writer/pretrained-0")

OF_EXPERTS = (
    *("experts scores", "experts-second scores", "experts/zero-shot scores"),
    *("experts/pretrained-0 scores", "experts on name/pretrained-0 scores"),
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cpm2")


def test_a_model_grows_and_every_step_says_what_it_cost(atelier: Atelier, root: Path) -> None:
    said = atelier(*ARGUMENTS)
    assert said.code == 0, said.err
    models = {record["name"]: record for record in CommandStore(root).records("model")}
    assert set(models) == {"first", "first-grown", "both", "both-upcycled", "experts", *TUNED}
    grown, upcycled = models["first-grown"]["summary"], models["both-upcycled"]["summary"]
    assert (grown["tokens_kept"], grown["tokens_new"]) == (512, 128)
    costs = {name: models[name]["summary"] for name in ("first-grown", "both-upcycled")}
    print({name: round(one["loss_after"] - one["loss_before"], 6) for name, one in costs.items()}, "nat more")
    assert 0 < grown["loss_after"] - grown["loss_before"] < 0.02
    assert upcycled["is_exact"]
    assert upcycled["loss_after"] == pytest.approx(upcycled["loss_before"], abs=1e-5)
    assert models["first-grown"]["parents"]["model"] == models["first"]["fingerprint"]
    assert models["experts"]["parents"]["init"] == models["both-upcycled"]["fingerprint"]
    [longer] = [one for one in CommandStore(root).records("tokenizer") if "extends" in one["parents"]]
    assert longer["summary"]["tokens_added"] == 128 and longer["summary"]["cut_before"]["documents"] > 0


def test_the_prompt_is_an_adapter_of_kilobytes_and_its_base_has_not_moved(
    atelier: Atelier, root: Path
) -> None:
    [adapter] = atelier.records("adapter", "experts/pretrained-0-adapter")
    [experts] = atelier.records("model", "experts")
    assert adapter["parents"]["base"] == experts["fingerprint"]
    size = sum(file["bytes"] for file in adapter["files"])
    print(f"the adapter has {size} bytes")
    assert size < 20_000
    folders = {
        name: next((root / "model" / one["fingerprint"][:16]).glob("payload-*"))
        for name in ("experts", "experts/pretrained-0")
        for one in atelier.records("model", name)
    }
    from safetensors.torch import load_file

    base, tuned = (load_file(folder / "model.safetensors") for folder in folders.values())
    assert all(base[name].equal(tuned[name]) for name in base) and set(tuned) - set(base) == {"soft.weight"}


def test_scores_of_the_mixture_were_computed_with_a_part_of_its_experts_in_memory(atelier: Atelier) -> None:
    found = [
        record["summary"]["streamed"] for name in OF_EXPERTS for record in atelier.records("scores", name)
    ]
    print("experts in memory at most, of how many:", [(c["experts_in_memory"], c["experts"]) for c in found])
    assert len(found) == len(OF_EXPERTS)
    for counts in found:
        assert 0 < counts["experts_in_memory"] < counts["experts"] == 8 * counts["blocks"]
        assert counts["experts_met"] >= counts["experts_read"] > counts["experts_in_memory"]


def test_shares_of_the_weights_lead_to_whom_they_began_in(atelier: Atelier) -> None:
    rows = json.loads(atelier("lineage", "experts/pretrained-0", "--weights", "--json").out)
    print("shares of the weights:", {row["name"]: round(row["share"], 4) for row in rows})
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)
    assert {row["name"] for row in rows} == {"first", "both-upcycled", "experts/pretrained-0"}
    assert rows[0]["name"] == "first" and rows[0]["share"] > 0.9
    assert "rows of new tokens" in atelier("lineage", "both", "--weights").out
    page = atelier("lineage", "both", "--weights", "--html", "weights.html")
    assert page.code == 2 and page.err.startswith("--html: writes the lineage")
    above = atelier("lineage", "experts").out
    for name in ("first", "first-grown", "both", "both-upcycled"):
        assert name in above


def test_again_nothing_is_left_to_do(atelier: Atelier) -> None:
    said = atelier(*ARGUMENTS)
    assert said.code == 0 and "nothing to do" in said.out


@pytest.fixture(scope="module")
def killed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> CommandStore:
    """A second store of the same run, killed twice, whose scores are computed with all experts in memory."""
    store = CommandStore(tmp_path_factory.mktemp("cpm2-killed") / "store").copy_data(CommandStore(root))
    killed_and_finished(store, (*ARGUMENTS, "score.memory_gb=0"), ("first", "experts"))
    return store


def test_killed_without_warning_it_ends_with_the_same_bits(root: Path, killed: CommandStore) -> None:
    assert weights_of(killed) == weights_of(CommandStore(root))


def test_scores_of_a_mixture_in_parts_have_the_bits_of_those_of_all_of_it(
    root: Path, killed: CommandStore
) -> None:
    streamed, resident = scores_of(CommandStore(root)), scores_of(killed)
    assert set(OF_EXPERTS) <= streamed.keys() and streamed == resident
    assert not any("streamed" in record["summary"] for record in killed.records("scores"))


def scores_of(store: CommandStore) -> dict[str, str]:
    """The digest of each scores.json, by name."""
    return {
        record["name"]: file["sha256"]
        for record in store.records("scores")
        for file in record["files"]
        if file["path"].endswith("scores.json")
    }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("data.source=README.md",),
            "data.blend.second: is missing; it holds the text of the second language",
        ),
        (("data.source=stdlib-prose",), "data.blend.second: is missing"),
        (("grow.vocab=512",), "grow.vocab"),
        (("upcycle.router=learned",), "no router learns"),
        (
            (
                *("upcycle.router=learned", "upcycle.finer=5"),
                *("upcycle.experts_per_token=10", "upcycle.num_experts=10"),
            ),
            "5 does not divide",
        ),
        (("generate.labels.task=names",), "generate.labels.task"),
        (("generate.sequence=64", "generate.trainable={kind:prompt,length:64}"), "generate.trainable.length"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_plan(
    atelier: Atelier, words: tuple[str, ...], says: str
) -> None:
    said = atelier("plan", *ARGUMENTS, *words)
    assert said.code == 2 and says in said.err and len(said.err.strip().splitlines()) == 1


def test_a_training_goes_on_with_its_parents_optimiser_states(atelier: Atelier) -> None:
    """Of a model that was trained; what was only converted has none, which is said before anything runs."""
    fixed = ("convert.router=orthogonal", "convert.experts_per_token=1")
    grow = (
        "convert",
        "experiment=tiny",
        "tracker=none",
        "convert=upcycle",
        *fixed,
        "convert.optimizer=grown",
    )
    said = atelier(*grow, "init=first", "name=wide")
    assert said.code == 0, said.err
    [wide] = atelier.records("model", "wide")
    assert {"optimizer.safetensors", "optimizer.json"} <= {
        file["path"].split("/")[-1] for file in wide["files"]
    }
    words = (
        *("pretrain", "experiment=tiny", "tracker=none", "tokenizer.model=first", "model=auto"),
        "objective=[spans,prefix]",
    )
    said = atelier(*words, "init=wide", "name=on")
    assert said.code == 0, said.err
    assert atelier.records("model", "on")[0]["summary"]["began_with_states"] is True
    again = atelier(*grow, "init=first-grown", "name=wider")
    assert (
        again.code == 2 and "convert.optimizer: grown, but first-grown has no final checkpoint" in again.err
    )
    short = atelier(*ARGUMENTS, "train.keep=0", "grow.vocabulary.optimizer=grown")
    assert short.code == 2 and "grow.vocabulary.optimizer: grown, but train.keep=0" in short.err


def test_two_languages_of_catalogues(atelier: Atelier, tmp_path: Path) -> None:
    """Of this test's own: not every machine has some."""
    draw = random.Random(1)
    words = {f"word{n}": f"W\xf6rter{n}" for n in range(300)}
    for number in range(12):
        some = [draw.choices(list(words), k=12) for _ in range(150)]
        pairs = {" ".join(each): " ".join(words[word] for word in each) for each in some}
        (tmp_path / f"{number}.mo").write_bytes(as_catalogue(list(pairs.items())))
    said = atelier(*ARGUMENTS, "data=catalogues", f"data.source='{tmp_path}/*.mo'")
    assert said.code == 0, said.err
    sizes = [record["summary"]["documents"] for record in atelier.records("corpus", "second")]
    assert 1500 < max(sizes) <= 1800
