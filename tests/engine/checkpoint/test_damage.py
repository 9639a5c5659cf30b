"""Any damage to any file of a checkpoint is found and named, and the checkpoint before is used."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from atelier.engine.checkpoint import writer
from atelier.engine.checkpoint.collective_call import SingleRank
from atelier.engine.checkpoint.folder import address, newest_good, verify
from atelier.engine.checkpoint.manifest import MANIFEST
from atelier.engine.checkpoint.reader import load
from atelier.engine.checkpoint.writer import save_async
from atelier.engine.config.error import AtelierError, DamageError

TRAJECTORY = "a" * 64


def state(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {f"w{i}": torch.randn(40, 40, generator=generator) for i in range(4)}
    return {"model": tensors, "role": {"tokens": 1234567, "lr": 1e-05, "betas": (0.9, 0.95)}}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: Any) -> Path:
    """Steps 100 and 200 of one trajectory, four data files each, and step 200 of a foreign one."""
    root = tmp_path_factory.mktemp("pristine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "FILE_BYTES", 6400)
        for folder, step, trajectory in (
            ("own", 100, TRAJECTORY),
            ("own", 200, TRAJECTORY),
            ("other", 200, "b"),
        ):
            url = address(str(root / folder), step)
            save_async(url, state(step), step=step, trajectory=trajectory, gang=SingleRank()).wait()
    assert len(list((root / "own" / "step-00000200").iterdir())) == 5
    return root


def any_file(folder: Path, rng: random.Random) -> Path:
    return rng.choice(sorted(folder.iterdir()))


def flip(folder: Path, rng: random.Random) -> Path:
    file = any_file(folder, rng)
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return file


def truncate(folder: Path, rng: random.Random) -> Path:
    file = any_file(folder, rng)
    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])
    return file


def lengthen(folder: Path, rng: random.Random) -> Path:
    file = any_file(folder, rng)
    file.write_bytes(file.read_bytes() + rng.choice((b"\0", b"\n", b" ", rng.randbytes(64))))
    return file


def zero_page(folder: Path, rng: random.Random) -> Path:
    file = any_file(folder, rng)
    data = bytearray(file.read_bytes())
    start = rng.randrange(0, len(data), 512)
    data[start : start + 512] = bytes(len(data[start : start + 512]))
    file.write_bytes(data)
    return file


def swap(folder: Path, rng: random.Random) -> Path:
    one, two = rng.sample(sorted(folder.glob("*.safetensors")), 2)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    return one


def take_older(folder: Path, rng: random.Random) -> Path:
    files, older = (
        sorted(folder.glob("*.safetensors")),
        sorted(folder.parent.glob("step-00000100/*.safetensors")),
    )
    number = rng.randrange(4)
    shutil.copyfile(older[number], files[number])
    return files[number]


def remove(folder: Path, rng: random.Random) -> Path:
    file = any_file(folder, rng)
    file.unlink()
    return file


def edit_manifest(folder: Path, rng: random.Random) -> Path:
    file = folder / MANIFEST
    edits = [(b"1234567", b"1234568"), (b"1e-05", b"1E-05"), (b'"step":200', b'"step":100'), (b"{", b"{ ")]
    before, after = rng.choice(edits)
    data = file.read_bytes()
    assert before in data
    file.write_bytes(data.replace(before, after, 1))
    return file


def swap_manifest(folder: Path, rng: random.Random) -> Path:
    shutil.copyfile(folder.parent / "step-00000100" / MANIFEST, folder / MANIFEST)
    return folder / MANIFEST


def make_folder(folder: Path, rng: random.Random) -> Path:
    file = any_file(folder, rng)
    file.unlink()
    file.mkdir()
    return file


KINDS = (
    [(flip, seed) for seed in range(24)]
    + [(kind, seed) for kind in (truncate, lengthen, zero_page, remove) for seed in range(6)]
    + [(kind, seed) for kind in (swap, take_older, edit_manifest) for seed in range(4)]
    + [(swap_manifest, 0), (make_folder, 0), (make_folder, 1)]
)


@pytest.mark.parametrize(("damage", "seed"), KINDS)
def test_damage_is_found_names_the_file_and_the_checkpoint_before_is_used(
    pristine: Path, tmp_path: Path, damage: Callable[[Path, random.Random], Path], seed: int
) -> None:
    root = tmp_path / "own"
    shutil.copytree(pristine / "own", root)
    file = damage(root / "step-00000200", random.Random(f"{damage.__name__} {seed}"))
    damages = verify(address(str(root), 200))
    assert damages and any(line.startswith(f"{file}: ") for line in damages)
    assert newest_good(str(root), trajectory=TRAJECTORY) == (100, damages)
    with pytest.raises(DamageError) as caught:
        load(address(str(root), 200), state(0), step=200, trajectory=TRAJECTORY, gang=SingleRank())
    assert str(caught.value) in damages
    fresh = state(0)
    load(address(str(root), 100), fresh, step=100, trajectory=TRAJECTORY, gang=SingleRank())
    assert torch.equal(fresh["model"]["w3"], state(100)["model"]["w3"])


def test_undamaged_checkpoints_have_no_damages(pristine: Path) -> None:
    assert newest_good(str(pristine / "own"), trajectory=TRAJECTORY) == (200, [])


@pytest.mark.parametrize("step", [201, 300, 10**9])
def test_a_renamed_folder_is_found_by_the_step_inside(pristine: Path, tmp_path: Path, step: int) -> None:
    root = tmp_path / "own"
    shutil.copytree(pristine / "own", root)
    url = address(str(root), step)
    (root / "step-00000200").rename(url)
    good, damages = newest_good(str(root), trajectory=TRAJECTORY)
    assert good == 100 and damages == [f"{url}/manifest.json: holds step 200, expected {step}"]
    with pytest.raises(AtelierError, match="holds step 200"):
        load(url, state(0), step=step, trajectory=TRAJECTORY, gang=SingleRank())


def test_a_checkpoint_of_a_foreign_trajectory_is_found(pristine: Path, tmp_path: Path) -> None:
    root = tmp_path / "own"
    shutil.copytree(pristine / "own", root)
    url = address(str(root), 200)
    shutil.rmtree(url)
    shutil.copytree(pristine / "other" / "step-00000200", url)
    good, damages = newest_good(str(root), trajectory=TRAJECTORY)
    assert good == 100 and damages == [f"{url}/manifest.json: holds trajectory b, expected {TRAJECTORY}"]
    with pytest.raises(DamageError, match="holds trajectory b"):
        load(url, state(0), step=200, trajectory=TRAJECTORY, gang=SingleRank())


def test_damage_names_the_file_before_the_library_sees_a_byte(pristine: Path, tmp_path: Path) -> None:
    root = tmp_path / "own"
    shutil.copytree(pristine / "own", root)
    for file in (root / "step-00000200").glob("*.safetensors"):
        file.write_bytes(b"\xff" * file.stat().st_size)  # a header length of 2**64 - 1
    with pytest.raises(DamageError, match="content does not match its digest"):
        load(address(str(root), 200), state(0), step=200, trajectory=TRAJECTORY, gang=SingleRank())
