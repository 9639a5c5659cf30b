"""Environment of a gang's processes from a site's settings."""

import pytest

from atelier.engine.config.base import parse
from atelier.engine.config.error import ConfigError
from atelier.engine.config.site import Site

INTERFACE = {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "eth1"}


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({}, {}),
        ({"interface": "eth1"}, INTERFACE),
        ({"address": "node-7", "interface": "eth1"}, INTERFACE | {"ATELIER_ADDRESS": "node-7"}),
        ({"store": "s3://store"}, {"ATELIER_ROOT": "s3://store"}),
    ],
)
def test_what_is_set_is_in_the_environment_and_nothing_else(
    given: dict[str, str], added: dict[str, str]
) -> None:
    """What is empty leaves the process what it has."""
    assert parse(Site, given, "site").environment() == added


@pytest.mark.parametrize("word", ["eth1;ls", "eth 1", "$(ls)", "eth1\nPATH=/x"])
def test_an_interface_is_a_name_of_one(word: str) -> None:
    with pytest.raises(ConfigError, match=r"site\.interface"):
        parse(Site, {"interface": word}, "site")
