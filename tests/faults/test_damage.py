"""One flipped bit is found before it is believed; the message names the file and the way out."""

import shutil
from pathlib import Path

import pytest

from tests.faults.command import EVERY, STEPS, TRAIN, Curve, House

WAY_OUT = "atelier gc --damaged"


def flip(path: Path, position: int = -1) -> None:
    """Flip one bit in the middle of a file, or in the byte at `position`."""
    data = bytearray(path.read_bytes())
    data[position if position >= 0 else len(data) // 2] ^= 1
    path.write_bytes(data)


def copied(house: House, whole: House, *kinds: str) -> House:
    for kind in kinds:
        shutil.copytree(whole.root / kind, house.root / kind)
    return house


def is_told(said: tuple[int, str, str], path: Path) -> None:
    code, _, err = said
    assert code == 1, err
    assert str(path) in err and WAY_OUT in err and "Traceback" not in err


def test_a_flipped_bit_in_the_tokens_stops_training_and_gc_makes_room_for_good_ones(
    house: House, expected: Curve
) -> None:
    [tokens] = house.root.glob("tokens/*/payload-*/*train*.bin")
    flip(tokens)
    is_told(house.finish(), tokens)
    assert not house.records("model")
    code, out, err = house.finish("gc", "--damaged", "--yes")
    assert code == 0 and "tokens" in out, out + err
    code, out, err = house.finish()
    assert code == 0, out + err
    assert house.curve() == expected


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_flipped_bit_in_a_model_is_found_by_whoever_reads_it(house: House, whole: House, name: str) -> None:
    copied(house, whole, "model", "trajectory")
    [file] = house.root.glob(f"model/*/payload-*/{name}")
    flip(file)
    is_told(house.finish(), file)


def test_a_damaged_record_is_written_again_from_its_log(house: House, whole: House) -> None:
    copied(house, whole, "model", "trajectory")
    [record] = house.root.glob("model/*/record.json")
    text = record.read_bytes()
    flip(record)
    code, out, err = house.finish("models")
    assert code == 0 and record.read_bytes() == text, out + err


def test_a_record_damaged_in_its_log_too_is_named(house: House) -> None:
    [folder] = house.root.glob("tokens/*")
    record = folder / "record.json"
    [entry] = [path for path in (folder / "log").iterdir() if '"publish"' in path.read_text()]
    for path in (record, entry):
        path.write_text(path.read_text().replace('"name": "main"', '"name": "mair"'))
    code, _, err = house.finish()
    assert code == 1 and str(folder) in err and WAY_OUT in err and "Traceback" not in err, err


def test_a_damaged_newest_checkpoint_is_passed_over_for_the_one_before(
    house: House, whole: House, expected: Curve
) -> None:
    copied(house, whole, "trajectory")
    [newest] = house.root.glob(f"trajectory/*/checkpoints/step-{STEPS:08d}")
    [file] = newest.glob("*.safetensors")
    flip(file)
    code, out, err = house.finish()
    assert code == 0, out + err
    assert f"train: goes on from step {STEPS - EVERY}" in out
    assert "damaged and passed over" in out and str(file) in out.replace("\n", "")
    assert house.curve() == expected


def test_when_every_checkpoint_is_damaged_training_begins_again_and_says_so(
    house: House, whole: House, expected: Curve
) -> None:
    copied(house, whole, "trajectory")
    manifests = list(house.root.glob("trajectory/*/checkpoints/*/manifest.json"))
    for manifest in manifests:
        flip(manifest)
    code, out, err = house.finish(*TRAIN)
    assert code == 0, out + err
    assert out.count("damaged and passed over") == len(manifests)
    assert house.curve() == expected
