"""Whether a training that was begun may go on with the code as it is now: two codes in one training would be
the result of neither.
"""

from dataclasses import dataclass

from atelier.engine.spec.base import Spec
from atelier.engine.spec.record import Record
from atelier.engine.spec.trajectory import Part
from atelier.infra.code import engine_digest
from atelier.infra.code_map import Map, changed, digest_of, files_of
from atelier.infra.store import Store
from atelier.infra.trajectory import code_at, read_code, standing

MOST = 6  # changed files that are named


class Resume(Spec):
    """What becomes of trainings that were begun by other code: go on with this one, or begin again (by the
    names of their tasks).
    """

    accept_code: bool = False
    fresh: tuple[str, ...] = ()


@dataclass(frozen=True)
class OtherCode:
    """A training that was begun by other code than there is now."""

    node: str
    role: str
    step: int
    changes: tuple[str, ...]  # files, with the functions that differ; none = its code is not known

    def __str__(self) -> str:
        more = f" and {len(self.changes) - MOST} more" if len(self.changes) > MOST else ""
        what = f"changed since: {', '.join(self.changes[:MOST])}{more}"
        if not self.changes:
            what = "it does not say by which"
        return (
            f"{self.node}: the training of {self.role} stands at step {self.step} of other code ({what});"
            f" --accept-code goes on with the code as it is now, --fresh {self.node} begins it again"
        )


def other_code(
    node: str, role: str, parts: list[Part], code: Map, store: Store, finished: Record | None
) -> OtherCode | None:
    """Why the training of `role` may not go on, or be replayed once it is `finished`; None when it may.

    It is judged by the newest checkpoint that can be read, which a training would go on from.
    """
    if finished is not None and (made := finished.provenance.get("code")):
        differing = changed(made, files_of(code)) if isinstance(made, dict) else []
        return OtherCode(node, role, parts[-1].end, tuple(differing)) if differing else None
    for step in sorted(standing(store, parts).steps, reverse=True):
        if step <= parts[0].start:
            break  # initial weights: nothing is computed yet
        part = next(part for part in parts if part.start < step <= part.end)
        address = store.address("trajectory", part.fingerprint)
        digest = code_at(address, step)
        if digest is None:
            continue
        if digest == digest_of(code):
            break
        return OtherCode(node, role, step, tuple(changed(read_code(address, digest), code)) if digest else ())
    return None


def made_by_other(record: Record, code: Map | None) -> str:
    """What has changed in the code since `record` was made, in words; '' when nothing that it depends on."""
    made = record.provenance.get("code")
    if code is None:
        return ""
    if not isinstance(made, dict):  # made before records said more than a digest of the whole engine
        engine = record.provenance.get("engine", engine_digest())
        return "" if engine == engine_digest() else "the engine's sources have changed"
    differing = changed(made, files_of(code))
    more = f" and {len(differing) - MOST} more" if len(differing) > MOST else ""
    return f"changed code: {', '.join(differing[:MOST])}{more}" if differing else ""
