"""One process saves and loads: bits, commit, failures, retention."""

import errno
import io
import os
import pickle
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch

from atelier.engine.checkpoint import commit, writer
from atelier.engine.checkpoint.collective_call import SingleRank
from atelier.engine.checkpoint.folder import address, newest_good, retain, steps, verify
from atelier.engine.checkpoint.manifest import MANIFEST, read_manifest
from atelier.engine.checkpoint.reader import load, load_full
from atelier.engine.checkpoint.writer import Pending, save_async
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.io import storage
from tests.forks import start

TRAJECTORY = "a" * 64


def save(folder: str | Path, step: int, state: dict[str, Any], trajectory: str = TRAJECTORY) -> Pending:
    return save_async(address(str(folder), step), state, step=step, trajectory=trajectory, gang=SingleRank())


def read(
    folder: str | Path, step: int, state: dict[str, Any], trajectory: str = TRAJECTORY
) -> dict[Any, Any]:
    return load(address(str(folder), step), state, step=step, trajectory=trajectory, gang=SingleRank())


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def sample(seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    dtypes = (
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.uint8,
        torch.bool,
    )
    tensors: dict[str, Any] = {}
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        tensors[name] = torch.randint(0, 2, (5, 3), generator=generator).to(dtype)
        tensors[f"{name}_scalar"] = torch.ones((), dtype=dtype)
        tensors[f"{name}_empty"] = torch.ones((0, 4), dtype=dtype)
    tensors["special"] = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45, seed])
    tensors["column"] = torch.randn(6, 6, generator=generator)[:, 2]  # not contiguous
    tensors["weight"] = torch.nn.Parameter(torch.randn(33, 65, generator=generator))
    return {"model": tensors, "optim": {0: {"step": torch.tensor(7.0)}}, "role": {"tokens": 2**40, "lr": 0.1}}


def blank(state: dict[str, Any]) -> dict[str, Any]:
    if isinstance(state, dict):
        return {key: blank(value) for key, value in state.items()}
    return torch.zeros_like(state) if isinstance(state, torch.Tensor) else state


def bits(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {
        name: (t.dtype, tuple(t.shape), t.detach().contiguous().reshape(-1).view(torch.uint8).tolist())
        for name, t in tensors.items()
    }


def test_every_dtype_scalars_empty_and_strided_tensors_come_back_bit_exact(tmp_path: Path) -> None:
    state = sample()
    save(tmp_path, 100, state).wait()
    fresh = blank(state)
    assert read(tmp_path, 100, fresh) == {"role": {"tokens": 2**40, "lr": 0.1}}
    assert bits(writer.tensors_of(fresh)) == bits(writer.tensors_of(state))
    assert bits(load_full(address(str(tmp_path), 100))) == bits(writer.tensors_of(state))


def test_a_copy_on_disk_is_saved_as_one_in_memory_and_leaves_no_file(
    tmp_path: Path, monkeypatch: Any
) -> None:
    state, scratch, made = sample(), tmp_path / "scratch", []
    scratch.mkdir()
    on_disk = writer._on_disk
    monkeypatch.setattr(writer, "_on_disk", lambda *given: made.append(given) or on_disk(*given))
    before = state["model"]["weight"].detach().clone()
    places: dict[str, Path | None] = {"memory": None, "disk": scratch}
    for name, spill in places.items():
        url = address(str(tmp_path / name), 100)
        pending = save_async(url, state, step=100, trajectory=TRAJECTORY, gang=SingleRank(), spill=spill)
        state["model"]["weight"].data.zero_()  # the save works on a copy
        pending.wait()
        state["model"]["weight"].data.copy_(before)
    assert [folder for _, folder in made] == [scratch]
    found = [bits(load_full(address(str(tmp_path / name), 100))) for name in places]
    assert found[0] == found[1] == bits(writer.tensors_of(state))
    assert not list(scratch.iterdir())


def test_a_parameter_is_filled_where_it_is(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 2)
    save(tmp_path, 1, {"model": layer.state_dict()}).wait()
    expected, pointer = layer.weight.detach().clone(), layer.weight.data_ptr()
    with torch.no_grad():
        layer.weight.zero_()
    read(tmp_path, 1, {"model": dict(layer.named_parameters())})
    assert torch.equal(layer.weight, expected) and layer.weight.data_ptr() == pointer


def test_what_is_written_is_safetensors_and_one_json_manifest(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(writer, "FILE_BYTES", 4000)
    save(tmp_path, 100, sample()).wait()
    assert names_in(tmp_path) == ["step-00000100"]
    folder = tmp_path / "step-00000100"
    files = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)
    assert len(files) > 1 and files == sorted(e.path for e in read_manifest(str(folder)).files)
    found: set[str] = set()
    for name in files:
        with safetensors.safe_open(folder / name, "pt") as file:
            found |= set(file.keys())
    assert found == set(writer.tensors_of(sample()))


def test_nothing_is_pickled_on_save_and_load(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("pickle")

    for module, names in (
        (pickle, ("load", "loads", "dump", "dumps", "Unpickler", "Pickler", "_Unpickler", "_Pickler")),
        (torch, ("save", "load")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, refuse)
    state = sample()
    save(tmp_path, 100, state).wait()
    fresh = blank(state)
    read(tmp_path, 100, fresh)
    assert bits(writer.tensors_of(fresh)) == bits(writer.tensors_of(state))


def test_changing_tensors_while_saving_tears_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    gate = threading.Event()
    write = writer.write_tensors
    monkeypatch.setattr(writer, "write_tensors", lambda *a: gate.wait(10) and write(*a))
    state = {f"w{i}": torch.full((64, 64), float(i)) for i in range(20)} | {"n": torch.tensor(5)}
    pending = save(tmp_path, 1, state)
    for tensor in state.values():
        tensor.fill_(-1)
    assert not pending.done() and pending.write_s == 0.0
    gate.set()
    pending.wait()
    found = load_full(address(str(tmp_path), 1))
    assert all(bool((found[f"w{i}"] == i).all()) for i in range(20)) and found["n"] == 5
    assert pending.done() and pending.write_s > 0 and pending.blocked_s > 0


def test_a_save_of_the_same_content_leaves_the_files_and_a_damaged_one_is_replaced(tmp_path: Path) -> None:
    state = sample()
    save(tmp_path, 100, state).wait()
    folder = tmp_path / "step-00000100"
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    save(tmp_path, 100, state).wait()
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    data = next(folder.glob("*.safetensors"))
    data.write_bytes(data.read_bytes()[:-1])
    assert verify(str(folder))
    save(tmp_path, 100, state).wait()
    assert verify(str(folder)) == [] and len(list(folder.iterdir())) == 2
    (folder / MANIFEST).write_bytes(b"{}")
    save(tmp_path, 100, state).wait()
    assert verify(str(folder)) == [] and names_in(tmp_path) == ["step-00000100"]


def test_a_save_of_other_content_replaces_the_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 100, sample(0)).wait()
    save(tmp_path, 100, sample(1)).wait()
    assert load_full(address(str(tmp_path), 100))["model.special"][-1] == 1
    assert len(list((tmp_path / "step-00000100").iterdir())) == 2


class FullDisk(io.RawIOBase):
    def write(self, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def break_write(monkeypatch: Any) -> int:
    @contextmanager
    def writing(url: str) -> Any:
        yield FullDisk()

    monkeypatch.setattr(storage, "writing", writing)
    return errno.ENOSPC


def break_fsync(monkeypatch: Any) -> int:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(storage.os, "fsync", fsync)
    return errno.EIO


def break_rename(monkeypatch: Any) -> int:
    def rename(self: Path, target: Path) -> Path:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(Path, "rename", rename)
    return errno.EDQUOT


@pytest.mark.parametrize("broken", [break_write, break_fsync, break_rename])
def test_an_error_of_the_disk_is_raised_by_wait_and_leaves_only_the_earlier_checkpoint(
    tmp_path: Path, broken: Any
) -> None:
    save(tmp_path, 100, sample()).wait()
    with pytest.MonkeyPatch.context() as patch:
        code = broken(patch)
        pending = save(tmp_path, 200, sample(1))
        with pytest.raises(OSError) as caught:
            pending.wait()
    assert caught.value.errno == code and pending.done() and pending.write_s == 0.0
    assert names_in(tmp_path) == ["step-00000100"] and verify(address(str(tmp_path), 100)) == []
    save(tmp_path, 200, sample(1)).wait()
    assert newest_good(str(tmp_path), trajectory=TRAJECTORY) == (200, [])


@pytest.mark.root
def test_a_full_file_system_fails_the_save_and_leaves_no_file_of_it(tmp_path: Path) -> None:
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", tmp_path]).returncode
    ):
        pytest.skip("mounting a tmpfs needs root")
    try:
        save(tmp_path, 100, {"w": torch.ones(100_000)}).wait()
        with pytest.raises(OSError, match="No space left on device") as caught:
            save(tmp_path, 200, {"w": torch.ones(200_000)}).wait()
        assert "step-00000200" in str(caught.value.filename)
        assert names_in(tmp_path) == ["step-00000100"]
        assert newest_good(str(tmp_path), trajectory=TRAJECTORY) == (100, [])
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_what_a_killed_save_left_is_cleared_by_the_next(tmp_path: Path) -> None:
    script = "tests.engine.checkpoint.killed_save"
    killed = start("tests.parity.gang", [script, str(tmp_path)], os.environ | {"PYTHONWARNINGS": "ignore"})
    assert (*killed.communicate(60), killed.returncode) == ("", "", 9)
    left = names_in(tmp_path)
    assert len(left) == 1 and left[0].startswith(".tmp-step-") and steps(str(tmp_path)) == []
    save(tmp_path, 2, {"w": torch.ones(9)}).wait()
    assert names_in(tmp_path) == ["step-00000002"]


def test_what_does_not_fit_is_named_before_anything_is_changed(tmp_path: Path) -> None:
    save(tmp_path, 100, {"model": {"w": torch.ones(2, 3)}}).wait()
    cases = {
        r"has no tensor model\.v; the nearest name is model\.w": {"v": torch.zeros(2, 3)},
        r"model\.w has shape \(2, 3\), the state's has \(3, 2\)": {"w": torch.zeros(3, 2)},
        r"model\.w is float32, the state's is float64": {"w": torch.zeros(2, 3, dtype=torch.float64)},
        r"model\.w: is on the meta device": {"w": torch.zeros(2, 3, device="meta")},
    }
    for problem, tensors in cases.items():
        good = torch.zeros(2, 3)
        with pytest.raises(ConfigError, match=problem):
            read(tmp_path, 100, {"model": tensors | ({"w": good} if "w" not in tensors else {})})
        assert not good.any()


def test_another_step_and_another_trajectory_are_refused(tmp_path: Path) -> None:
    save(tmp_path, 100, {"w": torch.ones(2)}).wait()
    state = {"w": torch.zeros(2)}
    with pytest.raises(DamageError, match=r"manifest\.json: holds trajectory aaa.*, expected b"):
        read(tmp_path, 100, state, trajectory="b" * 64)
    with pytest.raises(ConfigError, match="is not the address of step 200"):
        load(address(str(tmp_path), 100), state, step=200, trajectory=TRAJECTORY, gang=SingleRank())
    with pytest.raises(ConfigError, match="is not the address of step 200"):
        save_async(address(str(tmp_path), 100), state, step=200, trajectory=TRAJECTORY, gang=SingleRank())
    with pytest.raises(ConfigError, match="its last part must be like step-00000100"):
        save_async(str(tmp_path / "step-100"), state, step=100, trajectory=TRAJECTORY, gang=SingleRank())
    assert not state["w"].any()


def test_retention_keeps_the_newest_and_the_protected_and_counts_no_broken_one(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5, 6):
        save(tmp_path, step, {"w": torch.full((4,), float(step))}).wait()
    next((tmp_path / "step-00000006").glob("*.safetensors")).unlink()
    (tmp_path / "step-00000005" / MANIFEST).write_bytes(b"")
    assert retain(str(tmp_path), keep=2, protected={1}) == [2]
    assert steps(str(tmp_path)) == [1, 3, 4, 5, 6]
    assert retain(str(tmp_path), keep=1, protected=set()) == [1, 3]
    assert newest_good(str(tmp_path), trajectory=TRAJECTORY)[0] == 4
    assert names_in(tmp_path) == ["step-00000004", "step-00000005", "step-00000006"]
    with pytest.raises(ConfigError, match="would remove every checkpoint"):
        retain(str(tmp_path), keep=0, protected=set())


def test_newest_good_respects_its_limit_and_an_absent_folder_has_none(tmp_path: Path) -> None:
    for step in (1, 2, 30):
        save(tmp_path, step, {"w": torch.ones(1)}).wait()
    assert newest_good(str(tmp_path), trajectory=TRAJECTORY, at_most=29) == (2, [])
    assert newest_good(str(tmp_path), trajectory=TRAJECTORY, at_most=0) == (None, [])
    assert newest_good(str(tmp_path / "none"), trajectory=TRAJECTORY) == (None, [])
    assert steps(str(tmp_path / "none")) == []


def test_a_store_without_rename_shows_a_checkpoint_only_with_its_manifest(monkeypatch: Any) -> None:
    folder = "memory://store/trajectory/x/checkpoints"
    state = sample()
    save(folder, 1, state).wait()
    save(folder, 2, sample(1)).wait()
    save(folder, 2, state).wait()
    assert len(storage.names(address(folder, 2))) == 2
    with monkeypatch.context() as patch:
        patch.setattr(commit, "write_bytes", lambda url, data: FullDisk().write(data))
        with pytest.raises(OSError, match="No space left"):
            save(folder, 3, state).wait()
    assert storage.names(address(folder, 3)) == []
    storage.write_bytes(address(folder, 4) + "/rank-0000-000-killed.safetensors", b"half")
    step, damages = newest_good(folder, trajectory=TRAJECTORY)
    assert step == 2 and "step-00000004/manifest.json: missing" in damages[0]
    fresh = blank(state)
    read(folder, 2, fresh)
    assert bits(writer.tensors_of(fresh)) == bits(writer.tensors_of(state))
    save(folder, 4, state).wait()
    assert len(storage.names(address(folder, 4))) == 2
    assert retain(folder, keep=2, protected=set()) == [1]
    assert steps(folder) == [2, 4]
