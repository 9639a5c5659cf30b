"""A finished role as a model artifact: whole weights gathered from all ranks, files written by rank 0."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from atelier.engine.config.error import AtelierError
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.loop.role_state import RoleState
from atelier.engine.model.auxiliary import is_auxiliary
from atelier.engine.model.load import WEIGHTS, model_files
from atelier.engine.model.lora import adapter_files, merged_state
from atelier.engine.model.placement import whole

TOKENIZER = "tokenizer.json"


def finished_files(member: RoleState) -> dict[str, bytes]:
    """The files of the model as it is now, on rank 0, {} elsewhere; the same bytes for the same weights. A
    collective.
    """
    state = _whole_state(member)
    if not member.gang.is_first:
        return {}
    own = {name: weight for name, weight in state.items() if not is_auxiliary(name)}
    return model_files(merged_state(own, member.role.trainable), member.role.model) | _adapter(member, own)


def _whole_state(member: RoleState) -> dict[str, Tensor]:
    """All weights, unsharded, on rank 0's CPU: every stage gathers its own and its first rank sends them."""
    grid, gang = member.grid, member.gang
    mine = {name: whole(weight.detach()) for name, weight in member.weights.stored().items()}
    mine = {name: weight.cpu() for name, weight in mine.items() if gang.rank % grid.axes.ranks == 0}
    for place in range(1, grid.pipeline):
        leader = place * grid.axes.ranks
        about: list[Any] = [[(name, list(w.shape), w.dtype) for name, w in mine.items()]]
        dist.broadcast_object_list(about, src=leader, group=gang.aside.group)
        for name, shape, dtype in about[0]:
            if gang.rank == leader:
                dist.send(mine[name].contiguous(), dst=0, group=gang.aside.group)
            elif gang.is_first:
                received = torch.empty(shape, dtype=dtype)
                dist.recv(received, src=leader, group=gang.aside.group)
                mine.setdefault(name, received)
    return mine if gang.is_first else {}


def _adapter(member: RoleState, state: dict[str, Tensor]) -> dict[str, bytes]:
    """The LoRA weights alone, if the role was trained with LoRA."""
    if member.role.trainable.kind != "lora":
        return {}
    return adapter_files(state, member.role.trainable, base=member.role.init)


def check_digest(member: RoleState) -> None:
    """Check that a replayed teacher ended with the weights of the model it replays: its students'
    fingerprints name that model.

    Raises AtelierError when it did not. A collective.
    """
    data = finished_files(member).get(WEIGHTS, b"")
    found = member.gang.from_first(hashlib.sha256(data).hexdigest())
    if found != member.spec.digest:
        raise AtelierError(
            f"roles.{member.name}: the replayed teacher ended as {found[:16]}, the finished model is "
            f"{member.spec.digest[:16]}; nothing is published. Replay in the layout of the model's record, "
            f"or use roles.<student>.attach=frozen"
        )


def publish(member: RoleState, url: str, *, inputs: Mapping[str, ArtifactInput], scratch: Path) -> None:
    """Write the model's files and body.json to `url`. A collective."""
    files = finished_files(member)
    if not member.gang.is_first:
        return
    output = ArtifactOutput(url)
    for name, data in files.items():
        output.add_bytes(name, data)
    if "tokenizer" in inputs:
        output.add(TOKENIZER, inputs["tokenizer"].file(TOKENIZER, scratch))
    output.close(summary(member))


def summary(member: RoleState) -> dict[str, Any]:
    """The model's summary for its record. Steps are the clock's: at step s a student learned from the
    teacher's weights after s steps.
    """
    result: dict[str, Any] = {
        "step": member.step,
        "tokens": member.tokens,
        "loss": member.last.get("loss"),
        "eval_loss": member.last.get("eval/loss"),
        "held_out": member.held_out,
        "started_at": member.start,
        "params": member.role.model.num_params(),
        "forwards": member.forwards,
        "computed": member.computed,
    }
    if len(member.codes) > 1:
        result["codes"] = list(member.codes)  # resumed with other code, by --accept-code
    if member.gate is not None:
        opened = member.gate.opened
        result["gate_step"] = opened if opened >= 0 else None
        result["teacher_steps"] = [opened, member.end - 1] if 0 <= opened < member.end else []
        result["teacher_forwards"] = member.teacher_forwards
        result["left_at"] = member.end
        result["period"] = member.role.period
    return result | member.health.summary()
