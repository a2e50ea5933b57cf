"""DBOS in its own process: workflows that wait for a message, and senders of the message.

The process prints "ready". Then, for each line on stdin, it runs the workflows and prints how many
completed per second.
"""

import asyncio
import json
import sys
from importlib import import_module
from typing import Any

from benchmarks.settling import rate

_WAIT_SECONDS = 300


async def main(url: str, times: int) -> None:
    library: Any = import_module("dbos")
    address = url.replace("postgresql://", "postgresql+psycopg://", 1)
    dbos = library.DBOS
    dbos(
        config={
            "name": "figures",
            "system_database_url": address,
            "log_level": "ERROR",
            "run_admin_server": False,
        }
    )

    async def ask() -> Any:
        return await dbos.recv_async("answer", timeout_seconds=_WAIT_SECONDS)

    asked = dbos.workflow()(ask)
    dbos.launch()

    async def one() -> None:
        handle = await dbos.start_workflow_async(asked)
        await dbos.send_async(handle.get_workflow_id(), {"paid": True}, topic="answer")
        assert await handle.get_result() == {"paid": True}

    await rate(one, times)
    print(json.dumps("ready"), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await rate(one, times)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
