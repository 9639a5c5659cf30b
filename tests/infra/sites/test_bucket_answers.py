"""An attacker who can write to the bucket can stop an exchange, but cannot forge an answer or a door."""

import hashlib
import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from atelier.infra.sites.bucket import IN, MOST_OBJECT, OUT, Beacon, new_start, publish
from atelier.infra.sites.bucket_calls import AnswerHead, Calls
from atelier.infra.sites.bucket_link import BucketLink
from atelier.infra.sites.keys import Keys
from atelier.infra.sites.sealed import Context, seal
from atelier.infra.sites.transfer import CallError
from tests.infra.sites.agents import until
from tests.infra.sites.bucket_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class Impostor:
    """In the place of a's agent: takes b's requests from the bucket and writes answers, rightly made unless
    something is changed.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench, self.nonce, self.beat = bench, new_start(), 0
        self.bucket = bench.bucket
        self.bucket.make()
        self.open_door()
        self.requests: list[tuple[str, bytes]] = []

    def open_door(self, keys: Keys | None = None) -> None:
        self.beat += 1
        door = Beacon(certificate=self.bench.a.keys.card.digest, nonce=self.nonce, beat=self.beat)
        publish(self.bucket, door, keys or self.bench.a.keys)

    def request(self) -> tuple[str, bytes]:
        """Name and first object of the request that comes."""
        until(lambda: bool(self.bucket.blocks(IN)), "no request comes")
        [(name, _)] = self.bucket.blocks(IN)
        data = self.bucket.read(IN, f"{name}.0")
        assert data is not None
        self.bucket.remove(IN, f"{name}.0")
        self.requests.append((name, data))
        return name, data

    def answer(self, name: str, request: bytes, text: bytes, keys: Keys | None = None, **more: Any) -> bytes:
        keys = keys or self.bench.a.keys
        about = {"kind": "answer", "recipient": self.bench.b.keys.card.digest, "call": name, "block": 0}
        about |= {"request": hashlib.sha256(request).hexdigest()} | more.pop("about", {})
        given = {"sender": keys.card.digest} | more
        context = Context.model_validate(about)
        return seal(AnswerHead.model_validate(given), text, context, keys, self.bench.b.keys.card)


def link_of(bench: Bench, on_refused: Callable[[str], None] = lambda why: None) -> BucketLink:
    card = bench.a.keys.card
    return BucketLink(bench.b.keys, card, card.address, Calls(bench.b.keys), on_refused)


Forge = Callable[[Impostor, random.Random, str, bytes], bytes]


def answer_flipped(impostor: Impostor, draw: random.Random, name: str, request: bytes) -> bytes:
    made = bytearray(impostor.answer(name, request, b'"wrong"'))
    made[draw.randrange(len(made))] ^= 1 << draw.randrange(8)
    return bytes(made)


def answer_truncated(impostor: Impostor, draw: random.Random, name: str, request: bytes) -> bytes:
    made = impostor.answer(name, request, b'"wrong"')
    return made[: draw.randrange(len(made))]


def answer_to_another_call(impostor: Impostor, draw: random.Random, name: str, request: bytes) -> bytes:
    return impostor.answer(*impostor.requests[0], b'"wrong"')


def answer_to_another_request(impostor: Impostor, draw: random.Random, name: str, request: bytes) -> bytes:
    return impostor.answer(name, impostor.requests[0][1], b'"wrong"')


def answer_of_another_site(impostor: Impostor, draw: random.Random, name: str, request: bytes) -> bytes:
    """c, whom b trusts as well, knows the request's digest."""
    return impostor.answer(name, request, b'"wrong"', impostor.bench.c.keys)


def answer_of_a_stranger(impostor: Impostor, draw: random.Random, name: str, request: bytes) -> bytes:
    claimed = draw.choice([impostor.bench.a, impostor.bench.stranger]).keys.card.digest
    return impostor.answer(name, request, b'"wrong"', impostor.bench.stranger.keys, sender=claimed)


def answer_that_is_its_request(impostor: Impostor, draw: random.Random, name: str, request: bytes) -> bytes:
    return request


def answer_oversized(impostor: Impostor, draw: random.Random, name: str, request: bytes) -> bytes:
    return b"\0" * (MOST_OBJECT + 1)


FORGERIES: list[Forge] = [
    answer_flipped,
    answer_truncated,
    answer_to_another_call,
    answer_to_another_request,
    answer_of_another_site,
    answer_of_a_stranger,
    answer_that_is_its_request,
    answer_oversized,
]


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
@pytest.mark.parametrize("seed", range(2))
def test_nothing_that_somebody_else_has_made_of_an_answer_is_believed(
    bench: Bench, forge: Forge, seed: int
) -> None:
    draw, impostor, refused = random.Random(seed), Impostor(bench), list[str]()
    link = link_of(bench, refused.append)
    said: list[bytes | CallError] = []

    def ask() -> None:
        try:
            said.append(link.ask("Offer", b"{}", (), 20))
        except CallError as error:
            said.append(error)

    for number in range(3):
        asking = threading.Thread(target=ask)
        asking.start()
        name, request = impostor.request()
        made = forge(impostor, draw, name, request) if number == 1 else impostor.answer(name, request, b"{}")
        bench.bucket.write(made, OUT, f"{name}.0")
        asking.join()
    assert said[0] == said[2] == b"{}"
    assert isinstance(said[1], CallError) and said[1].code() == grpc.StatusCode.DATA_LOSS
    assert len(refused) == 1 and bench.a.keys.card.address in refused[0]


def test_an_answer_of_whom_is_not_trusted_any_more_is_not_believed(bench: Bench) -> None:
    """It is revoked while its answer is awaited."""
    impostor, said = Impostor(bench), list[grpc.StatusCode]()
    link = link_of(bench)

    def ask() -> None:
        try:
            link.ask("Offer", b"{}", (), 20)
        except CallError as error:
            said.append(error.code())

    asking = threading.Thread(target=ask)
    asking.start()
    name, request = impostor.request()
    bench.b.keys.revoke("a")
    bench.bucket.write(impostor.answer(name, request, b"{}"), OUT, f"{name}.0")
    asking.join()
    assert said == [grpc.StatusCode.DATA_LOSS]


def test_a_door_that_is_not_its_agents_is_not_believed(bench: Bench) -> None:
    impostor = Impostor(bench)
    impostor.open_door(bench.c.keys)

    def ask() -> grpc.StatusCode:
        link = link_of(bench)
        with pytest.raises(CallError) as refused:
            link.ask("Offer", b"{}", (), 1)
        return refused.value.code()

    assert ask() == grpc.StatusCode.DATA_LOSS
    for data in (b"", b"{}", b"[" * 4000, b"x" * 5000, json.dumps({"door": {}, "signature": "?"}).encode()):
        bench.bucket.write(data, "door")
        assert ask() == grpc.StatusCode.DATA_LOSS
    bench.bucket.remove("door")
    assert ask() == grpc.StatusCode.UNAVAILABLE


def test_no_more_than_one_answer_to_a_request_is_taken(bench: Bench) -> None:
    """What else lies in the place of an answer is removed when the agent there begins anew."""
    impostor, said = Impostor(bench), list[bytes]()
    link = link_of(bench)
    asking = threading.Thread(target=lambda: said.append(link.ask("Offer", b"{}", (), 5)))
    asking.start()
    name, request = impostor.request()
    for block in (1, 0):
        made = impostor.answer(name, request, b"{}", about={"block": block})
        bench.bucket.write(made, OUT, f"{name}.{block}")
    asking.join()
    assert said == [b"{}"] and bench.bucket.blocks(OUT) == [(name, 1)]
