"""The files of the containers: settings of every service, and no start without secrets. No docker."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from atelier.engine.config.error import ConfigError
from atelier.infra.stack.cluster import SECRETS, check_secrets, command, own_urls
from tests.checkout import TOP

FILES = TOP / "infra" / "docker"
COMPOSE = yaml.safe_load((TOP / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ONCE = ("check", "deploy")
GOOD = {name: f"x7Kq-{number}bVn3Zr9wLp4TmY2{name[-9]}" for number, name in enumerate(SECRETS["check"])}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["user"] == "10001:10001"
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "devices", "pid", "ipc"} & service.keys()
    assert "network_mode" not in service or service["network_mode"] == "none"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_says_how_it_is(name: str) -> None:
    service = SERVICES[name]
    if name in ONCE:
        assert service["restart"] == "no" and service["healthcheck"] == {"disable": True}
    else:
        assert service["restart"] == "unless-stopped" and service["healthcheck"]["test"]


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_is_pinned_and_a_port_is_this_machines(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"atelier/[a-z-]+:\$\{ATELIER_VERSION:-\d+\.\d+\.\d+\}", service["image"])
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:") or service["profiles"] == ["tls"]


def test_secrets_come_by_the_environment_alone() -> None:
    text = (TOP / "docker-compose.yml").read_text()
    for key, value in re.findall(r"(\w*(?:PASSWORD|KEY|AUTH_STRING)\w*): \"?([^\n\"]+)", text):
        assert re.fullmatch(r"(atelier:)?\$\{ATELIER_\w+(:\?[^}]+)?\}", value), key
    for name in SECRETS["check"]:
        assert f"{name}:?" in text.replace("${", "")
    example = (TOP / ".env.example").read_text()
    assert set(re.findall(r"^(ATELIER_\w+)=(.*)$", example, re.MULTILINE)) == {
        (name, "") for name in SECRETS["check"]
    }


def test_each_server_gets_its_own_secrets_and_a_worker_none_of_a_databases() -> None:
    for part in ("prefect", "services", "mlflow"):
        assert set(SECRETS[part]) <= SERVICES[part]["environment"].keys()
    for name in ("light", "worker", "worker-gpu", "deploy"):
        assert not any(
            "DB" in key or "REDIS" in key or "FLASK" in key for key in SERVICES[name]["environment"]
        )
        assert SERVICES[name]["networks"] == ["work"]
    assert COMPOSE["networks"]["data"] == {"internal": True}
    assert not any("store" in volume for volume in SERVICES["mlflow"]["volumes"])


def test_the_control_plane_installs_no_torch_and_all_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, FILES / "requirements.py", TOP / "pyproject.toml"],
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = done.stdout.split("\n")
    assert not any(line.startswith("torch") for line in wanted)
    assert any(line.startswith("prefect-redis") for line in wanted) and any(
        line.startswith("prefect>=") for line in wanted
    )
    assert SERVICES["light"]["image"] == SERVICES["prefect"]["image"]
    dockerfile = (FILES / "Dockerfile").read_text()
    assert "torch" not in dockerfile.partition("AS worker")[0].replace("torch's", "")
    assert re.search(r"^ARG BASE=\w+:\d+\.\d+", dockerfile, re.MULTILINE)


@pytest.mark.parametrize(
    "bad", ["", "short", "atelier-password-1", "a" * 40, "pass word with spaces", "x'; DROP--"]
)
def test_a_secret_that_is_none_is_refused_by_name(bad: str) -> None:
    check_secrets("check", GOOD)
    for name in SECRETS["check"]:
        with pytest.raises(ConfigError, match=name):
            check_secrets("check", GOOD | {name: bad})


def test_one_secret_for_two_things_is_refused() -> None:
    with pytest.raises(ConfigError, match="the same as"):
        check_secrets("check", dict.fromkeys(SECRETS["check"], GOOD["ATELIER_PASSWORD"]))


def test_a_server_answers_to_its_names_and_its_arguments_hold_no_secret() -> None:
    given = GOOD | {"ATELIER_URLS": "https://lab.example:8443/ http://prefect:4200"}
    assert own_urls(4200, given)[:2] == ["https://lab.example:8443", "http://prefect:4200"]
    assert "http://localhost:14200" in own_urls(4200, {"ATELIER_URLS": "http://127.0.0.1:14200"})
    for part in ("prefect", "services"):
        arguments, environment = command(part, given)
        assert not any(secret in word for secret in GOOD.values() for word in arguments)
        assert environment["PREFECT_SERVER_CSRF_PROTECTION_ENABLED"] == "true"
        assert environment["PREFECT_SERVER_API_AUTH_STRING"] == f"atelier:{GOOD['ATELIER_PASSWORD']}"
        assert "*" not in environment["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"]


def test_the_proxy_keeps_no_body_in_memory_and_takes_none_without_end() -> None:
    text = re.sub("#.*", "", (FILES / "nginx.conf").read_text())
    limits = re.findall(r"client_max_body_size (\w+);", text)
    assert limits == ["64m", "16g"] and len(re.findall(r"proxy_pass", text)) == len(limits)
    assert "proxy_request_buffering off;" in text and "proxy_max_temp_file_size 0;" in text
    proxy = yaml.safe_load((TOP / "docker-compose.yml").read_text())["services"]["proxy"]
    assert ["size=16m" in mount for mount in proxy["tmpfs"]] == [True]


def test_the_secrets_script_makes_what_the_check_takes_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    subprocess.run([FILES / "secrets", file], check=True, capture_output=True)
    first = file.read_text()
    given = dict(re.findall(r"^(ATELIER_\w+)=(.+)$", first, re.MULTILINE))
    check_secrets("check", given)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    subprocess.run([FILES / "secrets", file], check=True, capture_output=True)
    assert file.read_text() == first
    assert ".env" in (TOP / ".gitignore").read_text().splitlines()


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
@pytest.mark.parametrize("missing", SECRETS["check"])
def test_compose_refuses_to_start_without_a_secret(tmp_path: Path, missing: str) -> None:
    def config(given: dict[str, str]) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "env"
        file.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ATELIER_")}
        words = ["docker-compose", "--env-file", str(file), "config", "-q"]
        return subprocess.run(words, cwd=TOP, env=kept, capture_output=True, text=True)

    assert config(GOOD).returncode == 0
    refused = config({key: value for key, value in GOOD.items() if key != missing})
    assert refused.returncode != 0 and "infra/docker/secrets" in refused.stderr
