"""SIGTERM while fifty calls are open: each gets a response in the protocol, and can continue."""

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx
import httpx2
from mcp import Client, MCPError
from mcp.client import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitRequestParams, ElicitResult

from tests.support.cli import Server, ended, serving
from webapp.demo.client import text_of

FINDING = "R5"
CALLS = 50  # or 12, if `times` is 1
TOOLS = """
from collections import Counter
from mcp.server.mcpserver import MCPServer
from starlette.responses import JSONResponse
from flows import complete_elicitation, elicit

mcp, requests, inside = MCPServer("outside"), Counter(), set()

@mcp.tool()
async def wait(number: int) -> str:
    requests[number] += 1
    inside.add(number)
    try:
        done = await elicit.url("Wait", "https://example.org/", elicitation_id=f"number-{number}")
    finally:
        inside.discard(number)
    return f"{number} by {done['by']}"

@mcp.custom_route("/held", methods=["GET"])
async def held(request):
    least = int(request.query_params["requests"])
    return JSONResponse(sum(requests[number] >= least for number in inside))

@mcp.custom_route("/complete", methods=["POST"])
async def complete(request):
    name = "number-" + request.query_params["number"]
    return JSONResponse(await complete_elicitation(name, {"by": "ann"}))
"""


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    calls = CALLS if times > 1 else 12
    for _ in range(times):
        for revision, requests in (("legacy", 1), ("2026-07-28", 2)):
            with tempfile.TemporaryDirectory() as folder:
                home = Path(folder)
                (home / "outside_tools.py").write_text(TOOLS)
                for text in await _texts_at_shutdown(
                    home, revision, requests=requests, number=calls
                ):
                    yield f"{revision}: held at SIGTERM, told to come again", _asks_to_repeat(text)
                gone_on = await _going_on(home, revision, requests=requests, number=calls)
                for number, text in enumerate(gone_on):
                    yield f"{revision}: goes on after the restart", text == f"{number} by ann"


async def _texts_at_shutdown(home: Path, revision: str, *, requests: int, number: int) -> list[str]:
    async with serving("outside_tools:mcp", home=home) as server:
        calls = await _held(server, revision, requests=requests, number=number)
        server.process.send_signal(signal.SIGTERM)
        end = await ended(server.process)
        texts = await asyncio.gather(*calls)
    return texts if (end.status, end.err) == (0, "") else [f"{end.status}: {end.err}"]


async def _going_on(home: Path, revision: str, *, requests: int, number: int) -> list[str]:
    async with serving("outside_tools:mcp", home=home) as server:
        calls = await _held(server, revision, requests=requests, number=number)
        async with httpx.AsyncClient(timeout=300) as trusted:
            for one in range(number):
                await trusted.post(f"{server.url}/complete", params={"number": one})
        return await asyncio.gather(*calls)


async def _held(
    server: Server, revision: str, *, requests: int, number: int
) -> list[asyncio.Task[str]]:
    """Start the calls. Return when each has shown its link and the server has its client's answer.

    If the server ended before it had a client's answer, the library would end the client's calls.
    """
    shown = asyncio.Queue[None]()
    calls = [asyncio.create_task(_call(server.url, revision, one, shown)) for one in range(number)]
    for _ in range(number):
        await shown.get()
    async with httpx.AsyncClient(timeout=300) as browser:
        while (
            await browser.get(f"{server.url}/held", params={"requests": requests})
        ).json() < number:
            if any(call.done() for call in calls):
                break
    return calls


async def _call(url: str, revision: str, number: int, shown: asyncio.Queue[None]) -> str:
    has_shown = False

    async def show(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        nonlocal has_shown
        has_shown = True
        if revision != "legacy":  # the client sends its answer with the next request
            shown.put_nowait(None)
        return ElicitResult(action="accept")

    async def arrived(response: httpx2.Response) -> None:
        if has_shown and response.status_code == httpx2.codes.ACCEPTED:
            shown.put_nowait(None)

    text = "no answer"
    with suppress(MCPError, httpx.HTTPError, ExceptionGroup):
        async with (
            httpx2.AsyncClient(timeout=300, event_hooks={"response": [arrived]}) as http,
            Client(
                streamable_http_client(f"{url}/mcp", http_client=http),
                mode=revision,
                elicitation_callback=show,
            ) as client,
        ):
            await client.list_tools()  # otherwise the client lists the tools after the result
            text = text_of(await client.call_tool("wait", {"number": number}))
    return text


def _asks_to_repeat(text: str) -> bool:
    return text.startswith("Still waiting") and "call this tool again" in text
