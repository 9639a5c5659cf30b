"""What the command of a run changes in the training of one of its models."""

import shlex

TRAINING = (  # first words of keys that change a training
    *("model", "init", "objective", "optim", "train", "data", "tokenizer", "start", "gate", "grow", "tune"),
)
LONGEST = 40  # characters of one difference


def differences(command: str, role: str) -> list[str]:
    """What `command` changes in the training of `role`, for the name of its run: `lr=0.02`."""
    found = []
    for word in shlex.split(command):
        key, is_set, value = word.lstrip("+").partition("=")
        place = key.partition("@")[2] or key
        mine = place.removeprefix(f"roles.{role}.")
        if is_set and place.startswith("roles.") and mine == place:
            continue
        if is_set and mine.split(".")[0] in TRAINING:
            found.append(f"{mine.rsplit('.', 1)[-1]}={value}"[:LONGEST])
    return found
