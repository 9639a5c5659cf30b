"""Parameters of a run of `work` on a pool, as Prefect's page shows them."""

from pydantic import Field

from atelier.engine.config.base import Json, Spec
from atelier.engine.config.pool import Pool
from atelier.infra.dag import Node
from atelier.infra.launch.rendezvous import NodePlace
from atelier.infra.run.resume_plan import Resume
from atelier.infra.tracking.factory import TrackerSpec


class ParentRun(Spec):
    """The parent run of the node."""

    id: str
    flow: str
    command: str
    pool: Pool
    tracker: TrackerSpec
    links: dict[str, str] = Field(description="pages about the run, by name")
    resume: Resume = Resume()


class TaskRequest(Spec):
    """A node to run."""

    node: Node
    run: ParentRun
    code: str = Field(default="", description="digest of the frozen code to run; empty = the installed code")
    gang: NodePlace | None = Field(default=None, description="index of this node, if there are several")

    def parameters(self) -> dict[str, Json]:
        """The request as parameters of a flow run."""
        return self.model_dump(mode="json", exclude=None if self.gang else {"gang"})
