"""A plan checks the round log that a training is to follow, at the site that reads it."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from atelier.engine.config.record import Record
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.round_log import RoundLine, RoundLog, read_log
from atelier.engine.extensions.sites.sample_log import SampleLog
from atelier.flows.run.compose import compose
from atelier.flows.run.plan import Plan, make_plan
from atelier.infra.store.lease import Holder
from atelier.infra.store.store import Store

STEPS, EVERY = 24, 4  # of experiment=tiny; of the link
ROWS = {"a": 4, "b": 4}


def log(rounds: int, sites: Iterable[str] = "ab", codec: str = "none", *, is_elastic: bool = True) -> bytes:
    made, samples = RoundLog(), SampleLog(dict.fromkeys(sites, 4), EVERY)
    for number in range(1, rounds + 1):
        made.follow(
            RoundLine(
                round=number,
                codecs={site: Codec.model_validate({"kind": codec}) for site in sites},
                sha256=dict.fromkeys(sites, "0" * 64),
                samples=samples.decided(sites, sites) if is_elastic else None,
                before=made.digest,
            )
        )
        last = made.last
        assert last is not None
        samples = SampleLog(dict.fromkeys(sites, 4), EVERY, last.samples if is_elastic else None)
    return made.text


KINDS = {
    "elastic": ["train.link.membership.kind=elastic"],
    "choose": ["train.link.choose=[{kind:none},{kind:int4}]"],
}
FAULTS = {
    "none": (None, "there is no such file; the rounds.jsonl of a finished model"),
    "damaged": (b"{", "rounds.jsonl:1"),
    "short": (log(5), "has no round 6, and this training has 6; train.steps of the training that made it"),
    "of others": (log(6, "ac"), "round 1 differs in the site c, and the training's are a, b; the log of"),
    "another codec": (log(6, codec="int8"), "round 1 has the codec int8"),
    "no samples": (log(6, is_elastic=False), "round 1 has no samples, and an elastic membership assigns"),
}


def planned(folder: Path, kind: str, data: bytes | None, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv("ATELIER_ROOT", str(folder / "store"))
    path = folder / "rounds.jsonl"
    if data is not None:
        path.write_bytes(data)
    link = [f"train.link.{word}" for word in ("rows={a:4,b:4}", "site=a", f"every={EVERY}", f"rounds={path}")]
    link += [f"train.link.mailbox={folder / 'mail'}", *KINDS[kind]]
    return make_plan(compose("pretrain", ["experiment=tiny", *link]), Store(str(folder / "store")))


@pytest.mark.parametrize("fault", [*FAULTS])
def test_a_log_of_another_training_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    data, problem = FAULTS[fault]
    [refused] = planned(tmp_path, "elastic", data, monkeypatch).refusals
    assert "train.link.rounds: " in refused and problem in refused


@pytest.mark.parametrize("kind", [*KINDS])
def test_a_log_that_fits_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    assert planned(tmp_path, kind, log(6, is_elastic=kind == "elastic"), monkeypatch).refusals == []


@pytest.mark.parametrize("is_other", [False, True])
def test_a_finished_model_of_another_log_is_not_reused_for_the_followed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_other: bool
) -> None:
    [node] = [
        each for each in planned(tmp_path, "elastic", log(6), monkeypatch).nodes if each.task == "train"
    ]
    [product] = node.products.values()
    digest = read_log(str(tmp_path / "rounds.jsonl"))[6].digest
    made = "5" * 64 if is_other else digest
    store = Store(str(tmp_path / "store"))
    draft = Record(**product.model_dump(include={*Record.model_fields}), fingerprint=product.fingerprint)
    store.publish(draft.model_copy(update={"summary": {"rounds": made}}), Holder.me())
    found = planned(tmp_path, "elastic", None, monkeypatch)
    assert "reuse" in {row["state"] for row in found.rows}
    assert [made[:12] in refused and digest[:12] in refused for refused in found.refusals] == [
        True
    ] * is_other
