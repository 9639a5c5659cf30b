"""Hundreds of random damages to a checkpoint: all are found, the file is named, and the checkpoint before is
used.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atelier.engine.checkpoint.manifest import MANIFEST
from atelier.engine.loop.resume import resume_point
from tests.engine.trainings import ONE, TrainingSetup, role, student, train

NUM = 200
SEED = int(os.environ.get("ATELIER_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
ROLES = {"teacher": role(), "s": student()}
LAYOUT = ONE.model_copy(update={"shard": 2})
PAGE = 4096

Damage = Callable[[Path, random.Random], set[Path]]


def finish(training_setup: TrainingSetup, steps: int) -> None:
    """Train to `steps` by two ranks."""
    run = training_setup.run_file(training_setup.training(ROLES, train(steps)), layout=LAYOUT)
    for process in training_setup.processes(run, world=2):
        said, errors = process.communicate(timeout=120)
        assert process.returncode == 0, said + errors


def place(training_setup: TrainingSetup, name: str, step: int) -> Path:
    return training_setup.folder / "trajectory" / name / "checkpoints" / f"step-{step:08d}"


@pytest.fixture(scope="module")
def training_setup(tmp_path_factory: pytest.TempPathFactory) -> TrainingSetup:
    """Checkpoints 4 and 8 of two roles, each in shards of two ranks."""
    training_setup = TrainingSetup(tmp_path_factory.mktemp("house"))
    finish(training_setup, 8)
    for name in ROLES:
        files = sorted(path.name[:9] for path in place(training_setup, name, 8).iterdir())
        assert files == ["manifest.", "rank-0000", "rank-0001"]
    return training_setup


def flip(file: Path, rng: random.Random) -> set[Path]:
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return {file}


def truncate(file: Path, rng: random.Random) -> set[Path]:
    os.truncate(file, rng.randrange(file.stat().st_size))
    return {file}


def append(file: Path, rng: random.Random) -> set[Path]:
    file.write_bytes(file.read_bytes() + rng.choice((b"\0", b"\n", b" ", rng.randbytes(PAGE))))
    return {file}


def zero_page(file: Path, rng: random.Random) -> set[Path]:
    data = bytearray(file.read_bytes())
    start = rng.randrange(0, len(data), PAGE)
    data[start : start + PAGE] = bytes(len(data[start : start + PAGE]))
    file.write_bytes(data)
    return {file}


def swap_files(file: Path, rng: random.Random) -> set[Path]:
    """With another file of this checkpoint, of the one before or of the other role."""
    others = sorted(set(file.parents[3].glob("*/checkpoints/*/*")) - {file})
    other = rng.choice(others)
    mine, theirs = file.read_bytes(), other.read_bytes()
    file.write_bytes(theirs)
    other.write_bytes(mine)
    return {file, other}


def swap_tensors(file: Path, rng: random.Random) -> set[Path]:
    """Two tensors of one size change places inside their file."""
    if file.name == MANIFEST:
        file = rng.choice(sorted(file.parent.glob("*.safetensors")))
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    spans = [entry["data_offsets"] for entry in json.loads(data[8:start]).values()]
    pairs = [(a, b) for a in spans for b in spans if a < b and a[1] - a[0] == b[1] - b[0] > 0]
    one, two = (slice(start + first, start + last) for first, last in rng.choice(pairs))
    data[one], data[two] = data[two], data[one]
    file.write_bytes(data)
    return {file}


def lose(file: Path, rng: random.Random) -> set[Path]:
    file.unlink()
    return {file}


KINDS: tuple[Damage, ...] = (flip, truncate, append, zero_page, swap_files, swap_tensors, lose)


def to_be_named(damaged: set[Path]) -> set[Path]:
    """The damaged files of the newest checkpoints; behind a damaged manifest nothing more is known. A
    teacher's checkpoints past its student's are not looked at.
    """
    newest = {path for path in damaged if path.parent.name == "step-00000008"}
    if any("/s/" in str(path) for path in newest):
        newest = {path for path in newest if "/s/" in str(path)}
    unread = {path.parent for path in newest if path.name == MANIFEST}
    return {path for path in newest if path.name == MANIFEST or path.parent not in unread}


def expected_steps(damaged: set[Path]) -> dict[str, int]:
    """Each role at its newest whole checkpoint, the teacher not past an unfinished student."""
    hit = {(path.parents[2].name, path.parent.name) for path in damaged}
    whole = {name: [s for s in (0, 4, 8) if (name, f"step-{s:08d}") not in hit] for name in ROLES}
    learner = max(whole["s"])
    return {"s": learner, "teacher": max(step for step in whole["teacher"] if step <= learner)}


@contextmanager
def restored(training_setup: TrainingSetup) -> Iterator[dict[Path, bytes]]:
    """Every file of every checkpoint as it was, afterwards."""
    before = {path: path.read_bytes() for path in training_setup.folder.glob("trajectory/*/checkpoints/*/*")}
    try:
        yield before
    finally:
        for path, data in before.items():
            if not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)


def test_200_random_damages_are_all_found_each_file_is_named_and_the_checkpoint_before_is_used(
    training_setup: TrainingSetup,
) -> None:
    print(f"ATELIER_SEED={SEED}")
    rng, counts, num = random.Random(SEED), Counter[str](), 0
    training = training_setup.training(ROLES, train(8))
    files = sorted(training_setup.folder.glob("trajectory/*/checkpoints/step-00000008/*"))
    while num < NUM:
        kind, file = KINDS[num % len(KINDS)], rng.choice(files)
        with restored(training_setup) as before:
            damaged = kind(file, rng)
            if all(path.exists() and path.read_bytes() == before[path] for path in damaged):
                continue  # a zero page was zero, a tensor equal to the other: not a damage
            what = f"ATELIER_SEED={SEED}, damage {num}: {kind.__name__} of {sorted(damaged)}"
            found = resume_point(training.members, {})
            for path in to_be_named(damaged):
                assert any(line.startswith(f"{path}: ") for line in found.damages), what
            assert found.steps == expected_steps(damaged), what
            counts[kind.__name__] += 1
            num += 1
    print(", ".join(f"{kind} {number}" for kind, number in counts.items()))
    assert not resume_point(training.members, {}).damages


def test_a_gang_goes_on_from_the_checkpoint_before_the_damaged_one_with_the_same_bits(
    training_setup: TrainingSetup,
) -> None:
    expected = {name: training_setup.weights(name) for name in ROLES}
    rng = random.Random(SEED)
    damage, name = rng.choice(KINDS), rng.choice(list(ROLES))
    print(f"ATELIER_SEED={SEED}: {damage.__name__} {name}")
    for output in ROLES:
        (training_setup.output(output) / "model.safetensors").unlink()
    damage(rng.choice(sorted(place(training_setup, name, 8).iterdir())), rng)
    finish(training_setup, 8)
    assert {name: training_setup.weights(name) for name in ROLES} == expected
