"""Tests that the server of tests/support/serving.py leaves nothing open when it stops."""

import asyncio
import gc
import socket
import warnings
from urllib.parse import urlsplit

from tests.support.serving import serving
from webapp.http.exchange import Receive, Scope, Send


async def empty_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer lifespan messages. Fail on a request."""
    assert scope["type"] == "lifespan"
    for step in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{step}.complete"})


def test_connection_arriving_while_server_stops_is_closed() -> None:
    """Test connections that arrive up to four turns of the event loop before the stop."""

    async def connect_and_stop(turns: int) -> list[socket.socket]:
        async with serving(empty_app) as url:
            address = urlsplit(url)
            clients = [socket.create_connection((address.hostname, address.port)) for _ in "abc"]
            for _ in range(turns):
                await asyncio.sleep(0)
        return clients

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        clients = [client for turns in range(5) for client in asyncio.run(connect_and_stop(turns))]
        gc.collect()
    for client in clients:
        client.close()
    assert [str(one.message) for one in caught if one.category is ResourceWarning] == []
