"""Prefect's background services, `python -m atelier.infra.stack.prefect_services`: what `prefect server
services start` runs, with a pulse. They answer no requests, so a file whose time goes on says that they live.
"""

import asyncio
from pathlib import Path

from prefect.cli._server_utils import _run_all_services

PULSE = Path("/tmp/pulse")
EVERY_S = 5.0


async def beat() -> None:
    """Touch the file for as long as the loop that runs the services gets on."""
    while True:
        PULSE.touch()
        await asyncio.sleep(EVERY_S)


async def main() -> None:
    async with asyncio.TaskGroup() as group:  # one that ends, ends the process: it is started again
        group.create_task(beat())
        group.create_task(_run_all_services())


if __name__ == "__main__":
    asyncio.run(main())
