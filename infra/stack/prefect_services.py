"""Prefect's background services with a heartbeat: `python -m atelier.infra.stack.prefect_services`, as
`prefect server services start`. They answer no requests, so a health check reads the heartbeat file's mtime.
"""

import asyncio
import sys
from pathlib import Path

from atelier.engine.config.tested import is_on

PULSE = Path("/tmp/pulse")
EVERY_S = 5.0


async def beat() -> None:
    """Touch the heartbeat file as long as the event loop that runs the services is responsive."""
    while True:
        PULSE.touch()
        await asyncio.sleep(EVERY_S)


async def serve() -> None:
    """Run the services until they end: in this process, or with Prefect's own command. Raises SystemExit if
    that ends.
    """
    if is_on("services"):
        from prefect.cli._server_utils import _run_all_services  # private: only in tested versions

        return await _run_all_services()
    command = (sys.executable, "-m", "prefect", "server", "services", "start")
    child = await asyncio.create_subprocess_exec(*command)
    raise SystemExit(await child.wait())


async def main() -> None:
    async with asyncio.TaskGroup() as group:  # if one ends, the process ends and is restarted
        group.create_task(beat())
        group.create_task(serve())


if __name__ == "__main__":
    asyncio.run(main())
