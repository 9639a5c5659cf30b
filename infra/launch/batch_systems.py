"""The batch system that runs a pool's gangs: Slurm (infra/launch/slurm.py) or Kubernetes.

Gangs on Kubernetes are indexed Jobs: one pod per node (infra/launch/node_agent.py), which find each other
through a headless Service. The manifests are checked against Kubernetes' schema; NOT RUN ON A CLUSTER.
`atelier worker <pool> --show` prints them. The submitter needs kubectl with the permissions in
infra/k8s/atelier.yaml. Pods get no API token and no credential but the store's.
"""

import json
import os
import subprocess
from collections.abc import Mapping

import yaml

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError
from atelier.engine.config.pool import Pool
from atelier.engine.config.site import CACHES, Kubernetes, Site, tunes
from atelier.engine.io.addresses import NAMED
from atelier.infra.launch.batch_job import Batch, BatchJob, JobStatus
from atelier.infra.launch.rendezvous import SUBDOMAIN
from atelier.infra.launch.slurm import SlurmBatch

SECONDS = 30  # timeout of kubectl
GRACE_S = 60  # from SIGTERM to SIGKILL: time for a checkpoint
KEEP_S = 3600  # how long a finished Job stays visible
LABEL = "atelier.gang"
TAIL = 15
ENVIRONMENT = ("PATH", "HOME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")


def batch_of(pool: Pool, site: Site) -> Batch:
    """The batch system of a pool."""
    gpus = not pool.is_cpu
    if pool.launcher == "slurm":
        return SlurmBatch(site.slurm, gpus=gpus)
    return KubernetesBatch(site.kubernetes, gpus=gpus)


def is_pods(key: str) -> bool:
    """Whether a variable of the worker's environment is for pods too: not its interfaces and folders."""
    return tunes(key) and key not in CACHES and not key.endswith("_IFNAME")


class KubernetesBatch:
    """Batch on the Kubernetes cluster of one site."""

    def __init__(self, site: Kubernetes, *, gpus: bool) -> None:
        self.site, self.gpus = site, gpus

    def check(self, root: str) -> None:
        """Raises ConfigError with Kubernetes' message when it would refuse a Job of one rank."""
        gang = BatchJob(id="check", name="check", root=root, nodes=1, ranks=1, threads=1)
        try:
            answer = self._ask("create", "--dry-run=server", "-f", "-", given=self._text(gang))
        except FileNotFoundError:
            way_out = "use the worker's image, or install kubectl"
            raise ConfigError("pool.launcher", "kubernetes, but there is no kubectl here", way_out) from None
        if answer.returncode:
            raise ConfigError("site.kubernetes", answer.stderr.strip(), "`kubectl describe` shows why")

    def show(self, gang: BatchJob) -> str:
        return yaml.safe_dump_all(self.manifests(gang), sort_keys=False)

    def submit(self, gang: BatchJob) -> str:
        """Create Service and Job; returns the Job's name. Raises ConfigError with Kubernetes' message on
        refusal.
        """
        answer = self._ask("create", "-f", "-", given=self._text(gang))
        if answer.returncode:
            raise ConfigError("site.kubernetes", answer.stderr.strip(), "`kubectl describe` shows why")
        return gang.id

    def status(self, job: str) -> JobStatus:
        answer = self._ask("get", "job", job, "--output=json", "--ignore-not-found")
        if answer.returncode:
            raise OSError(answer.stderr.strip())
        if not answer.stdout.strip():
            return JobStatus("over", f"Kubernetes no longer knows Job {job}", is_cancelled=True)
        status = json.loads(answer.stdout).get("status", {})
        ended = [one for one in status.get("conditions", []) if one.get("status") == "True"]
        for condition in ended:
            if condition["type"] in ("Complete", "Failed"):
                why = condition.get("message") or condition.get("reason") or ""
                text = f"Kubernetes Job {job} is {condition['type'].lower()}" + (f" ({why})" if why else "")
                return JobStatus("over", text)
        is_running = bool(status.get("ready"))
        return JobStatus("running" if is_running else "waiting", f"Kubernetes Job {job} has {_pods(status)}")

    def end(self, job: str) -> None:
        self._ask(
            "delete", "job,service", "--selector", f"{LABEL}={job}", "--wait=false", "--ignore-not-found"
        )

    def last_words(self, job: str) -> str:
        answer = self._ask("logs", "--selector", f"{LABEL}={job}", f"--tail={TAIL}", "--prefix")
        return answer.stdout.strip()

    def manifests(self, gang: BatchJob) -> list[dict[str, Json]]:
        """The Service by which the pods find each other, and the Job."""
        about = {"name": gang.id, "namespace": self.site.namespace, "labels": _labels(gang)}
        service: dict[str, Json] = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": about,
            # pods connect before they are ready
            "spec": {"clusterIP": "None", "selector": {LABEL: gang.id}, "publishNotReadyAddresses": True},
        }
        job: dict[str, Json] = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": about,
            "spec": {
                "completions": gang.nodes,
                "parallelism": gang.nodes,
                "completionMode": "Indexed",
                "backoffLimit": 0,  # no single pod restarts: the submitter resubmits the whole gang
                "ttlSecondsAfterFinished": KEEP_S,
                "template": {"metadata": {"labels": _labels(gang)}, "spec": self._pod(gang)},
            },
        }
        return [service, job]

    def _pod(self, gang: BatchJob) -> dict[str, Json]:
        site = self.site
        volumes: list[dict[str, Json]] = [
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": site.shared_memory}},
        ]
        mounts = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}]
        if site.claim:
            volumes.append({"name": "store", "persistentVolumeClaim": {"claimName": site.claim}})
            mounts.append({"name": "store", "mountPath": site.mount})
        spec: dict[str, Json] = {
            "restartPolicy": "Never",
            "subdomain": gang.id,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE_S,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": site.user,
                "runAsGroup": site.user,
                "fsGroup": site.user,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [self._container(gang, mounts)],
            "volumes": volumes,
        }
        if site.pull_secret:
            spec["imagePullSecrets"] = [{"name": site.pull_secret}]
        if site.nodes:
            spec["nodeSelector"] = dict(site.nodes)
        if site.tolerate:
            spec["tolerations"] = [{"key": key, "operator": "Exists"} for key in site.tolerate]
        if site.priority:
            spec["priorityClassName"] = site.priority
        return spec

    def _container(self, gang: BatchJob, mounts: list[dict[str, str]]) -> dict[str, Json]:
        site = self.site
        asked = {
            "cpu": _times(site.cpu, gang.ranks * gang.threads),
            "memory": _times(site.memory, gang.ranks),
        }
        if self.gpus:
            asked[site.gpu] = str(gang.ranks)
        given = {"HOME": "/tmp", SUBDOMAIN: gang.id}
        given |= {key: os.environ[key] for key in os.environ if key == NAMED or is_pods(key)}
        container: dict[str, Json] = {
            "name": "node",
            "image": site.image,
            "command": ["python", "-m", "atelier.infra.launch.node_agent", gang.root, gang.id],
            "env": [{"name": key, "value": value} for key, value in given.items()],
            "resources": {"requests": asked, "limits": asked},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": mounts,
        }
        if site.store_secret:
            container["envFrom"] = [{"secretRef": {"name": site.store_secret}}]
        return container

    def _text(self, gang: BatchJob) -> str:
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": self.manifests(gang)})

    def _ask(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        env = {key: os.environ[key] for key in ENVIRONMENT if key in os.environ}
        command = ["kubectl", "--namespace", self.site.namespace, *words]
        try:
            return subprocess.run(
                command, input=given, env=env, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"kubectl has not answered for {SECONDS} s") from None


def _labels(gang: BatchJob) -> dict[str, str]:
    return {"app.kubernetes.io/name": "atelier", LABEL: gang.id}


def _pods(status: Mapping[str, Json]) -> str:
    return f"{status.get('ready', 0)} of {status.get('active', 0)} pods ready"


def _times(quantity: str, count: int) -> str:
    """A Kubernetes quantity times `count`: `8Gi` times 2 is `16Gi`."""
    digits = quantity.rstrip("mkKMGTPiE")
    number, unit = float(digits) * count, quantity[len(digits) :]
    return f"{number:g}{unit}"
