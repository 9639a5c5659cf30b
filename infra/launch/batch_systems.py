"""Choose the batch system that runs a pool's gangs."""

from atelier.engine.config.pool import Pool
from atelier.engine.config.site import Site
from atelier.infra.launch.batch_job import Batch
from atelier.infra.launch.kubernetes import KubernetesBatch
from atelier.infra.launch.slurm import SlurmBatch


def batch_of(pool: Pool, site: Site) -> Batch:
    gpus = not pool.is_cpu
    if pool.launcher == "slurm":
        return SlurmBatch(site.slurm, gpus=gpus)
    return KubernetesBatch(site.kubernetes, gpus=gpus)
