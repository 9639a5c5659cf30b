"""Publish a finished role as a model artifact: rank 0 gathers and writes its weights one at a time."""

from collections.abc import Mapping
from pathlib import Path

from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError
from atelier.engine.config.objective.chat import Chat
from atelier.engine.config.record import FileEntry
from atelier.engine.config.text_blocks import TextBlocks
from atelier.engine.data.vocabulary import CHAT_TEMPLATE, copy_carried, copy_tokenizer
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.storage import hashed
from atelier.engine.io.weight_files import weights_digest
from atelier.engine.loop.gather import live_weights
from atelier.engine.loop.role_state import RoleState
from atelier.engine.model.auxiliary import is_auxiliary
from atelier.engine.model.load import write_model
from atelier.engine.model.lora import merged, write_adapter
from atelier.engine.model.soft_prompt import write_prompt
from atelier.engine.model.weights import Sink


def write_files(member: RoleState, sink: Sink | None, *, most: int) -> None:
    """Pass the files of the current model to `sink` on rank 0, one weight at a time; equal weights give equal
    bytes. `most`: largest weights file in bytes. A collective.
    """
    live = live_weights(member)
    own = {name: weight for name, weight in live.items() if not is_auxiliary(name)}
    trainable = member.role.trainable
    write_model(merged(own, trainable), member.role.model, sink, most=most)
    if trainable.kind == "lora":
        write_adapter(own, trainable, sink, base=member.role.init)
    if trainable.kind == "prompt" and isinstance(member.role.model, TextBlocks):
        write_prompt(own, member.role.model, sink, base=member.role.init)


def check_digest(member: RoleState, *, most: int) -> None:
    """Check that a replayed teacher ended with the weights of the model that it replays, because its
    students' fingerprints name that model. Writes nothing.

    Raises AtelierError if it did not. A collective.
    """
    entries: list[FileEntry] = []
    write_files(
        member,
        (lambda name, parts: entries.append(hashed(name, parts))) if member.gang.is_first else None,
        most=most,
    )
    found = member.gang.from_first(weights_digest(entries, member.name) if entries else "")
    if found != member.spec.digest:
        raise AtelierError(
            f"roles.{member.name}: the replayed teacher ended as {found[:16]}, the finished model is"
            f" {member.spec.digest[:16]}; nothing is published. Replay with the layout in the model's"
            " record, including those parallel.* keys that its summary has (a log of speeds), or use"
            " roles.<student>.attach=frozen"
        )


def publish(
    member: RoleState,
    url: str,
    *,
    inputs: Mapping[str, ArtifactInput],
    scratch: Path,
    most: int,
    rows: Mapping[str, Json],
) -> None:
    """Write the model's files and body.json to `url`. `rows`: its summary's entries on data. A collective."""
    output = ArtifactOutput(url)
    write_files(member, output.add_parts if member.gang.is_first else None, most=most)
    if not member.gang.is_first:
        return
    if "tokenizer" in inputs:
        copy_tokenizer(inputs["tokenizer"], output, scratch)
        if base := inputs.get(member.spec.init):  # it understands the base's chat templates
            copy_carried(base, output, scratch, without=_add_template(inputs, output, scratch))
    about = {**summary(member), **rows}
    for attached in member.attached.values():
        for name, content in attached.files().items():
            output.add_bytes(name, content)
    if f"frozen.{member.role.teacher}" in inputs:  # which took no steps meanwhile
        about.pop("teacher_steps", None)
    output.close(about)


def _add_template(inputs: Mapping[str, ArtifactInput], output: ArtifactOutput, scratch: Path) -> str:
    """Add the chat template used for conversations if it is not the model's own; returns its name."""
    for name, source in inputs.items():
        if name.startswith(f"{Chat.source}.") and CHAT_TEMPLATE in source.names():
            output.add(CHAT_TEMPLATE, source.file(CHAT_TEMPLATE, scratch))
            return CHAT_TEMPLATE
    return ""


def summary(member: RoleState) -> dict[str, Json]:
    """The model's summary for its record. Steps are the clock's: at step s a student learned from the
    teacher's weights after s steps.
    """
    result: dict[str, Json] = {
        "step": member.step,
        "tokens": member.tokens_of_all,
        "loss": member.last.get("loss"),
        "eval_loss": member.last.get("eval/loss"),
        "held_out": member.held_out,
        "started_at": member.start,
        "params": member.role.model.num_params(),
        "forwards": member.forwards,
        **member.computed_by.summary,
    }
    if member.lead is not None:
        opened = member.lead.opened
        result["gate_step"] = opened if opened >= 0 else None
        steps = [opened - member.role.delay, member.role.taught(member.end)[-1]]
        result["teacher_steps"] = steps if 0 <= opened < member.end else []
        result["teacher_forwards"] = member.teacher_forwards
        result["left_at"] = member.end
        result["period"] = member.role.period
    if member.begins_with_states:
        result["began_with_states"] = True  # of its start model's optimiser
    for attached in member.attached.values():
        result |= attached.summary(member.end - member.start)
    return result | member.health.summary()
