"""Collective calls that succeed or fail on all ranks together: work on every rank, one decision on rank 0,
one outcome.
"""

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

import torch.distributed as dist

from atelier.engine.config.error import ConfigError, DamageError, DataError

Work = TypeVar("Work")
Answer = TypeVar("Answer")
Item = TypeVar("Item")


class RankGroup(Protocol):
    """The processes that save or load together."""

    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def group(self) -> dist.ProcessGroup | None:
        """A gloo process group with no other traffic while a save is under way; None if world is 1."""


@dataclass(frozen=True)
class SingleRank:
    """A single process without a gang: a tool, or training on one device."""

    rank: int = 0
    world: int = 1
    group: None = None


@dataclass(frozen=True)
class _Failure:
    """An error as plain values, because exceptions of other libraries may not survive pickling."""

    kind: str
    arguments: tuple[str | int | None, ...]

    def error(self) -> Exception:
        return _KINDS[self.kind](*self.arguments)


_KINDS: dict[str, Callable[..., Exception]] = {
    "ConfigError": ConfigError,
    "DamageError": DamageError,
    "DataError": DataError,
    "OSError": OSError,
    "RuntimeError": RuntimeError,
}


def _failure(error: Exception, rank: int) -> _Failure:
    if isinstance(error, ConfigError):
        return _Failure("ConfigError", (error.place, str(error).removeprefix(f"{error.place}: ")))
    if isinstance(error, DamageError | DataError):
        return _Failure(type(error).__name__, (str(error),))
    if isinstance(error, OSError) and error.errno is not None:
        return _Failure("OSError", (error.errno, error.strerror, error.filename))
    return _Failure("RuntimeError", (f"rank {rank}: {type(error).__name__}: {error}",))


def all_or_none(
    gang: RankGroup, work: Callable[[], Work], decide: Callable[[list[Work]], list[Answer]]
) -> Answer:
    """Run `work` on every rank, then `decide` on rank 0 over all results in rank order; return this rank's
    answer.

    An error in any `work` or in `decide` is raised on every rank; the rank where it happened gets the
    original exception.
    """
    mine: Work | _Failure
    own: Exception | None = None
    try:
        mine = work()
    except Exception as error:  # raised again below, on every rank
        own, mine = error, _failure(error, gang.rank)
    found = _gather(gang, mine)
    answers: list[Answer | _Failure] | None = None
    if found is not None:
        failures = [item for item in found if isinstance(item, _Failure)]
        try:
            answers = [*(failures[:1] * gang.world or decide(cast(list[Work], found)))]
        except Exception as error:
            own, answers = error, [*[_failure(error, gang.rank)] * gang.world]
    answer = _scatter(gang, answers)
    if own is not None:
        raise own
    if isinstance(answer, _Failure):
        raise answer.error()
    return answer


def nothing(found: Sized) -> list[None]:
    """A `decide` that only checks that all ranks succeeded."""
    return [None] * len(found)


def check_gang(gang: RankGroup) -> None:
    """Raise ConfigError for a gang of several ranks without a process group."""
    if gang.world > 1 and gang.group is None:
        raise ConfigError(
            "gang.group", f"is None in a gang of {gang.world} ranks", "give a gloo process group"
        )


def _gather(gang: RankGroup, item: Item) -> list[Item] | None:
    if gang.world == 1:
        return [item]
    found = [None] * gang.world if gang.rank == 0 else None
    dist.gather_object(item, found, group=gang.group, group_dst=0)
    return cast(list[Item] | None, found)  # filled in by the call


def _scatter(gang: RankGroup, answers: list[Item] | None) -> Item:
    if gang.world == 1:
        return cast(list[Item], answers)[0]
    mine: list[Item | None] = [None]
    dist.scatter_object_list(mine, answers, group=gang.group, group_src=0)
    return cast(Item, mine[0])
