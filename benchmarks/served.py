"""A tool that is written twice and served over HTTP: custom code on the SDK, and `elicit.url`.

`python -m benchmarks.served by_hand` or `with_elicit` prints its address and serves until its
standard input ends. In both, a GET of /done/{item} lets the tool continue.
"""

import asyncio
import inspect
import os
import secrets
import socket
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ElicitRequest, ElicitRequestURLParams, InputRequiredResult
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from flows import complete_elicitation, elicit
from flows.crypto.tokens import Ring
from flows.question import Link
from webapp import Accepted
from webapp.app import create_app
from webapp.serving.http_server import loop_factory
from webapp.settings.quotas import PolicySettings
from webapp.settings.settings import Settings

MODERN = "2026-07-28"


def by_hand(base: str) -> Any:
    """Serve the tool as written without elicit. It stores nothing and verifies no caller."""
    server = MCPServer("shop", log_level="WARNING")
    done: dict[str, asyncio.Event] = {}

    @server.tool()
    async def buy(item: str, context: Context[Any, Any]) -> str | InputRequiredResult:
        question = ElicitRequestURLParams(message=f"Pay for {item}", url=f"{base}/done/{item}")
        if str(context.protocol_version) < MODERN:
            done[item] = asyncio.Event()
            await context.session.elicit_url(
                question.message, question.url, item, related_request_id=context.request_id
            )
            await done[item].wait()
            await context.session.send_elicit_complete(item, related_request_id=context.request_id)
        elif context.request_state is None:
            done[item] = asyncio.Event()
            return InputRequiredResult(
                input_requests={"payment": ElicitRequest(params=question)}, request_state=item
            )
        else:
            await done[item].wait()
        del done[item]
        return f"{item} is bought"

    @server.custom_route("/done/{item}", methods=["GET"])  # type: ignore[untyped-decorator]
    async def paid(request: Request) -> PlainTextResponse:
        done[request.path_params["item"]].set()
        return PlainTextResponse("done")

    return server.streamable_http_app()


def with_elicit(base: str, folder: Path) -> Any:
    """Serve the tool with elicit, on SQLite with synchronous=FULL."""
    server = MCPServer("shop", log_level="WARNING")
    orders: dict[str, str] = {}

    @server.tool()
    async def buy(item: str) -> str:
        def checkout(link: Link) -> str:
            orders[item] = link.id
            return f"{base}/done/{item}"

        await elicit.url(f"Pay for {item}", checkout, origins=[base])
        return f"{item} is bought"

    @server.custom_route("/done/{item}", methods=["GET"])  # type: ignore[untyped-decorator]
    async def paid(request: Request) -> PlainTextResponse:
        await complete_elicitation(orders.pop(request.path_params["item"]))
        return PlainTextResponse("done")

    return create_app(settings_here(base, folder), server)


def settings_here(base: str, folder: Path) -> Settings:
    return Settings(
        url=base,
        ring=Ring([secrets.token_bytes(32)]),
        store=f"sqlite:///{folder / 'served.db'}",
        uid=os.getuid(),
        policies=PolicySettings(min_answer=timedelta()),  # its clients answer immediately
    )


async def serve(which: str) -> None:
    with tempfile.TemporaryDirectory() as folder:

        def build(base: str) -> Any:
            return by_hand(base) if which == "by_hand" else with_elicit(base, Path(folder))

        await until_stdin_ends(build, is_by_hand=which == "by_hand")


def listening() -> socket.socket:
    """Return a socket on a free port, on which connections wait until a server accepts them."""
    # Pass IPPROTO_TCP, or asyncio does not set TCP_NODELAY and each response can wait 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


async def until_stdin_ends(
    app: Any, at: socket.socket | None = None, *, is_by_hand: bool = False
) -> None:
    """Serve `app` and print the address. `app` can be a function of the address."""
    with at or listening() as listener:
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        built = app(base) if inspect.isfunction(app) else app
        config = uvicorn.Config(
            built,
            http="auto" if is_by_hand else Accepted,
            log_level="warning",
            proxy_headers=False,
            timeout_graceful_shutdown=2,
            timeout_keep_alive=60,  # on a busy machine a client can return late to its connection
        )
        server = uvicorn.Server(config)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            loop.remove_reader(sys.stdin)
            server.should_exit = True

        loop.add_reader(sys.stdin, stop)
        print(base, flush=True)  # connections wait in the socket until the application is up
        await server.serve(sockets=[listener])


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(sys.argv[1]))
