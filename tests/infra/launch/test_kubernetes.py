"""Requests to Kubernetes, against its own schema."""

from typing import Any

import kubernetes_validate
import pytest
import yaml

from atelier.engine.config.site import Kubernetes
from atelier.flows.run.pools import pool_of, served_pools, site_of
from atelier.infra.launch.batch_job import BatchJob
from atelier.infra.launch.batch_systems import KubernetesBatch
from tests.checkout import TOP

VERSION = "1.37"
PLAIN = Kubernetes()
FULL = Kubernetes(
    claim="store",
    store_secret="s3",
    pull_secret="pull",
    nodes={"zone": "a"},
    tolerate=("gpu",),
    priority="low",
)


def gang(nodes: int = 2, ranks: int = 8) -> BatchJob:
    return BatchJob(id="away-1f", name="train", root="/store", nodes=nodes, ranks=ranks, threads=2)


def check(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, VERSION, strict=True)


@pytest.mark.parametrize("site", [PLAIN, FULL], ids=["plain", "full"])
@pytest.mark.parametrize("gpus", [True, False])
def test_a_gangs_manifests_are_valid(site: Kubernetes, gpus: bool) -> None:
    for manifest in KubernetesBatch(site, gpus=gpus).manifests(gang()):
        check(manifest)


def test_what_conf_asks_for_is_valid_and_what_an_administrator_is_shown() -> None:
    pool = pool_of("kubernetes")
    batch = KubernetesBatch(site_of(pool).kubernetes, gpus=not pool.is_cpu)
    shown = list(yaml.safe_load_all(batch.show(gang())))
    assert shown == batch.manifests(gang()) and [one["kind"] for one in shown] == ["Service", "Job"]
    for manifest in shown:
        check(manifest)


def test_the_manifests_of_the_workers_are_valid() -> None:
    text = (TOP / "infra" / "k8s" / "atelier.yaml").read_text()
    manifests = list(yaml.safe_load_all(text))
    assert len(manifests) == 8
    pods = [one["spec"]["template"]["spec"] for one in manifests if one["kind"] == "Deployment"]
    commands = [container["command"] for pod in pods for container in pod["containers"]]
    assert {command[-1] for command in commands} <= served_pools().keys() | {"kubernetes"}
    for manifest in manifests:
        check(manifest)


def test_a_typo_is_caught() -> None:
    _, job = KubernetesBatch(PLAIN, gpus=True).manifests(gang())
    job["spec"]["completion"] = job["spec"].pop("completions")
    with pytest.raises(kubernetes_validate.ValidationError):
        check(job)


def test_pods_get_variables_that_tune_ranks_but_not_those_of_the_workers_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "TRITON_CACHE_DIR", "NCCL_NET_PLUGIN", "AWS_PROFILE"):
        monkeypatch.setenv(name, "x")
    _, job = KubernetesBatch(PLAIN, gpus=True).manifests(gang())
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert {each["name"] for each in container["env"] if each["value"] == "x"} == {"NCCL_DEBUG"}


def test_every_node_has_one_pod_with_all_that_its_ranks_need_and_nothing_that_is_not_theirs() -> None:
    service, job = KubernetesBatch(FULL, gpus=True).manifests(gang(nodes=3, ranks=4))
    spec = job["spec"]
    assert spec["completions"] == spec["parallelism"] == 3 and spec["completionMode"] == "Indexed"
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    limits = container["resources"]["limits"]
    assert limits == {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "4"}
    assert pod["subdomain"] == service["metadata"]["name"] and not pod["automountServiceAccountToken"]
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert container["securityContext"]["readOnlyRootFilesystem"] and pod["securityContext"]["runAsNonRoot"]
