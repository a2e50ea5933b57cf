"""A call is sent by another user, and its port is this user's before the server accepts it."""

import asyncio
import json
import os
import signal
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import httpx

from tests.cli.running import Server, serving
from tests.crash.shop import no_certificates
from tests.mcp.stage import LIBRARIES
from tests.outside.by_hand import MODERN, ByHand
from tests.users import NOBODY, socket_of

FINDING = "S16"
ABORTS = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    if os.getuid() != 0:  # root alone can make another user's connection
        return
    for library in LIBRARIES:
        with TemporaryDirectory() as folder:
            home, till = Path(folder), Path(folder, "till")
            extra = {"TILL": str(till)}
            async with (
                serving(f"tests.outside.till:{library}", home=home, extra=extra) as here,
                httpx.AsyncClient(verify=no_certificates()) as http,
            ):
                client = ByHand(http, f"{here.url}/mcp", MODERN)
                for number in range(times):
                    what = f"order-{number}"
                    await _send_from_a_port_that_is_ours_then(here, client, what)
                    own = await client.call("order", what=f"mine-{number}")
                    lines = till.read_text()
                    is_nobodys = f"{what} " not in lines and f"mine-{number} " in lines
                    yield (
                        f"another user's port is ours now ({library})",
                        (is_nobodys and not own.get("isError")),
                    )


async def _send_from_a_port_that_is_ours_then(here: Server, client: ByHand, what: str) -> None:
    parts = urlsplit(here.url)
    there = (parts.hostname or "", parts.port or 0)
    call = client.calling("order", {"what": what})
    body = json.dumps({"jsonrpc": "2.0", **call}).encode()
    lines = {
        "host": parts.netloc,
        "content-type": "application/json",
        "content-length": str(len(body)),
        **client.headers_for(call),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    here.process.send_signal(signal.SIGSTOP)
    try:
        theirs = socket_of(NOBODY)
        await asyncio.get_running_loop().sock_connect(theirs, there)
        await asyncio.get_running_loop().sock_sendall(
            theirs, f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body
        )
        port = theirs.getsockname()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORTS)
        theirs.close()
        ours = socket.socket()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ours.bind(port)
        ours.setblocking(False)
        await asyncio.get_running_loop().sock_connect(ours, there)
    finally:
        here.process.send_signal(signal.SIGCONT)
    ours.close()


def _is_done(till: Path, what: str) -> bool:
    return any(line.startswith(f"{what} ") for line in till.read_text().splitlines())
