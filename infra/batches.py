"""The batch system that a pool's gangs are started by."""

from engine.spec.pool import Pool
from engine.spec.site import Site
from infra.away import Batch
from infra.kubernetes import KubernetesBatch
from infra.slurm import SlurmBatch


def batch_of(pool: Pool, site: Site) -> Batch:
    gpus = not pool.is_cpu
    if pool.launcher == "slurm":
        return SlurmBatch(site.slurm, gpus=gpus)
    return KubernetesBatch(site.kubernetes, gpus=gpus)
