"""Agents without a port that exchange through a bucket of a real store."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.sites.agents import friends, running, until
from tests.infra.sites.test_agent import body
from tests.service.swift import Swift, missing, swift

pytestmark = [
    pytest.mark.root,
    pytest.mark.service,
    pytest.mark.skipif(bool(missing()), reason=missing() or "all is here"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swift]:
    with swift(tmp_path_factory.mktemp("swift") / "store") as running_store:
        yield running_store


def test_messages_arrive_whole_through_a_bucket_also_after_a_kill(
    store: Swift, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in store.environment().items():
        monkeypatch.setenv(name, value)
    sites = friends(tmp_path, carrier="bucket", url=f"s3://{store.bucket}/mail")
    a, b = sites.values()
    for site in (a, b):
        site.box.open(site.name, ["a", "b"])
    sent = {(site.name, number): os.urandom(5_000_001) for site in (a, b) for number in (1, 2)}
    with running(sites.values()) as kill:
        for number in (1, 2):
            for site in (a, b):
                site.send(number, sent[site.name, number])
            kill("b")
            until(lambda n=number: a.box.has(n, "b") and b.box.has(n, "a"), a.log() + b.log())
    for number in (1, 2):
        assert body(a, number, "b") == sent["b", number] and body(b, number, "a") == sent["a", number]
