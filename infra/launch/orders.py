"""Orders of a gang: files for its supervisor (guard.json, with run.json beside it), and a letter for the
nodes of a batch job.
"""

import json
from pathlib import Path

from pydantic import Field

from atelier import IMPORT_ROOT
from atelier.engine.config.base import Json, Spec
from atelier.engine.config.record import Record
from atelier.engine.config.run_file import RunFile


class GangOutput(Spec):
    """An output that a supervisor publishes."""

    payload: str = Field(description="URL of the folder for its files, written by the ranks")
    draft: Record = Field(description="its record, to which the supervisor adds files, summary and times")


class Guard(Spec):
    """guard.json: orders of a supervisor, beside the run file of its ranks."""

    name: str
    module: str = Field(description="Python module that each rank runs")
    root: str = Field(description="root of the store")
    ranks: int = Field(default=1, description="number of ranks on this machine")
    threads: int = 1
    leases: dict[str, int] = Field(default={}, description="address -> fence of the lease to take over")
    outputs: dict[str, GangOutput] = {}
    env: dict[str, str] = {}
    grace_s: float = 10.0
    first_rank: int = 0
    world: int = Field(default=0, description="ranks of the whole gang if it has several nodes, else 0")
    reads: tuple[str, ...] = Field(
        default=(), description="kinds of store that its ranks read, beside its own: hf, s3"
    )
    held: tuple[int, ...] = Field(default=(), description="descriptors that hold its slots while it lives")
    scratch: Path
    cwd: str = str(IMPORT_ROOT)


class Orders(Guard):
    """A gang to start on this machine."""

    run: RunFile

    def write(self) -> Path:
        """Write both files for the supervisor; returns the path of guard.json."""
        (self.scratch / "run.json").write_text(self.run.text())
        guard = self.scratch / "guard.json"
        document = self.model_dump(mode="json", by_alias=True, exclude={"run"})
        guard.write_text(json.dumps(document, indent=1))
        return guard


class GangLetter(Spec):
    """A gang's orders for the nodes of a batch job, in the store, without values of one machine."""

    name: str
    module: str
    run: RunFile = Field(description="run file without a scratch folder; each node has its own")
    root: str
    ranks: int = Field(description="ranks of the whole gang")
    threads: int
    leases: dict[str, int]
    outputs: dict[str, GangOutput]
    grace_s: float
    nodes: int
    code: str = Field(description="digest of the frozen code that the nodes run")

    @staticmethod
    def of(orders: Orders, nodes: int, code: str) -> "GangLetter":
        return GangLetter(
            name=orders.name,
            module=orders.module,
            run=orders.run.model_copy(update={"scratch": ""}),
            root=orders.root,
            ranks=orders.ranks,
            threads=orders.threads,
            leases=orders.leases,
            outputs=orders.outputs,
            grace_s=orders.grace_s,
            nodes=nodes,
            code=code,
        )

    def document(self) -> dict[str, Json]:
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)
