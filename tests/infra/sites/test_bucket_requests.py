"""An attacker who can write to the bucket can stop an exchange, but no request is accepted that is changed,
sent again, moved to another place, or of another site. Drawn from a seed.
"""

import hashlib
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from atelier.infra.sites import keys
from atelier.infra.sites.agent import Agent
from atelier.infra.sites.bucket import IN, MOST_OBJECT, OUT
from atelier.infra.sites.bucket_calls import AnswerHead, RequestHead
from atelier.infra.sites.bucket_server import NOBODY
from atelier.infra.sites.sealed import Context, seal, unseal
from tests.infra.sites.agents import asked, until
from tests.infra.sites.bucket_bench import Bench, Forger
from tests.infra.sites.test_agent import DATA, body, head


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


Attack = Callable[[Bench, random.Random], str]  # does it; what the refusal says


def flipped(bench: Bench, draw: random.Random) -> str:
    made = bench.made()
    block = draw.randrange(4)
    changed = bytearray(made.objects[block])
    for _ in range(draw.choice([1, 1, 5])):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    made.objects[block] = bytes(changed)
    bench.put(made.call, made.objects)
    return "is not sealed for this site and this place, or it was changed"


def truncated(bench: Bench, draw: random.Random) -> str:
    made = bench.made()
    block = draw.randrange(4)
    made.objects[block] = made.objects[block][: draw.randrange(len(made.objects[block]))]
    bench.put(made.call, made.objects)
    return "is not sealed for this site and this place, or it was changed"


def swapped(bench: Bench, draw: random.Random) -> str:
    made = bench.made()
    one, other = draw.sample(range(4), 2)
    made.objects[one], made.objects[other] = made.objects[other], made.objects[one]
    bench.put(made.call, made.objects)
    return "is not sealed for this site and this place, or it was changed"


def of_another_call(bench: Bench, draw: random.Random) -> str:
    """An object of the same block, of the same site's other call."""
    made, block = bench.made(), draw.randrange(4)
    made.objects[block] = bench.made().objects[block]
    bench.put(made.call, made.objects)
    return "is not sealed for this site and this place, or it was changed"


def under_another_name(bench: Bench, draw: random.Random) -> str:
    bench.put(draw.randbytes(16).hex(), bench.made().objects)
    return "is not sealed for this site and this place, or it was changed"


def of_a_trusted_third(bench: Bench, draw: random.Random) -> str:
    """c, whom a trusts as well, knows the call and its digest, and writes one of its objects."""
    made, block = bench.made(), draw.randrange(1, 4)
    about = {"kind": "request", "recipient": bench.a.keys.card.digest, "call": made.call, "block": block}
    digest = hashlib.sha256(made.objects[0]).hexdigest()
    own = RequestHead(sender=bench.c.keys.card.digest, last=block == 3)
    made.objects[block] = seal(
        own,
        made.parts[block],
        Context.model_validate(about | {"request": digest}),
        bench.c.keys,
        bench.a.keys.card,
    )
    bench.put(made.call, made.objects)
    return "it is of c, in a call of b"


def in_anothers_name(bench: Bench, draw: random.Random) -> str:
    """c, and a stranger, say that they are b."""
    signs = draw.choice([bench.c, bench.stranger]).keys
    made = bench.made(signs=signs)
    bench.put(made.call, made.objects)
    return "the signature is not by the certificate of b"


def of_a_stranger(bench: Bench, draw: random.Random) -> str:
    made = Forger(bench.stranger.keys, bench.a, bench.door, bench.parts())
    bench.put(made.call, made.objects)
    return "its certificate is not trusted"


def of_whom_is_not_trusted_any_more(bench: Bench, draw: random.Random) -> str:
    made = bench.made()
    bench.a.keys.revoke("b")
    bench.put(made.call, made.objects)
    until(lambda: len(bench.refusals(bench.a)) > 0, "it is not refused")
    bench.a.trust(bench.b)
    return "its certificate is not trusted"


def for_another_site(bench: Bench, draw: random.Random) -> str:
    made = Forger(bench.b.keys, bench.c, bench.door, bench.parts())
    bench.put(made.call, made.objects)
    return "is not sealed for this site and this place, or it was changed"


def for_another_start(bench: Bench, draw: random.Random) -> str:
    made = Forger(bench.b.keys, bench.a, draw.randbytes(16).hex(), bench.parts())
    bench.put(made.call, made.objects)
    return "it is for another start of this agent"


def oversized(bench: Bench, draw: random.Random) -> str:
    made = bench.made()
    block, size = draw.randrange(4), MOST_OBJECT + 1 + draw.choice([0, 1 << 40])
    del made.objects[block:]
    (bench.place / IN).mkdir(exist_ok=True)
    with (bench.place / IN / f"{made.call}.{block}").open("wb") as file:
        file.truncate(size)
    bench.put(made.call, made.objects)
    return f"it has more than {MOST_OBJECT} bytes"


def no_file(bench: Bench, draw: random.Random) -> str:
    made, path = bench.made(), bench.place / IN
    block, kind = draw.randrange(4), draw.choice(["link", "folder", "pipe"])
    del made.objects[block:]
    path /= f"{made.call}.{block}"
    if kind == "link":
        path.symlink_to(draw.choice([bench.secret, Path("/dev/zero"), bench.secret.parent]))
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
        (path / "out").symlink_to(bench.secret.parent)
    bench.put(made.call, made.objects)
    return "it is a link" if kind == "link" else "it is not a file"


ATTACKS: list[Attack] = [
    flipped,
    truncated,
    swapped,
    of_another_call,
    under_another_name,
    of_a_trusted_third,
    in_anothers_name,
    of_a_stranger,
    of_whom_is_not_trusted_any_more,
    for_another_site,
    for_another_start,
    oversized,
    no_file,
]


def check_that_the_real_one_is_taken(bench: Bench, left: int = 0) -> None:
    """b's message is taken as it is, and nothing else; `left`: objects that stay in the bucket."""
    assert bench.secret.read_bytes() == b"not for the bucket"
    assert bench.a.box.read(1, "b") is None
    bench.b.send(1, DATA)
    Agent(bench.b.keys, bench.b.mail).exchange("a")
    assert body(bench.a, 1, "b") == DATA
    until(lambda: len(list((bench.place / IN).iterdir())) == left, "something else is left in the bucket")


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_that_somebody_else_has_made_of_a_request_is_taken(
    bench: Bench, attack: Attack, seed: int
) -> None:
    draw = random.Random(f"{attack.__name__} {seed}")
    with bench.a.served():
        problem = attack(bench, draw)
        until(lambda: len(bench.refusals(bench.a)) > 0, "it is not refused")
        [line] = bench.refusals(bench.a)
        assert problem in line["why"] and line["who"] in (NOBODY, "b", "c")
        check_that_the_real_one_is_taken(bench)


def test_a_request_is_answered_once(bench: Bench) -> None:
    """Whatever calls came since; also after the agent that asked, or the one that answers, began anew."""

    def made(lane: int, number: int) -> Forger:
        parts = [asked(head=head("b", DATA))]
        return Forger(bench.b.keys, bench.a, bench.door, parts, "Offer", lane=lane, number=number)

    def put(call: Forger, refusals: int) -> None:
        bench.put(call.call, call.objects)
        place = f"{call.call}.0"
        until(
            lambda: bench.bucket.exists(OUT, place) and len(bench.refusals(bench.a)) == refusals,
            "it is not answered once",
        )

    with bench.a.served():
        calls = [made(0, 5), made(1, 3), made(0, 9)]
        for call in calls:
            put(call, 0)
        for count, call in enumerate((*calls, made(0, 7)), start=1):
            bench.put(call.call, call.objects)
            until(lambda count=count: len(bench.refusals(bench.a)) == count, "it is taken twice")
        later = made(1, 100)
        put(later, 4)
    with bench.a.served():
        bench.put(later.call, later.objects)
        until(lambda: len(bench.refusals(bench.a)) == 5, "a call to a former start is taken")
    said = [line["why"] for line in bench.refusals(bench.a)]
    assert all("it, or a later one, was taken before" in why for why in said[:4])
    assert "for another start of this" in said[4]
    assert {line["who"] for line in bench.refusals(bench.a)} == {"b"}


def test_names_that_are_none_of_a_call_are_passed_over(bench: Bench) -> None:
    """Nothing beside the site's own folder is read, written or removed."""
    beside = Path(bench.a.bucket) / "of-others"
    odd = ["x.0", f"{'a' * 32}.00", f"{'a' * 32}.0x", f"{'A' * 32}.0", "%2e%2e%2fx.0", "\n.0", "-rf"]
    with bench.a.served():
        for name in odd:
            (bench.place / IN / name).write_bytes(b"?")
        beside.mkdir()
        (beside / f"{'b' * 32}.0").write_bytes(b"?")
        check_that_the_real_one_is_taken(bench, left=len(odd))
        assert [path.name for path in beside.iterdir()] == [f"{'b' * 32}.0"]
        assert not bench.refusals(bench.a)


@pytest.mark.parametrize("which", ["", IN, OUT])
def test_folders_that_became_links_are_not_followed(bench: Bench, which: str) -> None:
    elsewhere = bench.secret.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / f"{'c' * 32}.0").write_bytes(b"kept")
    with bench.a.served() as agent:
        folder = bench.place / which if which else bench.place
        folder.rename(bench.secret.parent / "moved")
        folder.symlink_to(elsewhere)
        bench.b.send(1, DATA)
        with pytest.raises(grpc.RpcError):
            Agent(bench.b.keys, bench.b.mail).exchange("a")
        [server] = agent._buckets.values()
        until(lambda: server._problem != "", "nobody says so")
        assert "is a link" in server._problem
        folder.unlink()
        (bench.secret.parent / "moved").rename(folder)
        Agent(bench.b.keys, bench.b.mail).exchange("a")
        assert body(bench.a, 1, "b") == DATA
    assert [path.name for path in elsewhere.iterdir()] == [f"{'c' * 32}.0"]


def test_a_certificate_out_of_its_time_opens_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench.a.served():
        made = bench.made()
        late = datetime.now(UTC) + timedelta(days=3000)
        monkeypatch.setattr(keys, "now", lambda: late)
        bench.put(made.call, made.objects)
        until(lambda: len(bench.refusals(bench.a)) > 0, "it is not refused")
        monkeypatch.undo()
        assert "the certificate of b is not valid now" in bench.refusals(bench.a)[0]["why"]
        check_that_the_real_one_is_taken(bench)


def test_what_follows_a_request_that_has_no_body_is_not_read(bench: Bench) -> None:
    """b goes on for ever."""
    with bench.a.served():
        parts = [asked(head=head("b", DATA)), *[b"{}"] * 4]
        made = Forger(bench.b.keys, bench.a, bench.door, parts, "Offer")
        bench.put(made.call, made.objects[:4])  # the last one never comes
        until(lambda: bench.bucket.exists(OUT, f"{made.call}.0"), "it is not answered")
        data = bench.bucket.read(OUT, f"{made.call}.0")
        assert data is not None
        about = {"kind": "answer", "recipient": bench.b.keys.card.digest, "call": made.call, "block": 0}
        digest = hashlib.sha256(made.objects[0]).hexdigest()
        context = Context.model_validate(about | {"request": digest})
        found = unseal(data, AnswerHead, context, bench.b.keys)
        assert found.head.code == "OK" and found.body == b'{"offset":0}'
        until(lambda: not bench.bucket.blocks(IN), "what follows is left in the bucket")
