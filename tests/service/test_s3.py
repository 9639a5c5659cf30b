"""A store in S3, on a real server: it holds everything of a run, and faults lose nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atelier.engine.io import remote
from atelier.engine.io.storage import (
    exists,
    fetch,
    join,
    names,
    put_file,
    read_bytes,
    remove,
    size,
    write_bytes,
    writing,
)
from atelier.infra.store import conditional_create
from atelier.infra.store.conditional_create import LEASES, check_exclusive
from atelier.infra.store.removal import size_of
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import checkpoint_steps
from tests.checkout import TOP
from tests.flow.served import descendants, wait_for
from tests.service.swift import Swift, missing, swift

pytestmark = [
    pytest.mark.root,
    pytest.mark.service,
    pytest.mark.skipif(bool(missing()), reason=missing() or "all is here"),
]

WORDS = (
    "experiment=tiny", "model=gpt_nano", "model.hidden=32", "model.num_heads=2", "train.eval_sequences=4",
    "score.baselines=false", "score.max_tokens=500", "train.checkpoint_every=20",
    "parallel.shard=1", "parallel.threads=1", "tracker=none",
)  # fmt: skip
PATIENCE_S = 300.0  # a loaded machine
STEPS = 200
LONG = 1500  # steps, so that the end of a training is not near a fault in its middle
FAULT_S = 5  # over before the training comes to a branch point, whose checkpoint it has to have


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swift]:
    with swift(tmp_path_factory.mktemp("swift") / "store") as running:
        yield running


@pytest.fixture
def url(server: Swift, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty folder of the bucket, for this process and those that it starts."""
    for name, value in environment(server, tmp_path).items():
        monkeypatch.setenv(name, value)
    yield f"{server.url}/{tmp_path.name}"
    conditional_create._opened.cache_clear()
    conditional_create._known.clear()


def environment(server: Swift, folder: Path) -> dict[str, str]:
    """The way in, by a file of credentials that can be renewed."""
    kept = {key: value for key, value in server.environment().items() if "ACCESS" not in key}
    return kept | {
        "AWS_SHARED_CREDENTIALS_FILE": str(write_credentials(server, folder)),
        LEASES: f"sqlite:///{folder}/leases.db",
    }


def write_credentials(server: Swift, folder: Path) -> Path:
    path = folder / "credentials"
    lines = ["[default]", f"aws_access_key_id = {server.credentials.access_key}"]
    fresh = folder / ".credentials"
    fresh.write_text("\n".join([*lines, f"aws_secret_access_key = {server.credentials.secret}", ""]))
    fresh.replace(path)
    return path


# files


def test_a_file_appears_whole_when_its_block_ends_well_and_not_at_all_on_an_error(url: str) -> None:
    large = b"x" * (remote.IN_MEMORY + 1)
    for data in (b"", b"small", large):
        with pytest.raises(RuntimeError), writing(join(url, "torn")) as file:
            file.write(data)
            raise RuntimeError
        assert not exists(join(url, "torn"))
        write_bytes(join(url, "whole"), data)
        assert read_bytes(join(url, "whole")) == data and size(join(url, "whole")) == len(data)


def test_what_another_process_wrote_is_seen_at_once(url: str) -> None:
    assert names(url) == [] and not exists(join(url, "a"))
    command = f"from atelier.engine.io.storage import write_bytes; write_bytes({join(url, 'a')!r}, b'1')"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", command], cwd=TOP, check=True)
        assert names(url) == ["a"] and read_bytes(join(url, "a")) == b"1" and size(join(url, "a")) == 1
        remove(url)
        assert names(url) == [] and not exists(join(url, "a"))


def test_a_folder_is_measured_fetched_and_removed(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    entry = put_file(tmp_path / "file", join(url, "deep/er/file"))
    write_bytes(join(url, "deep/other"), b"de")
    fetch(join(url, "deep/er/file"), tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"abc" and entry.bytes == 3
    assert size_of(join(url, "deep")) == 5
    remove(join(url, "deep"))
    assert not names(url)


def test_this_server_has_no_conditional_put_and_leases_need_a_database(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_exclusive(url)
    monkeypatch.delenv(LEASES)
    from atelier.engine.config.error import ConfigError

    with pytest.raises(ConfigError, match="no conditional put") as caught:
        check_exclusive(url)
    assert LEASES in caught.value.way_out


@pytest.mark.parametrize(
    "act", [lambda url: write_bytes(url, b"1"), read_bytes, exists], ids=["put", "get", "head"]
)
def test_a_server_that_says_nothing_is_an_oserror_in_time(
    act: Callable[[str], object], url: str, server: Swift, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "ANSWER_S", 3.0)
    monkeypatch.setattr(remote, "IN_MEMORY", 1 << 20)
    exists(join(url, "x"))
    began = time.monotonic()
    with server.hanging(), pytest.raises(OSError):
        act(join(url, "x"))
    assert time.monotonic() - began < 20


def test_a_server_that_is_away_is_an_oserror_and_good_again_when_it_is_back(url: str, server: Swift) -> None:
    server.stop("proxy")
    try:
        with pytest.raises(OSError):
            write_bytes(join(url, "x"), b"1")
    finally:
        server.start("proxy")
    write_bytes(join(url, "x"), b"2")
    assert read_bytes(join(url, "x")) == b"2"


def test_renewed_credentials_are_read_again(url: str, server: Swift, tmp_path: Path) -> None:
    write_bytes(join(url, "x"), b"1")
    server.revoke()
    with pytest.raises(PermissionError):
        read_bytes(join(url, "x"))
    server.renew()
    write_credentials(server, tmp_path)
    remote._renewed.clear()  # no need to wait
    assert read_bytes(join(url, "x")) == b"1"


# runs


class Shop:
    """The command line with its store in the bucket."""

    def __init__(self, url: str, folder: Path, steps: int = STEPS) -> None:
        self.words = (*WORDS, f"train.steps={steps}")
        self.url, self.environment = url, os.environ | {"ATELIER_ROOT": url, "HOME": str(folder)}

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "atelier", "pretrain", *self.words]
        return subprocess.Popen(
            command, env=self.environment, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip

    def steps(self) -> list[int]:
        folder = join(self.url, "trajectory")
        return [step for name in names(folder) for step in checkpoint_steps(join(folder, name))]

    def until_step(self, step: int) -> None:
        wait_for(lambda: max(self.steps(), default=0) >= step, PATIENCE_S, f"a checkpoint of step {step}")

    def weights(self) -> str:
        [record] = [one for one in Store(self.url).records("model")]
        assert not Store(self.url).check(record)
        return next(file.sha256 for file in record.files if file.path.endswith("model.safetensors"))


def here(root: Path, steps: int) -> str:
    """The weights of a run in a folder."""
    command = [sys.executable, "-m", "atelier", "pretrain", *WORDS, f"train.steps={steps}"]
    subprocess.run(command, env=os.environ | {"ATELIER_ROOT": str(root)}, cwd=TOP, check=True)
    [record] = [json.loads(path.read_text()) for path in root.glob("model/*/record.json")]
    return next(file["sha256"] for file in record["files"] if file["path"].endswith("model.safetensors"))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    return here(tmp_path_factory.mktemp("here") / "store", STEPS)


@pytest.fixture(scope="module")
def expected_long(tmp_path_factory: pytest.TempPathFactory) -> str:
    return here(tmp_path_factory.mktemp("long") / "store", LONG)


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, said
    return said


def test_a_run_in_the_bucket_has_the_bits_of_one_in_a_folder_and_is_reused(
    url: str, tmp_path: Path, expected: str
) -> None:
    shop = Shop(url, tmp_path)
    ended(shop.start())
    assert shop.weights() == expected
    assert "nothing to do (7 reused)" in ended(shop.start())


def test_a_run_that_is_killed_goes_on_from_the_bucket_on_a_machine_that_knows_nothing(
    url: str, tmp_path: Path, expected: str
) -> None:
    shop = Shop(url, tmp_path)
    training = shop.start()
    shop.until_step(60)
    family = [training.pid, *descendants(training.pid)]
    for pid in family:
        os.kill(pid, signal.SIGKILL)
    training.communicate()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family), 30, "the end of all processes")
    shutil.rmtree(tmp_path / ".cache", ignore_errors=True)
    ended(shop.start())
    assert shop.weights() == expected


def test_two_of_the_same_run_at_once_train_one_trajectory(url: str, tmp_path: Path, expected: str) -> None:
    shop = Shop(url, tmp_path)
    first, second = shop.start(), shop.start()
    ended(first)
    ended(second)
    assert shop.weights() == expected


@pytest.mark.parametrize("fault", ["revoked", "away"])
def test_training_goes_on_while_credentials_are_revoked_or_the_server_is_away(
    fault: str, url: str, tmp_path: Path, expected_long: str, server: Swift
) -> None:
    shop = Shop(url, tmp_path, LONG)
    training = shop.start()
    shop.until_step(40)
    if fault == "revoked":
        server.revoke()
    else:
        server.stop("proxy")
    time.sleep(FAULT_S)  # its length
    if fault == "revoked":
        server.renew()
        write_credentials(server, tmp_path)
    else:
        server.start("proxy")
    ended(training)
    assert shop.weights() == expected_long
