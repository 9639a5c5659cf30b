"""Prefect's client loads the result of a run from the file that the run's state names, and the file holds a
pickle: whoever may write states could have code run. Atelier keeps no results with Prefect, so none is read.
The state also names the modules that would read it, and the client imports these when it parses the state.
"""

import logging
from typing import Never

from prefect._internal import result_records
from prefect.results import ResultStore

from atelier.engine.config.error import AtelierError, printable


def refuse_results() -> None:
    """Patch Prefect: this process reads no result file and imports nothing that a state names. Prefect has no
    setting for either; test_own_server_is_closed.py notices when a version changes these names.
    """

    def lookup(_: type, dispatch_key: object) -> Never:
        logging.getLogger(__name__).debug(
            "a state names a result with the serializer %s: it is left alone", printable(str(dispatch_key))
        )
        raise KeyError(dispatch_key)  # Prefect then keeps what the state says unread

    result_records.lookup_type = lookup  # type: ignore[reportPrivateImportUsage]

    def read(self: ResultStore, key: str, holder: str | None = None) -> Never:
        raise AtelierError(
            f"a state of this run names {printable(key)} as its result; result files hold pickles, which are"
            " never opened: somebody else has written that state"
        )

    async def aread(self: ResultStore, key: str, holder: str | None = None) -> Never:
        read(self, key)

    ResultStore.read, ResultStore.aread = read, aread  # type: ignore[method-assign]
