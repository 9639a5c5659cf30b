"""Folders, names, proxies and GPUs that this process derives from foreign environment variables."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch
from urllib.request import proxy_bypass

import httpx
import pytest
import requests.utils

from atelier.engine.config.error import ConfigError
from atelier.engine.io import proxies
from atelier.engine.io.user_folders import cache_folder, complete_user, home, own_folder, user_name
from atelier.infra.launch.gpus import visible
from atelier.infra.stack.service import check_proxies
from tests.foreign.kinds import environments
from tests.foreign.search import Case

COUNT = 10
OWN = ("http://127.0.0.1:4200/api", "http://localhost:5000/", "http://[::1]:80/")
EXEMPT = [proxies.exempt_loopback]


def draw(rng: random.Random) -> Case:
    return environments.draw(rng)


def check(case: Case, folder: Path) -> str:
    with patch.dict(os.environ, environments.environment(case, folder), clear=True):
        complete_user(os.environ)
        EXEMPT[0](os.environ)
        for place in (home(), own_folder(), cache_folder(), Path(os.environ["HOME"])):
            assert place.is_absolute(), place
        assert user_name() and os.path.isdir(os.environ["HOME"])
        assert all(name for name in _visible())
        for url in OWN:
            assert not {"http", "all"} & set(requests.utils.get_environ_proxies(url)), url
            assert not os.environ.get("http_proxy") or proxy_bypass(httpx.URL(url).host), url
        try:
            with httpx.Client() as client:
                assert all(client._transport_for_url(httpx.URL(url)) is client._transport for url in OWN)
        except (ValueError, ImportError, httpx.InvalidURL):
            with pytest.raises(ConfigError, match="correct them or unset them"):
                check_proxies()
            return "refused"
    return "works"


def _visible() -> list[str]:
    try:
        return visible(2)
    except ConfigError:
        return []


@contextmanager
def broken() -> Iterator[None]:
    """Loopback is not exempt."""
    EXEMPT[0] = lambda environment: []
    try:
        yield
    finally:
        EXEMPT[0] = proxies.exempt_loopback
