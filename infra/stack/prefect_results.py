"""Prevent Prefect's client from loading results. A run's state names a file with a pickle, and the modules to
read it; the client would load both, so anyone who can write states could execute code. Atelier stores no
results in Prefect.
"""

import logging
from typing import Never

from prefect._internal import result_records
from prefect.results import ResultStore

from atelier.engine.config.error import AtelierError, printable
from atelier.engine.config.tested import require


def refuse_results() -> None:
    """Patch Prefect: this process reads no result file and imports nothing that a state names. Prefect has no
    setting for this; test_own_server_is_closed.py detects when a version changes these names. Raises
    ConfigError on a version that was not tested.
    """
    require("results")

    def lookup(_: type, dispatch_key: object) -> Never:
        logging.getLogger(__name__).debug(
            "a state names a result with the serializer %s: it is ignored", printable(str(dispatch_key))
        )
        raise KeyError(dispatch_key)  # Prefect then keeps the state's data unread

    result_records.lookup_type = lookup  # type: ignore[reportPrivateImportUsage]

    def read(self: ResultStore, key: str, holder: str | None = None) -> Never:
        raise AtelierError(
            f"a state of this run names {printable(key)} as its result; result files hold pickles, which are"
            " never opened: the state was not written by Atelier"
        )

    async def aread(self: ResultStore, key: str, holder: str | None = None) -> Never:
        read(self, key)

    ResultStore.read, ResultStore.aread = read, aread  # type: ignore[method-assign]
