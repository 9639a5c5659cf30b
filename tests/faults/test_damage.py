"""One flipped bit is found before it is used; the error names the file and the way out."""

import shutil
from pathlib import Path

import pytest

from tests.faults.command import EVERY, STEPS, TRAIN, CommandStore, Curve

WAY_OUT = "atelier gc --damaged"


def flip(path: Path, position: int = -1) -> None:
    """Flip one bit in the middle of a file, or in the byte at `position`."""
    data = bytearray(path.read_bytes())
    data[position if position >= 0 else len(data) // 2] ^= 1
    path.write_bytes(data)


def copied(command_store: CommandStore, whole: CommandStore, *kinds: str) -> CommandStore:
    for kind in kinds:
        shutil.copytree(whole.root / kind, command_store.root / kind)
    return command_store


def is_told(said: tuple[int, str, str], path: Path) -> None:
    code, _, err = said
    assert code == 1, err
    assert str(path) in err and WAY_OUT in err and "Traceback" not in err


@pytest.mark.slow
def test_a_flipped_bit_in_the_tokens_stops_training_and_gc_makes_room_for_good_ones(
    command_store: CommandStore, expected: Curve
) -> None:
    [tokens] = command_store.root.glob("tokens/*/payload-*/*train*.bin")
    flip(tokens)
    is_told(command_store.finish(), tokens)
    assert not command_store.records("model")
    code, out, err = command_store.finish("gc", "--damaged", "--yes")
    assert code == 0 and "tokens" in out, out + err
    code, out, err = command_store.finish()
    assert code == 0, out + err
    assert command_store.curve() == expected


@pytest.mark.parametrize("name", ["model.safetensors", pytest.param("config.json", marks=pytest.mark.slow)])
def test_a_flipped_bit_in_a_model_is_found_by_whoever_reads_it(
    command_store: CommandStore, whole: CommandStore, name: str
) -> None:
    copied(command_store, whole, "model", "trajectory")
    [file] = command_store.root.glob(f"model/*/payload-*/{name}")
    flip(file)
    is_told(command_store.finish(), file)


def test_a_damaged_record_is_written_again_from_its_log(
    command_store: CommandStore, whole: CommandStore
) -> None:
    copied(command_store, whole, "model", "trajectory")
    [record] = command_store.root.glob("model/*/record.json")
    text = record.read_bytes()
    flip(record)
    code, out, err = command_store.finish("models")
    assert code == 0 and record.read_bytes() == text, out + err


def test_a_record_damaged_in_its_log_too_is_named(command_store: CommandStore) -> None:
    [folder] = command_store.root.glob("tokens/*")
    record = folder / "record.json"
    [entry] = [path for path in (folder / "log").iterdir() if '"publish"' in path.read_text()]
    for path in (record, entry):
        path.write_text(path.read_text().replace('"name": "stdlib"', '"name": "stdlyb"'))
    code, _, err = command_store.finish()
    assert code == 1 and str(folder) in err and WAY_OUT in err and "Traceback" not in err, err


def test_a_damaged_newest_checkpoint_is_passed_over_for_the_one_before(
    command_store: CommandStore, whole: CommandStore, expected: Curve
) -> None:
    copied(command_store, whole, "trajectory")
    [newest] = command_store.root.glob(f"trajectory/*/checkpoints/step-{STEPS:08d}")
    [file] = newest.glob("*.safetensors")
    flip(file)
    code, out, err = command_store.finish()
    assert code == 0, out + err
    assert f"train: continues from step {STEPS - EVERY}" in out
    assert "skipped as damaged" in out and str(file) in out.replace("\n", "")
    assert command_store.curve() == expected


@pytest.mark.slow
def test_when_every_checkpoint_is_damaged_training_begins_again_and_says_so(
    command_store: CommandStore, whole: CommandStore, expected: Curve
) -> None:
    copied(command_store, whole, "trajectory")
    manifests = list(command_store.root.glob("trajectory/*/checkpoints/*/manifest.json"))
    for manifest in manifests:
        flip(manifest)
    code, out, err = command_store.finish(*TRAIN)
    assert code == 0, out + err
    assert out.count("skipped as damaged") == len(manifests)
    assert command_store.curve() == expected
