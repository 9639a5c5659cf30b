"""examine_checkpoint: ask a checkpoint of a training the questions of evaluation sets. It only reads files of
the trajectory, and needs neither its lease nor a finished model.
"""

from collections.abc import Mapping

from atelier.engine.config.exam import CheckpointAddress, Examine, ExamineConfig
from atelier.infra.code.code_map import model_kinds
from atelier.infra.dag import Node, Reference, declare, input_of
from atelier.infra.store.checkpoints import Checkpoint
from atelier.tasks import examine


def examine_checkpoint(
    checkpoint: Checkpoint, sets: Mapping[str, Reference], settings: Examine
) -> dict[str, Reference]:
    """The checkpoint's exam on each set, by the set's key. Each rank has one thread."""
    asked = CheckpointAddress(
        url=checkpoint.url,
        trajectory=checkpoint.trajectory,
        step=checkpoint.step,
        model=checkpoint.model.arguments(),
    )
    name = f"{checkpoint.name} step {checkpoint.step}"
    node = Node(
        name=f"examine.{checkpoint.name}.{checkpoint.trajectory[:8]}.{checkpoint.step}",
        task="examine_checkpoint",
        products=examine.exams(
            name,
            {"trajectory": checkpoint.trajectory},
            sets,
            settings,
            model_kinds(checkpoint.model),
            step=checkpoint.step,
        ),
        inputs={"tokenizer": input_of(checkpoint.tokenizer)}
        | {f"set.{key}": input_of(each) for key, each in sets.items()},
        config=ExamineConfig(
            examine=settings, checkpoint=asked, trained=checkpoint.sequence or None
        ).model_dump(mode="json"),
        layout=settings.parallel(threads=1).model_dump(mode="json"),
        ranks=settings.ranks,
    )
    return declare(node, [checkpoint.tokenizer, *sets.values()])


run = examine.run  # damage to a file of the checkpoint raises DamageError
