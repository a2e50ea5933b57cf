"""A server that leaks a secret and then dies, for tests/test_leaks.py.

`Orders.die` says how the secret is leaked, and `Orders.folder` contains the secret.
"""

import asyncio
import json
import logging
import socket
import sys

import httpx

from tests.crash.process_pool import raise_children
from tests.crash.server import Orders, die
from tests.support.serving import serving
from webapp.http.exchange import Receive, Scope, Send

_LOG = logging.getLogger("webapp.shop")


async def leak(text: bytes, line: socket.socket) -> None:
    orders = Orders(**json.loads(text))
    _, writer = await asyncio.open_connection(sock=line)
    writer.write(b"serving\n")
    match orders.die:
        case "prints":
            sys.stderr.write(f"unread {orders.folder}\n")
        case "logs":
            _LOG.debug("unread %s", orders.folder)
        case "answers":
            await _ask(orders.folder)
        case "repeats":  # logs the secret before a request contains it as `state`
            _LOG.info("began %s", orders.folder)
            await _ask("nothing", state=orders.folder)
    await writer.drain()
    die()


async def _ask(what: str, **query: str) -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = [(b"content-type", b"application/problem+json")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": f"unread {what}".encode()})

    async with serving(refuse) as url, httpx.AsyncClient() as client:
        await client.get(f"{url}/shop", params=query)


async def _nothing() -> None:
    """Do nothing: this server needs no warm-up."""


if __name__ == "__main__":
    raise_children(_nothing(), serve=leak)
