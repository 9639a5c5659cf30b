"""Codecs: outer weights have equal bits everywhere, killed or not; the compression error is fed back; and
invalid messages are refused.
"""

import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from atelier.engine.config.base import parse
from atelier.engine.config.error import ConfigError, DataError, StoppedError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.train import Train
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.config.outer import Outer
from atelier.engine.extensions.sites.config.train.link import Link
from atelier.engine.extensions.sites.encoded import message_bytes
from atelier.engine.io.weight_files import METADATA
from atelier.engine.model.weights import entry_of
from tests.engine.extensions.sites.at_sites import beside_a_gang
from tests.engine.extensions.sites.test_outer import (
    EVERY,
    STEPS,
    TWO,
    Sites,
    check_kills,
    decoded,
    first_weights,
    replayed,
    text,
)
from tests.engine.trainings import AfterSteps, role, student, train
from tests.forks import start_gang
from tests.parity.cases import layout as layout_of

__all__ = ["text"]
LOSSY: list[dict[str, Any]] = [
    {"kind": "bf16"},
    {"kind": "int8"},
    {"kind": "int4", "block": 64},
    {"kind": "int2", "block": 32},
    {"kind": "topk", "share": 0.05},
    {"kind": "powersgd", "rank": 2},
]
FEW = {"a": 1, "b": 1}
NESTEROV = {"kind": "nesterov", "lr": 0.7, "momentum": 0.9}
SPARSE = {"kind": "sparse", "lr": 0.8, "decay": 0.5}


def kind_of(codec: dict[str, Any]) -> str:
    return codec["kind"]


@pytest.mark.parametrize("codec", LOSSY, ids=kind_of)
def test_all_sites_have_the_bits_that_their_messages_say_in_as_many_bytes_as_promised(
    tmp_path: Path, text: dict[str, str], codec: dict[str, Any]
) -> None:
    rows = {"b": 2, "a": 1, "c": 1} if codec["kind"] in ("int4", "topk") else {"a": 1, "b": 2}
    outer = SPARSE if codec["kind"] == "topk" else NESTEROV
    sites = Sites(tmp_path, text, rows=rows, outer=outer, codec=codec)
    sites.train(role(lr=1e-2))
    assert len(set(sites.models())) == 1
    first = first_weights()
    found, expected = load(sites.models()[0]), replayed(sites, first, STEPS // EVERY)
    assert all(torch.equal(found[name], expected[name]) for name in found | expected)
    weights = [entry_of(name, tuple(one.shape), one.dtype) for name, one in sorted(first.items())]
    promised = message_bytes(Codec(**codec), weights)
    for number in range(1, STEPS // EVERY + 1):
        for site in rows:
            assert (sites.message(number, site) / "tensors.safetensors").stat().st_size == promised
    assert promised < message_bytes(Codec(), weights)
    losses = [line["values"]["loss"] for line in sites.setups["a"].curve("m")]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("layout", "codec"),
    [
        pytest.param(layout_of(shard=2), LOSSY[2], marks=pytest.mark.slow),
        pytest.param(layout_of(tensor=2), LOSSY[5], marks=pytest.mark.slow),
        (layout_of(pipeline=2), LOSSY[4]),
    ],
    ids=["shard", "tensor", "pipeline"],
)
def test_sites_of_other_layouts_read_the_same_bits(
    tmp_path: Path, text: dict[str, str], layout: Parallel, codec: dict[str, Any]
) -> None:
    sites = Sites(tmp_path, text, outer=NESTEROV, codec=codec)
    path = sites.write("b", TWO, layout)
    beside_a_gang(tmp_path, path, lambda: sites.setups["a"].train(sites.training("a", TWO)))
    assert len(set(sites.models())) == 1
    found, expected = load(sites.models()[0]), replayed(sites, first_weights(TWO.model), STEPS // EVERY)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_rank_that_has_nothing_of_a_role_keeps_in_step(tmp_path: Path, text: dict[str, str]) -> None:
    """A pipeline's last stage alone has the student."""
    sites = Sites(tmp_path, text, rows={"a": 4}, codec=LOSSY[4])
    setup = sites.setups["a"]
    sizes = {"global_batch": 4, "micro_batch": 1, "link": sites.link_of("a")}
    training = setup.training({"teacher": TWO, "pupil": student()}, train(STEPS, **sizes))
    setup.folder.mkdir(parents=True)
    path = setup.folder / "run.json"
    path.write_text(setup.run_file(training, layout=layout_of(pipeline=2)).model_dump_json(by_alias=True))
    start_gang("tests.parity.gang", tmp_path, 2, str(path))
    assert load(setup.weights("pupil"))


@pytest.mark.parametrize(
    "codec",
    [
        pytest.param(LOSSY[3], marks=pytest.mark.slow),
        LOSSY[4],
        pytest.param(LOSSY[5], marks=pytest.mark.slow),
    ],
    ids=kind_of,
)
def test_killed_sites_go_on_to_the_same_bits_with_what_a_codec_has_lost(
    tmp_path: Path, text: dict[str, str], codec: dict[str, Any]
) -> None:
    check_kills(tmp_path, text, random.Random(codec["kind"]), codec=codec)


@pytest.mark.parametrize("codec", LOSSY, ids=kind_of)
def test_what_a_codec_has_lost_is_in_the_checkpoint(
    tmp_path: Path, text: dict[str, str], codec: dict[str, Any]
) -> None:
    """A training that is stopped within a round ends with the bits of one that is not."""
    whole, pieces = (Sites(tmp_path / name, text, rows={"a": 2}, codec=codec) for name in ("whole", "pieces"))
    whole.train(role(lr=1e-2))
    setup = pieces.setups["a"]
    assert setup.train_in_pieces(pieces.training("a", role(lr=1e-2)), 3) >= 1
    assert pieces.models() == whole.models()


def test_what_a_codec_loses_comes_in_the_next_rounds(tmp_path: Path, text: dict[str, str]) -> None:
    """What site a has sent in all its rounds is nearer to what its weights moved by with feedback."""
    sent = {}
    plain = Sites(tmp_path / "plain", text, rows={"a": 2})
    plain.train(role(lr=1e-2), steps=12)
    for feedback in (True, False):
        sites = Sites(tmp_path / str(feedback), text, rows={"a": 2}, codec=LOSSY[4], feedback=feedback)
        sites.train(role(lr=1e-2), steps=12)
        mine, theirs, first = load(sites.models()[0]), load(plain.models()[0]), first_weights()
        far = sum(float((mine[name] - theirs[name]).square().sum()) for name in mine)
        sent[feedback] = far / sum(float((first[name] - theirs[name]).square().sum()) for name in mine)
    assert sent[True] < sent[False]


def test_what_sparse_has_not_sent_fades(tmp_path: Path, text: dict[str, str]) -> None:
    """2508.15706, algorithm 1: what a site gathers is e <- decay e + what its weights moved by. In round 2
    half of what was not sent is halfway between all of it and nothing.
    """
    codec, half = {"kind": "topk", "share": 0.5}, {"kind": "sparse", "decay": 0.5}
    all_of_it, nothing = {"kind": "sparse", "decay": 1.0}, {"kind": "average"}
    sent: list[dict[str, Tensor]] = []
    for outer in (all_of_it, nothing, half):
        sites = Sites(tmp_path / str(len(sent)), text, rows={"a": 2}, codec=codec, outer=outer)
        sites.link["feedback"] = outer is not nothing
        sites.train(role(lr=1e-2), steps=2 * EVERY)
        sent.append(decoded(Link(**sites.link, site="a"), sites.body(2, "a"), first_weights()))
    for name in sent[0]:
        whole, none, faded = (each[name] for each in sent)
        in_all = (whole != 0) & (none != 0) & (faded != 0)
        assert in_all.float().mean() > 0.2 and not torch.equal(whole, none)
        torch.testing.assert_close(faded[in_all], (whole[in_all] + none[in_all]) / 2)


def bad_body(fault: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a message with one fault."""
    parts = {name.rpartition(":")[2]: name for name in tensors}  # one name of each kind
    if fault == "more":
        return tensors | {"stranger": torch.zeros(3)}
    if fault == "less":
        return dict(list(tensors.items())[1:])
    if fault == "type":
        name = next(iter(tensors))
        return tensors | {name: tensors[name].to(torch.float16)}
    if fault == "shape":
        name = next(iter(tensors))
        return tensors | {name: tensors[name][:-1].clone()}
    if fault == "not finite":
        name = next(name for name, one in tensors.items() if one.dtype.is_floating_point)
        return tensors | {name: tensors[name] * float("inf")}
    place = {"code": "codes", "repeated": "indices", "outside": "indices"}[fault]
    one = tensors[parts[place]].clone()
    if fault == "code":
        one[0] = 255
    elif fault == "repeated":
        one[1] = one[0]
    else:
        one[-1] = 2**30
    return tensors | {parts[place]: one}


REASONS = {  # why a message with a fault is not taken
    "not finite": "is not finite",
    "more": "has stranger, which does not belong to it",
    "less": "has no .* of shape",
    "shape": "has no .* of shape",
    "type": r"is torch.float16, not torch\.",
    "code": "has a code above",
    "codec": "has codec int8 .*, and the training's",
    "repeated": "its indices do not rise",
    "outside": "its indices do not rise",
}


@pytest.fixture(scope="module")
def contributed(tmp_path_factory: pytest.TempPathFactory, text: dict[str, str]) -> Callable[..., Path]:
    """The first contribution of site b with a codec, from a run that stopped while it waited for a."""
    known: dict[str, Path] = {}

    def found(codec: dict[str, Any]) -> Path:
        if codec["kind"] not in known:
            sites = Sites(tmp_path_factory.mktemp(codec["kind"]), text, rows=FEW, codec=codec)
            setup = sites.setups["b"]
            with pytest.raises(StoppedError, match="waited for a"):
                setup.train(sites.training("b", role(lr=1e-2), EVERY), stop=AfterSteps(setup.folder, EVERY))
            known[codec["kind"]] = sites.message(1, "b")
        return known[codec["kind"]]

    return found


@pytest.mark.parametrize(
    ("codec", "fault"),
    [(codec, "not finite") for codec in LOSSY]
    + [(codec, fault) for codec in (LOSSY[2], LOSSY[5]) for fault in ("more", "less", "type", "shape")]
    + [(LOSSY[0], "codec"), (LOSSY[1], "codec"), (LOSSY[2], "code"), (LOSSY[3], "code")]
    + [(LOSSY[4], "repeated"), (LOSSY[4], "outside")],
    ids=lambda value: value if isinstance(value, str) else value["kind"],
)
def test_a_message_that_is_not_of_the_codec_is_named_and_nothing_is_learned_from_it(
    tmp_path: Path,
    text: dict[str, str],
    contributed: Callable[..., Path],
    codec: dict[str, Any],
    fault: str,
) -> None:
    """Also where head and digest agree with it."""
    sites, good = Sites(tmp_path, text, rows=FEW, codec=codec), contributed(codec)
    place = tmp_path / "mail" / good.parent.parent.name / good.parent.name / "b"
    shutil.copytree(good, place)
    head, body = place / "message.json", place / "tensors.safetensors"
    about, raw = json.loads(head.read_bytes()), body.read_bytes()
    if fault == "codec":
        about["codec"] = {"kind": "int8", "block": 512}
    else:
        raw = save(bad_body(fault, load(raw)), METADATA)
        about["body"] |= {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    body.write_bytes(raw)
    head.write_text(json.dumps(about))
    with pytest.raises(DataError, match=re.escape(str(place))) as error:
        sites.setups["a"].train(sites.training("a", role(lr=1e-2), EVERY))
    assert re.search(REASONS[fault], str(error.value)), str(error.value)
    assert "\n" not in str(error.value)
    assert not sites.setups["a"].output("m").exists()


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ({"codec": {"kind": "int3"}}, r"train.link.codec.kind: .*int3"),
        (
            {"codec": {"kind": "int4", "rank": 8}},
            "codec.rank does nothing with kind=int4; it is for powersgd",
        ),
        ({"codec": {"kind": "topk", "share": 1.5}}, "train.link.codec.share"),
        ({"codec": {"kind": "int4", "block": 12}}, "train.link.codec.block"),
        ({"feedback": False}, "link.feedback=false does nothing with codec.kind=none"),
    ],
)
def test_a_codec_that_does_not_fit_is_refused(link: dict[str, Any], problem: str) -> None:
    given = {"rows": {"a": 2, "b": 2}, "site": "a", "mailbox": "/tmp/x", **link}
    document = {"steps": 8, "global_batch": 4, "sequence": 16, "link": given}
    with pytest.raises(ConfigError, match=problem):
        parse(Train, document, "train")


def test_a_codec_and_its_feedback_are_identity_and_none_is_what_was_before() -> None:
    """So trainings without a codec keep their fingerprints."""
    where = {"rows": {"a": 2, "b": 2}, "site": "a", "mailbox": "/tmp/x"}
    assert Link(**where).as_identity() == {"rows": {"a": 2, "b": 2}}
    int4 = Link(**where, codec=Codec(kind="int4")).as_identity()
    assert int4 == {"rows": {"a": 2, "b": 2}, "codec": {"kind": "int4"}}
    assert Link(**where, codec=Codec(kind="int4"), feedback=False).as_identity() == int4 | {"feedback": False}
    nesterov = Link(**where, outer=Outer(kind="nesterov", momentum=0.9)).as_identity()
    assert nesterov["outer"] == {"kind": "nesterov", "lr": 1.0, "momentum": 0.9}  # no decay
