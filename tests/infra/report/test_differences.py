"""The name of a model's run has exactly the changes that its command made to the training."""

import pytest

from atelier.infra.report.listing import differences


@pytest.mark.parametrize(
    ("command", "role", "found"),
    [
        (
            "atelier distill experiment=tiny roles.student_a.optim.lr=0.02 pool=local",
            "student_a",
            ["lr=0.02"],
        ),
        ("atelier distill roles.student_a.optim.lr=0.02", "student_b", []),
        ("atelier pretrain optim.lr=3e-3 train.seed=2 score.max_tokens=5", "model", ["lr=3e-3", "seed=2"]),
        ("atelier titan model@roles.teacher.model=ernie_nano", "teacher", ["model=ernie_nano"]),
        ("atelier pretrain +model.rope.theta=1e6 tracker=none", "model", ["theta=1e6"]),
        ("atelier pretrain 'data.source=/a b/*.txt'", "model", ["source=/a b/*.txt"]),
        ("", "model", []),
    ],
)
def test_differences_of_a_role(command: str, role: str, found: list[str]):
    assert differences(command, role) == found
