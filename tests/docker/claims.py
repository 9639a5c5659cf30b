"""Claims that infra/docker/verify checks, each with its measured number. Standard library alone."""

import base64
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent.parent
SERVERS = ("postgres", "redis", "prefect", "services", "mlflow", "light", "worker")
SECRET = re.compile(r"^(ATELIER_[A-Z_]+)=$", re.MULTILINE)
failed: list[str] = []


def claim(text: str, holds: bool, measured: object = "") -> None:
    print(f"{'holds ' if holds else 'BROKEN'}  {text}{f': {measured}' if measured != '' else ''}", flush=True)
    if not holds:
        failed.append(text)


def run(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, cwd=PROJECT, **more)


def wait(what: str, is_there: Callable[[], Any], patience_s: float) -> Any:
    deadline = time.monotonic() + patience_s
    while True:
        if found := is_there():
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {patience_s:.0f} s")
        time.sleep(0.5)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


class Stack:
    """One project of docker-compose with secrets, ports and volumes of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.env = name, folder / f"{name}.env"
        run("infra/docker/secrets", str(self.env), check=True)
        self.ports = {part: free_port() for part in ("PREFECT", "MLFLOW", "TLS_PREFECT", "TLS_MLFLOW")}
        self.prefect = f"http://127.0.0.1:{self.ports['PREFECT']}"
        self.mlflow = f"http://127.0.0.1:{self.ports['MLFLOW']}"
        lines = {f"ATELIER_{part}_PORT": port for part, port in self.ports.items() if "TLS" not in part}
        lines |= {f"ATELIER_{part}": port for part, port in self.ports.items() if "TLS" in part}
        lines |= {"ATELIER_BIND": "127.0.0.1", "ATELIER_CERTS": str(folder / "certs")}
        lines |= {"ATELIER_PREFECT_URL": self.prefect, "ATELIER_MLFLOW_URL": self.mlflow}
        with open(self.env, "a") as file:
            file.write("".join(f"{key}={value}\n" for key, value in lines.items()))
        [self.password] = re.findall(r"^ATELIER_PASSWORD=([\w-]+)$", self.env.read_text(), re.MULTILINE)
        self.csrf: dict[str, str] = {}

    @property
    def words(self) -> list[str]:
        return ["docker-compose", "-p", self.name, "--env-file", str(self.env)]

    def compose(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return run(*self.words, *words, **more)

    def container(self, service: str) -> str:
        return self.compose("ps", "-q", service).stdout.strip()

    def inside(self, service: str, *words: str) -> subprocess.CompletedProcess[str]:
        return run("docker", "exec", self.container(service), *words)

    def health(self, service: str) -> str:
        state = json.loads(run("docker", "inspect", self.container(service)).stdout)[0]["State"]
        return str(state.get("Health", {}).get("Status", state["Status"]))

    def up(self) -> float:
        started = time.monotonic()
        done = self.compose("up", "-d")
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        wait("all healthy", lambda: all(self.health(one) == "healthy" for one in SERVERS), 180)
        return time.monotonic() - started

    def ask(self, url: str, body: Any = None, signed: bool = True, headers: Any = None) -> tuple[int, Any]:
        """Status and content of one request; with a body it is a POST."""
        sent = {"Content-Type": "application/json", **(headers or {})}
        if signed:
            login = base64.b64encode(f"atelier:{self.password}".encode()).decode()
            sent["Authorization"] = f"Basic {login}"
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(url, data, sent)
            with urllib.request.urlopen(
                request, timeout=60, context=ssl._create_unverified_context()
            ) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text[:1] in (b"{", b"[", b'"') else text
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError as error:
            return 0, error

    def api(self, path: str, body: Any = None) -> Any:
        """Call Prefect's API as its page does."""
        if not self.csrf:
            status, token = self.ask(f"{self.prefect}/api/csrf-token?client=verify")
            if status != 200:
                raise RuntimeError(f"csrf-token: {status} {token}")
            self.csrf = {"Prefect-Csrf-Token": token["token"], "Prefect-Csrf-Client": "verify"}
        status, answer = self.ask(f"{self.prefect}/api{path}", body, headers=self.csrf)
        if status >= 400 or not status:
            raise RuntimeError(f"{path}: {status} {answer}")
        return answer

    def start(self, flow: str, **parameters: Any) -> str:
        found = self.api(f"/deployments/name/{flow}/atelier")["id"]
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return str(self.api(f"/deployments/{found}/create_flow_run", body)["id"])

    def state(self, run_id: str) -> str:
        try:
            return str(self.api(f"/flow_runs/{run_id}")["state"]["name"])
        except RuntimeError as error:
            return str(error)

    def end(self, run_id: str, patience_s: float = 1200) -> str:
        """The final state. After an outage it may be Crashed until the process reclaims its run."""
        seen: list[str] = []

        def has_ended() -> bool:
            seen.append(self.state(run_id))
            return seen[-1] in ("Completed", "Failed", "Cancelled") or seen[-200:] == ["Crashed"] * 200

        wait(f"the end of {run_id}", has_ended, patience_s)
        return seen[-1]

    def mlflow_runs(self) -> list[dict[str, Any]]:
        experiments = self.ask(f"{self.mlflow}/api/2.0/mlflow/experiments/search?max_results=100")[1]
        numbers = [one["experiment_id"] for one in experiments["experiments"]]
        body = {"experiment_ids": numbers, "max_results": 1000}
        return list(self.ask(f"{self.mlflow}/api/2.0/mlflow/runs/search", body)[1].get("runs", []))

    def contents(self) -> dict[str, Any]:
        """Inventory: runs and their states, runs of MLflow with their last losses, models, artifacts."""
        runs = self.api("/flow_runs/filter", {"limit": 200})
        tracked = self.mlflow_runs()
        models = self.ask(f"{self.mlflow}/api/2.0/mlflow/registered-models/search?max_results=100")[1]
        last = {
            one["info"]["run_id"]: sorted((m["key"], m["value"]) for m in one["data"].get("metrics", []))
            for one in tracked
        }
        records = "find /store -name record.json | sort | xargs sha256sum"
        return {
            "flow runs": sorted((one["id"], one["state_name"]) for one in runs),
            "MLflow runs": last,
            "models": sorted(one["name"] for one in models.get("registered_models", [])),
            "artifacts": self.inside("light", "sh", "-c", records).stdout.splitlines(),
        }

    def down(self) -> None:
        self.compose("--profile", "tls", "down", "-v", "--remove-orphans", "-t", "5")


def refusals(stack: Stack) -> None:
    text = stack.env.read_text()
    names = SECRET.findall((PROJECT / ".env.example").read_text())
    bad = stack.env.with_suffix(".bad")
    told = 0
    for name in names:
        bad.write_text(re.sub(rf"^{name}=.*$", f"{name}=", text, flags=re.MULTILINE))
        done = run("docker-compose", "-p", stack.name, "--env-file", str(bad), "up", "-d")
        told += done.returncode != 0 and "run infra/docker/secrets" in done.stderr
    claim("a missing secret is refused with a message", told == len(names), f"{told} of {len(names)}")
    for word in ("atelier-password", "mlflowmlflowmlflow", "tooshort", "aaaaaaaaaaaaaaaaaaaaaaaa"):
        bad.write_text(re.sub(r"^ATELIER_PASSWORD=.*$", f"ATELIER_PASSWORD={word}", text, flags=re.MULTILINE))
        words = ("docker-compose", "-p", stack.name, "--env-file", str(bad))
        done = run(*words, "up", "-d")
        said = run(*words, "logs", "--no-color", "check").stdout.strip().splitlines()[-1]
        there = run("docker", "ps", "-q", "--filter", f"label=com.docker.compose.project={stack.name}").stdout
        claim(f"the password {word} is refused and nothing starts", done.returncode != 0 and not there, said)
        run(*words, "down", "-v")
    bad.unlink()


def doors(stack: Stack) -> None:
    paths = ("/api/admin/version", "/api/admin/settings", "/api/csrf-token?client=x")
    codes = [stack.ask(stack.prefect + path, signed=False)[0] for path in paths]
    claim("Prefect's API answers 401 without the password", set(codes) == {401}, codes)
    paths = ("/api/2.0/mlflow/experiments/search?max_results=1", "/api/2.0/mlflow/registered-models/search")
    codes = [stack.ask(stack.mlflow + path, signed=False)[0] for path in paths]
    claim("MLflow's API answers 401 without the password", set(codes) == {401}, codes)
    both = [
        (stack.prefect, "/api/admin/version"),
        (stack.mlflow, "/api/2.0/mlflow/experiments/search?max_results=1"),
    ]
    codes = [stack.ask(url + path)[0] for url, path in both]
    claim("with it both answer", codes == [200, 200], codes)
    foreign = {"Host": "evil.example"}, {"Origin": "http://evil.example"}
    codes = [stack.ask(stack.prefect + "/api/admin/version", headers=headers)[0] for headers in foreign]
    codes += [
        stack.ask(stack.mlflow + "/api/2.0/mlflow/experiments/search?max_results=1", headers=foreign[0])[0]
    ]
    claim("a foreign host or page gets 403", set(codes) == {403}, codes)
    code = stack.ask(stack.prefect + "/api/flow_runs/filter", {})[0]
    claim("a POST without the page's token gets 403", code == 403, code)


def boxes(stack: Stack) -> None:
    bad: list[str] = []
    for service in SERVERS:
        found = json.loads(run("docker", "inspect", stack.container(service)).stdout)[0]
        host, config = found["HostConfig"], found["Config"]
        ports = [one["HostIp"] for each in (host["PortBindings"] or {}).values() for one in each]
        holds = (
            config["User"] == "10001:10001", host["ReadonlyRootfs"], host["CapDrop"] == ["ALL"],
            "no-new-privileges:true" in host["SecurityOpt"], set(ports) <= {"127.0.0.1"},
        )  # fmt: skip
        bad += [] if all(holds) else [f"{service} {holds}"]
    text = "user 10001, root file system read-only, no capability, no new privileges, loopback ports"
    claim(text, not bad, bad or f"{len(SERVERS)} containers")
    done = stack.inside("light", "python", "-c", "import torch")
    claim("the control plane's image holds no torch", "No module named 'torch'" in done.stderr)
    done = stack.inside("worker", "python", "-c", "import torch; print(torch.__version__)")
    claim("the worker's does", done.returncode == 0, done.stdout.strip())
    for host, port in (("postgres", 5432), ("redis", 6379)):
        done = stack.inside("worker", "bash", "-c", f"timeout 3 bash -c '</dev/tcp/{host}/{port}'")
        claim(f"a worker does not reach {host}", done.returncode != 0)


def environments(stack: Stack) -> str:
    """Environments of the training ranks that run now, one process a line."""
    script = (
        "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline | grep -q 'engine[.]train' || continue;"
        " tr '\\0' ' ' <$p/environ; echo; done 2>/dev/null"
    )
    return stack.inside("worker", "sh", "-c", script).stdout.strip()


def a_run(stack: Stack) -> None:
    started = time.monotonic()
    run_id = stack.start("pretrain", experiment="tiny")
    seen = wait("ranks", lambda: environments(stack) or stack.state(run_id) == "Failed", 240)
    leaks = stack.password in str(seen) or "PREFECT_API" in str(seen) or "MLFLOW_TRACKING" in str(seen)
    claim("a training rank has no credential in its environment", seen is not True and not leaks)
    end = stack.end(run_id)
    took = f"{end} after {time.monotonic() - started:.0f} s"
    claim("pretrain experiment=tiny, started through Prefect's API, completes", end == "Completed", took)
    records = 'grep -ho \'"host": *"[^"]*"\' /store/model/*/record.json | sort -u'
    hosts = stack.inside("light", "sh", "-c", records).stdout.split('"')
    claim("its training ran on the worker", hosts[3:] == ["worker", "\n"], hosts[3:])


def outage(stack: Stack) -> None:
    steps = 200  # of a longer curve MLflow gets every second, fourth ... step only
    words = [f"train.steps={steps}", "train.global_batch=64", "name=outage"]  # longer than the outage
    run_id = stack.start("pretrain", experiment="tiny", overrides=words)
    wait("training", lambda: environments(stack), 240)
    time.sleep(5)
    run("docker", "kill", "-s", "KILL", stack.container("postgres"), check=True)
    killed = time.monotonic()
    time.sleep(20)
    is_alive = bool(environments(stack))
    code = stack.ask(stack.prefect + "/api/flow_runs/count", {}, headers=stack.csrf)[0]
    claim(
        "postgres killed: Prefect's API fails, the gang trains on", is_alive and code != 200, f"status {code}"
    )
    run("docker", "start", stack.container("postgres"), check=True)
    wait("postgres", lambda: stack.health("postgres") == "healthy", 60)
    away = time.monotonic() - killed
    end = stack.end(run_id)
    claim("started again: the run completes", end == "Completed", f"{end}; away {away:.0f} s")
    logged = 0
    for one in stack.mlflow_runs():
        url = f"{stack.mlflow}/api/2.0/mlflow/metrics/get-history?metric_key=loss&max_results=25000&run_id="
        found = stack.ask(url + one["info"]["run_id"])[1]
        points = [m["step"] for m in found.get("metrics", [])] if isinstance(found, dict) else []
        if len(points) > logged:
            logged, unique = len(points), len(set(points))
    claim(
        "no step is missing from MLflow, none is there twice",
        logged == unique == steps,
        f"{logged} of {steps}",
    )


def copies(stack: Stack, fresh: Stack, folder: Path) -> None:
    """The stack's backup, restored into a fresh one."""
    before = stack.contents()
    environment = {"env": os.environ | {"COMPOSE": " ".join(stack.words)}}
    started = time.monotonic()
    run("infra/docker/backup", str(folder / "backup"), check=True, **environment)
    took = time.monotonic() - started
    size = sum(path.stat().st_size for path in (folder / "backup").iterdir()) / 1e6
    stack.down()
    environment = {"env": os.environ | {"COMPOSE": " ".join(fresh.words)}}
    started = time.monotonic()
    run("infra/docker/restore", str(folder / "backup"), check=True, **environment)
    restored = time.monotonic() - started
    fresh.up()
    after = fresh.contents()
    counts = ", ".join(f"{len(after[key])} {key}" for key in after)
    text = f"{counts}; backup {took:.0f} s, {size:.0f} MB, restore {restored:.0f} s"
    claim("a backup restored into a fresh stack with other secrets shows everything", before == after, text)
    again = run("infra/docker/restore", str(folder / "backup"), **environment)
    claim(
        "a restore over a stack that has run is refused",
        again.returncode != 0,
        again.stderr.strip().splitlines()[-1],
    )


def goes_on(stack: Stack) -> None:
    run_id = stack.start("pretrain", experiment="tiny")
    end = stack.end(run_id)
    message = stack.api(f"/flow_runs/{run_id}")["state"]["message"]
    claim("the restored store is used: the same flow again reuses everything", end == "Completed", message)


def tls(stack: Stack, folder: Path) -> None:
    certs = folder / "certs"
    certs.mkdir()
    words = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout tls.key -out tls.crt"
    )
    subprocess.run(words.split(), cwd=certs, check=True, capture_output=True)
    for path in (certs, *certs.iterdir()):
        os.chown(path, 10001, 10001)
    urls = [f"https://127.0.0.1:{stack.ports[part]}" for part in ("TLS_PREFECT", "TLS_MLFLOW")]
    lines = dict(zip(("ATELIER_PREFECT_URL", "ATELIER_MLFLOW_URL"), urls, strict=True))
    stack.env.write_text(stack.env.read_text() + "".join(f"{key}={url}\n" for key, url in lines.items()))
    done = stack.compose("--profile", "tls", "up", "-d")
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    wait("the proxy", lambda: stack.health("proxy") == "healthy", 120)
    paths = "/api/admin/version", "/api/2.0/mlflow/experiments/search?max_results=1"
    codes = [
        stack.ask(url + path, signed=signed)[0]
        for url, path in zip(urls, paths, strict=True)
        for signed in (False, True)
    ]
    claim("profile tls: 401 without the password, 200 with it", codes == [401, 200, 401, 200], codes)


def main(name: str) -> int:
    with tempfile.TemporaryDirectory(prefix="atelier-verify-") as path:
        folder = Path(path)
        os.chmod(folder, 0o711)  # the proxy's user finds its certificate
        stack = Stack(name, folder)
        stacks = [stack]
        try:
            refusals(stack)
            claim("cold start, from nothing to all healthy", True, f"{stack.up():.0f} s")
            doors(stack)
            boxes(stack)
            a_run(stack)
            outage(stack)
            stacks.append(Stack(f"{name}b", folder))
            copies(stacks[0], stacks[1], folder)
            goes_on(stacks[1])
            tls(stacks[1], folder)
        except (RuntimeError, TimeoutError, subprocess.CalledProcessError) as error:
            claim(f"{error} {getattr(error, 'stderr', '') or ''}"[:2000], False)
            for one in stacks:
                print(one.compose("logs", "--no-color", "--tail", "15").stdout)
        finally:
            for one in stacks:
                one.down()
    print(f"verify: {len(failed)} broken" if failed else "verify: all of it holds")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
