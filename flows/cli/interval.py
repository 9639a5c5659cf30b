"""How often a run saves a checkpoint where nobody said it."""

from typing import Any

from atelier.engine.plan.estimate import estimate
from atelier.engine.plan.goodput import steps_between
from atelier.engine.spec.divisors import largest_divisor
from atelier.engine.spec.error import ConfigError
from atelier.engine.spec.layout import check_layout
from atelier.engine.spec.parallel import Parallel
from atelier.engine.spec.pool import Pool
from atelier.engine.spec.train import Train
from atelier.flows.cli.layout import trained, vocab_of

LOOKS = 16  # held-out losses of a run, where neither their steps nor those of checkpoints are given
WITHOUT_MODEL = 100  # steps, where what is trained is known only later


def with_interval(arguments: Any, pool: Pool) -> Train:
    """The training's settings with checkpoint_every filled in from the planned step and the failures of the
    pool's devices. Held-out losses, which would come with checkpoints, come at steps that no machine decides.
    """
    train: Train = arguments.train
    looks = train.eval_every or max(1, train.num_steps // LOOKS)
    every = _planned(arguments, train, pool)
    if train.keep_every:
        every = largest_divisor(train.keep_every, every)
    if train.keep_best:
        every = max(1, every // looks) * looks
    return train.model_copy(update={"checkpoint_every": every, "eval_every": looks})


def _planned(arguments: Any, train: Train, pool: Pool) -> int:
    vocab, roles = vocab_of(arguments), trained(arguments)
    if not vocab or not roles:
        return WITHOUT_MODEL
    parallel: Parallel = arguments.parallel
    try:
        check_layout(parallel, roles, train, prefix="")  # an estimate looks at every rank of a pipeline
        found = [
            estimate(role, train, parallel.of_role(name, is_student=bool(role.teacher)), pool, vocab, steps=1)
            for name, role in roles.items()
        ]
    except ConfigError:  # a layout or a device that whoever draws the plan refuses
        return WITHOUT_MODEL
    slowest = max(found, key=lambda one: one.step_s)
    return steps_between(slowest.faults, sum(one.step_s for one in found), train.num_steps)
