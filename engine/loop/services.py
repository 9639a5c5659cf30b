"""The process services that a training uses, and the checks before it begins."""

from collections.abc import Mapping
from dataclasses import dataclass

from atelier.engine.config.run_file import FILE_BYTES, Training
from atelier.engine.loop.build import BuildContext
from atelier.engine.loop.report import ProgressReport
from atelier.engine.loop.stop import StopRequest
from atelier.engine.plan.checks import check_layout, check_readers, check_teaching
from atelier.engine.plan.layout_checks import check_encoders
from atelier.engine.plan.role_checks import check_schedules


@dataclass(frozen=True)
class TrainingServices:
    """Services of a training: build context, outputs, progress reporter, stop request, peak FLOP/s of a
    rank.
    """

    build_context: BuildContext
    outputs: Mapping[str, str]
    report: ProgressReport
    stop: StopRequest
    peak_flops: float  # of one rank, per second; 0 = unknown
    began: float  # time.monotonic() at the start of this training
    file_bytes: int = FILE_BYTES  # largest weights file of a published model


def check_training(training: Training, services: TrainingServices) -> None:
    """Raise ConfigError if layout, models or objectives of a training do not work together."""
    roles = {name: member.role for name, member in training.members.items()}
    check_layout(services.build_context.layout, roles, training.train, pads=training.reads_labels)
    check_teaching(roles)
    check_schedules(
        {name: role for name, role in roles.items() if training.members[name].segments}, training.train
    )
    rows = [stream.rows for stream in training.streams if stream.rows is not None]
    check_readers(roles, rows, training.train.at(0).sequence)
    if not training.reads_labels:
        check_encoders(roles, rows)
