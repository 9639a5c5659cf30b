"""The placement of nebula's tasks at its sites, its controls, and what is refused."""

from pathlib import Path

import pytest

from atelier.engine.config.error import ConfigError
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import placed_nodes
from atelier.flows.run.plan import make_plan
from atelier.infra.store.store import Store
from tests.flows.run.test_over_sites import sites_of

ALL_OF_IT = ("tune.trainable.kind=full", "~tune.trainable.rank", "~tune.trainable.alpha")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    return tmp_path


def test_nebula_pretrains_at_both_its_generator_and_its_student_are_at_home(root: Path) -> None:
    words = ["experiment=tiny", "score.controls=true"]
    found = sites_of(placed_nodes(compose("nebula", words), Store(str(root))))
    assert {"train", "detect.a", "tune.a", "tune.controls", "pose.translation", "score", "report"} <= {
        *found["a"]
    }
    assert found["b"] == [
        "curate@b", "curate-sov@b", "learn_tokenizer@b", "encode@b", "encode-sov@b", "train@b",
        "detect.b@b", "render@b", "tune.b@b",
    ]  # fmt: skip
    both = "tune.link.roles={b:[teacher,student]}"
    there = sites_of(placed_nodes(compose("nebula", ["experiment=tiny", both]), Store(str(root))))["b"]
    assert there[-1] == "tune.b@b"
    for words in ((), ("sites=[]",)):  # what a form or GPUs choose for the first training suits the second
        compose("nebula", ["experiment=tiny", "train.global_batch=64", "train.micro_batch=16", *words])


def test_controls_of_nebula_are_trainings_of_a_one_site_run_of_an_uncompressed_one_and_of_one_more_student(
    root: Path,
) -> None:
    """With the fingerprints of those runs, so that each is computed once."""

    def products(*words: str) -> dict[str, str]:
        nodes = placed_nodes(compose("nebula", ["experiment=tiny", *words]), Store(str(root)))
        here = [node for nodes_there in (nodes.here, *nodes.there.values()) for node in nodes_there]
        made = [each for node in here if node.task == "train" for each in node.products.values()]
        return {product.name: product.fingerprint for product in made}

    own, alone = products(), products("sites=[]")
    whole, full = products("train.link.codec.kind=none"), products(*ALL_OF_IT)
    found = products("tune.controls=[all-weights,one-site,no-codec]")
    assert {name: found[name] for name in own} == own
    assert {name: found[f"{name}-one-site"] for name in alone} == alone
    assert {name: found[f"{name}-no-codec"] for name in whole} == whole
    assert found["student-all-weights"] == full["student"] != own["student"]
    assert len({found[name] for name in found if name.startswith("student")}) == 4
    assert len(found) == 3 * len(own) + 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("tune.link.roles={a:[teacher],c:[student]}",), "c is not one of sites"),
        (
            ("tune.link.roles={a:[techer],b:[student]}",),
            "techer is none of teacher, student, student-all-weights",
        ),
        (("sites=[]", "tune.controls=[one-site]"), "tune.controls: one-site is this run itself"),
        (("train.link.codec.kind=none", "tune.controls=[no-codec]"), "no codec compresses its contributions"),
        (("sites=[]", "tune.controls=[no-codec]"), "no codec compresses its contributions"),
        (("tune.controls=[one-site,one-site]",), "give each once"),
        (
            (*ALL_OF_IT, "tune.controls=[all-weights]"),
            "all-weights is the student itself with trainable.kind=full",
        ),
        (("~tune.objective.logits",), "none learns from the teacher"),
        (("~tune.objective.chat",), "none learns from answers"),
        (("tune.link.choose=[{kind:int8},{kind:int4}]",), "does nothing in the flow nebula"),
        (("detect.link.every=4",), "does nothing in the flow nebula"),
        (("detect.link.roles={a:[generator],b:[detecter]}",), "detecter is none of generator, detector"),
        (("~detect.objective.replaced",), "none learns from the generator"),
        (("~detect.objective.lm",), "none predicts tokens"),
        (
            ("tune.trainable.kind=none", "~tune.trainable.rank", "~tune.trainable.alpha"),
            "trainable.kind=none is not built here",
        ),
        (("tune.trainable={kind:lora,targets:[querry]}",), "the model has no matrix 'querry'"),
        (("tune.chats.source=languages:svo",), "give two languages, to translate from and into"),
        (("tune.chats.source=languages:svo-osv",), "there is no generated language 'osv'"),
        (("data.source=languages:sov:-1",), "give the number of texts and the world"),
        (("tune.chats.source=languages:svo-sov", "tune.chats.prompt=x", "tune.chats.answer=y"), "no fields"),
        (("tune.optim.schedule.warmup=500",), "warmup"),
        (("tune.chats.source=/nowhere.jsonl",), "tune.chats.source: "),
        (("tune.link.roles={a:[teacher],b:[]}",), "tune.link.roles: student is at no site"),
        (("tune.link.roles={a:[teacher],b:[]}",), "tune.link.roles.a=[...,student]"),
        (("sites.at={tune.a:b}",), "but tune.link has it at a"),
        (("sites=[]", "tune.link.roles={a:[teacher],b:[student]}"), "tune.link.site: is not given"),
        (
            (
                "sites=[]",
                "tune.link.roles={a:[teacher],b:[student]}",
                "tune.link.site=c",
                "tune.link.mailbox=/m",
            ),
            "tune: link.site=c",
        ),
    ],
)
def test_what_nebula_cannot_do_is_one_line(root: Path, words: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        placed_nodes(compose("nebula", ["experiment=tiny", *words]), Store(str(root)))
    assert why in str(refused.value) and "\n" not in str(refused.value), refused.value


def test_answers_of_more_tokens_than_there_are_are_refused_where_they_are_set(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"tune.link.top: .*tune.link.top=all"):
        make_plan(compose("nebula", ["experiment=tiny", "tune.link.top=100000"]), Store(str(root)))
