"""A run keeps the name that a person gave it; a name that Prefect drew is replaced."""

import pytest
from prefect.utilities.names import generate_slug

from atelier.flows.deployments.flow_run import is_generated


def test_every_name_that_prefect_draws_is_known():
    drawn = [generate_slug(2) for _ in range(300)]
    assert [name for name in drawn if not is_generated(name)] == []
    assert all(is_generated(name) for name in ("Sleek-Snake", "Generic-Lizard", "Tasty-Cow"))


@pytest.mark.parametrize(
    "name", ["", "first", "lr-0.02", "Big-Teacher", "my run", "Sleek-Snake-2", "sleek-student", "Sleek-42"]
)
def test_a_name_that_a_person_gave_is_kept(name: str):
    assert not is_generated(name)
