"""The handler that Restate calls: it waits for an awakeable and returns its result.

`python -m benchmarks.restate_process PORT` serves the handler until it is ended.
"""

import asyncio
import sys
from importlib import import_module
from typing import Any


async def main(port: str) -> None:
    restate: Any = import_module("restate")
    asker = restate.Service("asker")

    async def ask(context: Any, question: dict[str, str]) -> Any:
        del question  # Restate's journal stores the question, like our store
        _, answer = context.awakeable()
        return await answer

    asker.handler()(ask)
    config = import_module("hypercorn.config").Config()
    config.bind, config.loglevel = [f"127.0.0.1:{port}"], "ERROR"
    await import_module("hypercorn.asyncio").serve(restate.app([asker]), config)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
