"""Prefect's client loads the result of a run from the file that the run's state names, and the file holds a
pickle: whoever may write states could have code run. Atelier keeps no results with Prefect, so none is read.
"""

from typing import Never

from prefect.results import ResultStore

from atelier.engine.config.error import AtelierError, printable


def refuse_results() -> None:
    """Patch Prefect: this process reads no result file."""

    def read(self: ResultStore, key: str, holder: str | None = None) -> Never:
        raise AtelierError(
            f"a state of this run names {printable(key)} as its result; result files hold pickles, which are"
            " never opened: somebody else has written that state"
        )

    async def aread(self: ResultStore, key: str, holder: str | None = None) -> Never:
        read(self, key)

    ResultStore.read, ResultStore.aread = read, aread  # type: ignore[method-assign]
