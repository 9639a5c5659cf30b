"""Environment of a gang's processes from a site's settings."""

import pytest

from atelier.engine.config.base import Json, parse
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
        (
            {
                "interface": "eth1",
                "env": {"NCCL_IB_HCA": "mlx5_0", "PYTORCH_ALLOC_CONF": "max_split_size_mb:64"},
            },
            INTERFACE | {"NCCL_IB_HCA": "mlx5_0", "PYTORCH_ALLOC_CONF": "max_split_size_mb:64"},
        ),
    ],
)
def test_what_is_set_is_in_the_environment_and_nothing_else(
    given: dict[str, Json], added: dict[str, str]
) -> None:
    """What is empty leaves the process what it has."""
    assert parse(Site, given, "site").environment() == added


@pytest.mark.parametrize("word", ["eth1;ls", "eth 1", "$(ls)", "eth1\nPATH=/x"])
def test_an_interface_is_a_name_of_one(word: str) -> None:
    with pytest.raises(ConfigError, match=r"site\.interface"):
        parse(Site, {"interface": word}, "site")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("AWS_SECRET_ACCESS_KEY", "x", "does not tune a rank's fabric or memory; there are: NCCL_..., "),
        ("PYTHONPATH", "/x", "does not tune"),
        ("LD_PRELOAD", "x.so", "does not tune"),
        ("CUDA_VISIBLE_DEVICES", "0", "does not tune"),
        ("nccl_debug", "INFO", "does not tune"),
        ("NCCL_NET_PLUGIN", "x.so", "does not tune"),
        ("TRITON_PTXAS_PATH", "/x", "does not tune"),
        ("OMP_PLACESX", "cores", "does not tune"),
        ("NCCL_SOCKET_IFNAME", "eth1", "is given by `interface`"),
        ("NCCL_DEBUG", "", "give a value in one line"),
        ("NCCL_DEBUG", "INFO\nPATH=/x", "give a value in one line"),
    ],
)
def test_a_variable_that_does_not_tune_a_rank_is_refused(name: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"site\.env") as refused:
        parse(Site, {"env": {name: value}}, "site")
    assert says in str(refused.value) and name in str(refused.value)
