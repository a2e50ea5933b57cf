"""The HTTP API in its own process, on SQLite with `synchronous=FULL`.

`python -m benchmarks.api_process KEYS` prints its address and this many new API keys as JSON, and
serves until its standard input ends.
"""

import asyncio
import json
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from benchmarks.in_process import utc_now
from benchmarks.served import listening, settings_here, until_stdin_ends
from webapp.app import create_app
from webapp.connecting import connect
from webapp.identity.api_keys import KeyScope
from webapp.serving.http_server import loop_factory


async def serve(keys: int) -> None:
    with tempfile.TemporaryDirectory() as folder, listening() as listener:
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        settings = settings_here(base, Path(folder))
        async with connect(settings) as service:
            made = [
                await service.identity.api_keys.new(
                    program="shop",
                    scopes=[KeyScope.ASK],
                    expires_at=utc_now() + timedelta(days=1),
                )
                for _ in range(keys)
            ]
        print(json.dumps([text for text, _ in made]), flush=True)
        await until_stdin_ends(create_app(settings, name="shop", who=lambda _: None), listener)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(int(sys.argv[1])))
