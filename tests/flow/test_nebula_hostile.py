"""Nebula over two sites where one of them sends what it should not, and what its messages say of the text."""

import hashlib
import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from tests.flow.two_sites import TwoSites, ran

pytestmark = pytest.mark.slow
WORDS = ("nebula", "experiment=tiny", "tracker=none", "score.baselines=false", "train.checkpoint_every=4")
FIXED = (*WORDS, "train.link.codec.kind=int8")  # a chosen codec depends on the clock
KINDS = {"contribution": ("a", "b"), "drawings": ("b", "a"), "answers": ("a", "b")}  # reader and sender
SAID = 16  # equal bytes of text in a message that are no coincidence
TOKENS = 8  # equal tokens in a row that are none
MOST_S = 240.0
Message = tuple[bytes, bytes]  # head and body


def headed(head: bytes, body: bytes, **about: object) -> Message:
    """A body with the head that belongs to it."""
    entry = {
        "bytes": len(body),
        "path": "tensors.safetensors",
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    return json.dumps({**json.loads(head), "body": entry, **about}).encode(), body


def flipped(sent: Message, draw: random.Random) -> Message:
    head, body = sent
    at = draw.randrange(len(body))
    return head, body[:at] + bytes([body[at] ^ (1 << draw.randrange(8))]) + body[at + 1 :]


def cut(sent: Message, draw: random.Random) -> Message:
    return headed(sent[0], sent[1][: draw.randrange(1, len(sent[1]))])


def larger(sent: Message, draw: random.Random) -> Message:
    return headed(sent[0], sent[1] + bytes(draw.randrange(1 << 20, 1 << 22)))


def not_finite(sent: Message, draw: random.Random) -> Message:
    """In the first tensor of floating numbers; ids of no vocabulary where there is none."""
    tensors = load(sent[1])
    name = next((n for n, each in sorted(tensors.items()) if each.is_floating_point()), "")
    if name:
        tensors[name] = torch.full_like(tensors[name], draw.choice((float("nan"), float("inf"))))
    else:
        name = next(
            n for n, each in sorted(tensors.items()) if n.startswith("ids") or each.dtype == torch.uint16
        )
        tensors[name] = torch.full(tensors[name].shape, 65535, dtype=torch.int32).to(tensors[name].dtype)
    return headed(sent[0], save(tensors, {"format": "pt"}))


def replayed(sent: Message, draw: random.Random) -> Message:
    """As if it were the message of another round."""
    return headed(*sent, round=json.loads(sent[0])["round"] + draw.choice((1, 2, 7)))


def of_another(sent: Message, draw: random.Random) -> Message:
    return headed(*sent, **draw.choice(({"trajectory": "0" * 64}, {"site": "c"}, {"kind": "orders"})))


def no_json(sent: Message, draw: random.Random) -> Message:
    return draw.choice((b"{", b"\xff\xfe", b"[" * 5000, b"{}")), sent[1]


def strange(sent: Message, draw: random.Random) -> Message:
    return headed(sent[0], save({"other": torch.ones(draw.randrange(1, 9))}, {"format": "pt"}))


CHANGES: tuple[Callable[[Message, random.Random], Message], ...] = (
    flipped, cut, larger, not_finite, replayed, of_another, no_json, strange,
)  # fmt: skip


class Listener:
    """Keeps all that lies in the mailboxes of a run's sites while it runs."""

    def __init__(self, root: Path) -> None:
        self.root, self.found = root, dict[str, bytes]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self) -> "Listener":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _listen(self) -> None:
        mailboxes = [self.root / "sites" / site / "keys" / "mailbox" for site in "ab"]
        while not self._over.wait(0.02):
            for folder, _, files in (found for each in mailboxes for found in os.walk(each)):
                for name in files:
                    self._keep(Path(folder, name))

    def _keep(self, path: Path) -> None:
        is_known = str(path) in self.found and path.name in ("message.json", "tensors.safetensors")
        if not is_known:  # which never change
            with suppress(OSError):
                self.found[str(path)] = path.read_bytes()


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> tuple[TwoSites, dict[str, bytes]]:
    root = tmp_path_factory.mktemp("nebula")
    with Listener(root) as listener:
        sites = ran(root, FIXED)
    return sites, listener.found


def texts(sites: TwoSites) -> Iterator[bytes]:
    for store in (sites.home, sites.other):
        for path in store.root.glob("corpus/*/*/documents.jsonl"):
            yield from (json.loads(line)["text"].encode() for line in path.read_text().splitlines())


def saying(found: dict[str, bytes], windows: set[bytes], rows: set[bytes]) -> list[str]:
    """The files with a window of text, and the bodies with a row of tokens."""
    wide, names = 2 * TOKENS, list[str]()
    for name, body in found.items():
        runs = [run.group() for run in re.finditer(rb"[\x20-\x7e\n]{16,}", body)]
        is_text = any(not windows.isdisjoint(run[n : n + SAID] for n in range(len(run))) for run in runs)
        is_row = name.endswith(".safetensors") and not rows.isdisjoint(
            body[n : n + wide] for n in range(len(body) - wide + 1)
        )
        names += [name] if is_text or is_row else []
    return names


def test_no_message_between_the_sites_has_text_or_its_tokens(
    heard: tuple[TwoSites, dict[str, bytes]],
) -> None:
    """Neither 16 bytes of a document nor 8 of its tokens in a row. What models expect is sent: the ids that a
    generator draws, and a teacher's likely tokens.
    """
    sites, found = heard
    kinds = [json.loads(body)["kind"] for name, body in found.items() if name.endswith("message.json")]
    sent = {kind: kinds.count(kind) for kind in KINDS}
    assert sent["contribution"] >= 8 and sent["drawings"] >= 16 and sent["answers"] >= 24, sent
    windows = {text[at : at + SAID] for text in texts(sites) for at in range(0, max(0, len(text) - SAID) + 1)}
    ids = [np.fromfile(path, "<u2") for path in sites.home.root.glob("tokens/*/*/*.bin")]
    assert len(windows) > 100_000 and sum(map(len, ids)) > 10_000
    rows = {each[at : at + TOKENS].tobytes() for each in ids for at in range(len(each) - TOKENS + 1)}
    assert saying(found, windows, rows) == []
    planted = {"a": b"\0" + next(iter(windows)) + b"\0", "b.safetensors": b"\1" + next(iter(rows))}
    assert saying(planted, windows, rows) == ["a", "b.safetensors"]


def altered(sites: TwoSites, kind: str, draw: random.Random) -> tuple[Path, Message]:
    """The first message of this kind that has come, with the reader halted before it can have read it."""
    reader, sender = KINDS[kind]
    mailbox = sites.home.root / "sites" / reader / "keys" / "mailbox"
    until, halted = time.monotonic() + MOST_S, False
    while time.monotonic() < until:
        for about in mailbox.glob(f"*/{reader}-training.json") if not halted else ():
            said = json.loads(about.read_text())
            if said["teacher"] and not about.with_name(f"{reader}-progress.json").exists():
                continue  # it has not asked yet
            if (kind == "contribution") == (not said["teacher"]) and kind in ("contribution", said["what"]):
                for process, command in sites.home.processes("atelier.engine.train").items():
                    if ("/sites/b/" in command) == (reader == "b"):
                        os.kill(process, signal.SIGSTOP)
                        halted = True
        for head in mailbox.glob(f"*/round-*/{sender}/message.json") if halted else ():
            if json.loads(head.read_bytes())["kind"] == kind:
                return head, (head.read_bytes(), head.with_name("tensors.safetensors").read_bytes())
        time.sleep(0.002)
    raise AssertionError(f"no {kind} in {MOST_S} s")


def put(place: Path, message: Message) -> None:
    place.with_name("tensors.safetensors").write_bytes(message[1])
    place.write_bytes(message[0])


@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind in KINDS for seed in range(2)])
def test_a_run_refuses_a_hostile_message_by_name_and_with_the_true_one_it_has_the_bits_of_another_run(
    heard: tuple[TwoSites, dict[str, bytes]], tmp_path: Path, kind: str, seed: int
) -> None:
    whole, draw, sites = heard[0], random.Random(f"{kind}{seed}"), TwoSites(tmp_path)
    sites.home.copy_data(whole.home)
    sites.other.root.mkdir(parents=True)
    sites.other.copy_data(whole.other)
    changes = draw.sample(CHANGES, 2)
    command = sites.home.start(*FIXED)
    place, sent = altered(sites, kind, draw)
    put(place, changes[0](sent, draw))
    for process in sites.home.processes("atelier.engine.train"):
        os.kill(process, signal.SIGCONT)
    for number, change in enumerate(changes):
        code, text = command.wait(), command.text
        assert code and "Traceback" not in text, (change.__name__, code, text)
        assert place.parent.parent.name in text, (change.__name__, text[-2000:])
        sites.home.wait_for_quiet()
        if number + 1 < len(changes):
            put(place, changes[number + 1](sent, draw))
            command = sites.home.start(*FIXED)
    put(place, sent)
    code, out, err = sites.home.finish(*FIXED)
    assert code == 0, out + err
    assert sites.models() == whole.models()
