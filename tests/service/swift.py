"""A real object store that speaks S3: OpenStack Swift, one replica, all of it below one folder.

Nothing is installed here. `missing` names what is not installed.
"""

import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.ports import free_port

SERVER = Path(__file__).with_name("swift_server.py")
KINDS = ("account", "container", "object", "proxy")
BUCKET = "atelier"
PATIENCE_S = 60.0  # a loaded machine; a quiet one is ready in two seconds
END_S = 10.0

COMMON = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
user = {user}
workers = 0
swift_dir = {folder}
devices = {folder}
mount_check = false
disable_fallocate = true
log_level = INFO
"""

STORAGE = """
[pipeline:main]
pipeline = {kind}-server

[app:{kind}-server]
use = egg:swift#{kind}
allow_versions = true
container_update_timeout = 30
"""

PROXY = """
[pipeline:main]
pipeline = catch_errors gatekeeper healthcheck proxy-logging cache listing_formats bulk
  s3api users copy slo versioned_writes proxy-logging proxy-server

[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
node_timeout = 20
recoverable_node_timeout = 20
error_suppression_limit = 1000000

[filter:catch_errors]
use = egg:swift#catch_errors

[filter:gatekeeper]
use = egg:swift#gatekeeper

[filter:healthcheck]
use = egg:swift#healthcheck

[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{memcached}

[filter:s3api]
use = egg:swift#s3api
location = us-east-1
s3_acl = false
auth_pipeline_check = false

[filter:users]
paste.filter_factory = swift_server:users
users = {folder}/users.json

[filter:listing_formats]
use = egg:swift#listing_formats

[filter:bulk]
use = egg:swift#bulk

[filter:copy]
use = egg:swift#copy

[filter:versioned_writes]
use = egg:swift#versioned_writes

[filter:slo]
use = egg:swift#slo

[filter:proxy-logging]
use = egg:swift#proxy_logging
"""

CLUSTER = """\
[swift-hash]
swift_hash_path_suffix = {suffix}

[storage-policy:0]
name = one
default = yes
"""


@dataclass(frozen=True)
class Credentials:
    access_key: str
    secret: str


def missing() -> str:
    """Why no such store can be had here; '' when one can."""
    programs = [*(f"swift-{kind}-server" for kind in KINDS), "memcached"]
    absent = [program for program in programs if shutil.which(program) is None]
    absent += [package for package in ("s3fs", "botocore") if find_spec(package) is None]
    return f"{', '.join(absent)}: not installed" if absent else ""


class Swift:
    """The store: its address, its credentials, and the faults to inject."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.ports = {name: free_port() for name in (*KINDS, "memcached")}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.bucket = BUCKET
        self._users: dict[str, dict[str, Any]] = {}
        self._configure()
        self.credentials = self.renew()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports['proxy']}"

    @property
    def url(self) -> str:
        """A folder of the bucket, as fsspec names it."""
        return f"s3://{self.bucket}/store"

    def environment(self) -> dict[str, str]:
        """The variables by which s3fs and botocore find the store."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.credentials.access_key,
            "AWS_SECRET_ACCESS_KEY": self.credentials.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def options(self) -> dict[str, Any]:
        """The same as arguments of s3fs."""
        return {
            "endpoint_url": self.endpoint,
            "key": self.credentials.access_key,
            "secret": self.credentials.secret,
        }

    def revoke(self) -> None:
        """From now on the credentials given out so far are refused, with those of open connections."""
        self._users.clear()
        self._write_users()

    def renew(self) -> Credentials:
        """Revoke the credentials given out so far; new ones, good at once."""
        self._users.clear()
        user, secret = f"atelier:{secrets.token_hex(4)}", secrets.token_hex(16)
        self._users[user] = {"key": secret, "url": "$HOST/v1/AUTH_atelier", "groups": [".admin"]}
        self._write_users()
        self.credentials = Credentials(access_key=user, secret=secret)
        return self.credentials

    def start(self, *names: str) -> None:
        """Start servers (without names the proxy) and return when they answer."""
        for name in names or ("proxy",):
            self._spawn(name)
        for name in names or ("proxy",):
            wait_until(lambda name=name: self._is_up(name), f"{name}, see {self.log(name)}")

    def stop(self, *names: str, how: int = signal.SIGTERM) -> None:
        """End servers (without names the proxy): requests to them are then refused."""
        ending = [self.processes.pop(name) for name in names or ("proxy",) if name in self.processes]
        for process in ending:
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)
        for process in ending:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def kill_proxy(self) -> None:
        """End the proxy by SIGKILL, in the middle of its requests."""
        self.stop("proxy", how=signal.SIGKILL)

    @contextmanager
    def hanging(self, name: str = "proxy") -> Iterator[None]:
        """A server that takes connections and answers nothing until the block ends."""
        process = self.processes[name]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _configure(self) -> None:
        (self.folder / "disk").mkdir(parents=True)
        (self.folder / "swift.conf").write_text(CLUSTER.format(suffix=secrets.token_hex(8)))
        user = pwd.getpwuid(os.geteuid()).pw_name
        for kind in KINDS:
            text = COMMON + (PROXY if kind == "proxy" else STORAGE)
            values = {"kind": kind, "port": self.ports[kind], "memcached": self.ports["memcached"]}
            (self.folder / f"{kind}.conf").write_text(text.format(folder=self.folder, user=user, **values))
        shutil.copy(SERVER, self.folder)  # beside it a module is called swift
        ports = [str(self.ports[kind]) for kind in KINDS[:-1]]
        subprocess.run([*self._python("rings"), str(self.folder), *ports], check=True, env=self._plain())

    def _python(self, act: str) -> list[str]:
        """The Python that Swift is installed for, at work: that of its programs."""
        program = shutil.which("swift-proxy-server")
        assert program is not None, missing()
        interpreter = Path(program).read_text().splitlines()[0].removeprefix("#!").strip()
        return [interpreter, str(self.folder / SERVER.name), act]

    def _plain(self) -> dict[str, str]:
        """An environment with nothing of this project in it but the filter of the proxy."""
        return {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.folder), "LANG": "C.UTF-8"}

    def _write_users(self) -> None:
        new = self.folder / "users.new"
        new.write_text(json.dumps(self._users))
        new.replace(self.folder / "users.json")

    def _spawn(self, name: str) -> None:
        program = shutil.which("memcached" if name == "memcached" else f"swift-{name}-server") or name
        if name == "memcached":
            port = str(self.ports[name])
            words = [*self._python("execute"), program, "-l", "127.0.0.1", "-p", port, "-u", "nobody"]
        else:
            place = self.folder / f"{name}.conf"
            words = [*self._python("serve"), program, str(self.folder), str(place)]
        with open(self.log(name), "ab") as log:
            self.processes[name] = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=log, stderr=log, env=self._plain()
            )

    def _is_up(self, name: str) -> bool:
        code = self.processes[name].poll()
        if code is not None:
            raise AssertionError(f"{name} ended with {code}:\n{self.log(name).read_text()[-4000:]}")
        if name == "memcached":
            return True
        try:
            place = "healthcheck" if name == "proxy" else "recon/version"
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[name]}/{place}", timeout=5):
                return True
        except urllib.error.HTTPError:
            return True  # any response will do
        except OSError:
            return False


@contextmanager
def swift(folder: Path) -> Iterator[Swift]:
    """A store below `folder` (which is made: on a disk with extended attributes) with one empty bucket."""
    store = Swift(folder)
    try:
        store.start("memcached", *KINDS)
        wait_until(lambda: make_bucket(store), f"a bucket, see {store.log('proxy')}")
        yield store
    finally:
        store.stop("memcached", *KINDS)


def client(endpoint: str, credentials: Credentials, **settings: Any) -> Any:
    """botocore's own client of a store, which asks once unless `settings` say otherwise."""
    from botocore.config import Config  # an extra of this project, see `missing`
    from botocore.session import Session

    return Session().create_client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret,
        region_name="us-east-1",
        config=Config(**{"retries": {"total_max_attempts": 1}, **settings}),
    )


def make_bucket(store: Swift) -> bool:
    from botocore.exceptions import ClientError  # an extra of this project, see `missing`

    service = client(store.endpoint, store.credentials)
    try:
        service.create_bucket(Bucket=store.bucket)
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
            raise
        return False
    finally:
        service.close()
    return True


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE_S:.0f} s in vain for {what}")
        time.sleep(0.05)
