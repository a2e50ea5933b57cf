"""A program in its own process that asks over the HTTP API, and kills itself at a given point.

Every restart runs the same program and the same run. It prints lines: `link`, and `done` with the
result.
"""

import json
import socket
from pathlib import Path

import httpx

from flows import AlreadyDone, elicit
from flows.elicitation.shown_link import ShownLink
from flows.elicitation.states import Json
from tests.crash.server import Orders, die
from webapp.client import Elicit


class DyingTransport(httpx.AsyncBaseTransport):
    """A transport that kills the process when the response to a certain request arrives, unread."""

    def __init__(self, end: str | None) -> None:
        self._way = httpx.AsyncHTTPTransport(verify=False)  # no TLS is used in tests
        self._end = end

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        reply = await self._way.handle_async_request(request)
        if self._end is not None and request.url.path.endswith(self._end):
            die()
        return reply

    async def aclose(self) -> None:
        await self._way.aclose()


# The request whose response the program does not read. When the program dies, the server has
# already stored the question, the work's claim, the work's result, or the run's end.
UNREAD = {
    "asked": "/api/questions",
    "claimed": "/runs/once",
    "kept": "/once/done",
    "over": "/runs/end",
}


async def run_program(text: bytes, line: socket.socket) -> None:
    orders = Orders(**json.loads(text))

    def say(what: str) -> None:
        line.sendall(f"{what}\n".encode())

    def at(point: str) -> None:
        if orders.die == point:
            die()

    def show(link: ShownLink) -> None:
        say(f"link {link.url}")
        at("shown")

    async def book(key: str) -> Json:
        at("working")
        with (Path(orders.folder) / "work").open("a") as file:
            file.write(f"{key}\n")
        at("worked")
        return key

    say("serving")
    try:
        async with Elicit(
            f"http://127.0.0.1:{orders.public_port}",
            api_key=orders.key,
            user="ann",
            run="order 8",
            show=show,
            transport=DyingTransport(UNREAD.get(orders.die or "")),
        ):
            assert await elicit.confirm("Book it?")
            at("answered")
            booked = await elicit.once("book", book)
            at("booked")
    except AlreadyDone:
        booked = "already"
    at("ended")
    say(f"done {booked}")
