"""A deploy whose client gives up at five moments and calls again: each step runs once.

DEPLOY_SECONDS sets the duration of the deploy. In the test suite it is one second.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client

from flows import Completion, complete_elicitation
from tests.crash.shop_env import no_certificates
from tests.support.cli import environment_of, serving
from tests.support.mcp_server import LIBRARIES
from webapp.connecting import connect
from webapp.settings.settings import read_settings

FINDING = "R14"
REVISIONS = {"2025-11-25": "legacy", "2026-07-28": "2026-07-28"}
MOMENTS = ("answered", "building", "between", "releasing", "after")
STEPS = ("building", "built", "releasing", "released")
CALLS_AT_MOST = 20
PATIENCE_SECONDS = 900.0


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    seconds = os.environ.get("DEPLOY_SECONDS", "1")
    for library in LIBRARIES:
        with TemporaryDirectory() as folder:
            home, payment_env = Path(folder), Path(folder, "till")
            extra = {"TILL": str(payment_env), "DEPLOY_SECONDS": seconds}
            name = f"tests.outside.shop:{library}"
            settings = read_settings(environment_of(home, extra))
            async with (
                serving(name, home=home, extra=extra) as here,
                connect(settings),
                asyncio.TaskGroup() as group,
            ):
                tried = {
                    (revision, moment, number): group.create_task(
                        _is_deployed_once(
                            f"{here.url}/mcp",
                            payment_env,
                            f"{mode}-{moment}-{number}",
                            moment,
                            mode=mode,
                        )
                    )
                    for number in range(times)
                    for revision, mode in REVISIONS.items()
                    for moment in MOMENTS
                }
            for (revision, moment, _), trying in tried.items():
                yield f"given up {moment}, called again ({library}, {revision})", trying.result()


async def _is_deployed_once(
    url: str, payment_env: Path, what: str, moment: str, *, mode: str
) -> bool:
    async with _client(url, mode) as client, asyncio.timeout(PATIENCE_SECONDS):
        given_up = asyncio.create_task(client.call_tool("deploy", {"what": what}))
        while await complete_elicitation(what) is Completion.UNKNOWN:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
        while f"{what} {moment}" not in _lines(payment_env):  # noqa: ASYNC110 - so is this
            await asyncio.sleep(0.05)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
    async with _client(url, mode) as client, asyncio.timeout(PATIENCE_SECONDS):
        text = ""
        # While the given-up call's work continues, a new call only receives "call again".
        for _ in range(CALLS_AT_MOST):
            result = await client.call_tool("deploy", {"what": what})
            text = next(part.text for part in result.content if isinstance(part, types.TextContent))
            if not (result.is_error or text.startswith("Another call")):
                break
    lines = _lines(payment_env)
    is_once = all(lines.count(f"{what} {step}") == 1 for step in STEPS)
    return is_once and text.startswith(f"{what} ['built', 'released']")


def _lines(payment_env: Path) -> list[str]:
    return payment_env.read_text().splitlines() if payment_env.exists() else []


@asynccontextmanager
async def _client(url: str, mode: str) -> AsyncIterator[Client]:
    async def accept(
        context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestURLParams)
        return types.ElicitResult(action="accept")

    async with (
        httpx2.AsyncClient(verify=no_certificates(), timeout=PATIENCE_SECONDS) as http_client,
        Client(
            streamable_http_client(url, http_client=http_client),
            mode=mode,
            elicitation_callback=accept,
        ) as client,
    ):
        yield client
