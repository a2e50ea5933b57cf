"""Workers that restart while calls of every kind are in flight: no call is lost."""

import json
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tests.outside.in_flight import (
    FEW,
    MANY,
    SETTINGS,
    TOOLS,
    Served,
    cases_of,
    in_flight,
    is_paid_once,
)
from tests.support.cli import output_until, run, serving
from tests.support.mcp_server import new_browser

FINDING = "a rolling restart"


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "rolling_tools.py").write_text(TOOLS)
        async with (
            serving(
                *("rolling_tools:mcp", "--workers", "2", "--sandbox"), home=home, extra=SETTINGS
            ) as server,
            new_browser() as browser,
        ):

            async def restart() -> None:
                server.process.send_signal(signal.SIGHUP)
                await output_until("all workers have been replaced", server.process)

            sandbox = (await browser.get(f"{server.url}/health")).json()["sandbox"]
            served = Served(url=server.url, sandbox=sandbox, browser=browser)
            texts = await in_flight(served, restart, number=MANY if times > 1 else FEW)
        for case in cases_of(texts, home=home):
            yield case
        payments = json.loads((await run("payments", "list", "--json", home=home)).out)
        yield "each payment is made and used once", is_paid_once(texts, payments)
