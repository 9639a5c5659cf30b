"""The batch system that a pool's gangs are started by."""

from atelier.engine.spec.pool import Pool
from atelier.engine.spec.site import Site
from atelier.infra.away import Batch
from atelier.infra.kubernetes import KubernetesBatch
from atelier.infra.slurm import SlurmBatch


def batch_of(pool: Pool, site: Site) -> Batch:
    gpus = not pool.is_cpu
    if pool.launcher == "slurm":
        return SlurmBatch(site.slurm, gpus=gpus)
    return KubernetesBatch(site.kubernetes, gpus=gpus)
