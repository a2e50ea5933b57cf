"""A call whose connection is closed immediately, and the same call again (2025-11-25)."""

import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from tests.support.cli import serving
from tests.support.mcp_server import LIBRARIES
from tests.support.users import ACCEPT, answered, calling, opened_session

FINDING = "R1"


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for library in LIBRARIES:
        with TemporaryDirectory() as folder:
            home, payment_env = Path(folder), Path(folder, "till")
            name, extra = f"tests.outside.shop:{library}", {"TILL": str(payment_env)}
            async with serving(name, home=home, extra=extra) as here:
                url = f"{here.url}/mcp"
                session = await opened_session(url)
                for number in range(times):
                    what = f"order-{number}"
                    _send_and_close(url, what, session)
                    again = calling("order", id=2 * number + 4, what=what)
                    answer = await answered(url, message=again, headers=session)
                    keys = _keys(payment_env, what)
                    is_once = len(keys) == 1 and keys[0] in answer.body
                    yield f"sent and closed, called again: done once ({library})", is_once


def _send_and_close(url: str, what: str, session: dict[str, str]) -> None:
    parts = urlsplit(url)
    call = calling("order", id=3, what=what)
    body = json.dumps({"jsonrpc": "2.0", **call}).encode()
    lines = {"host": parts.netloc, "content-length": str(len(body)), **ACCEPT, **session}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
        connection.sendall(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body)


def _keys(payment_env: Path, what: str) -> list[str]:
    """Return the idempotency key of each time that the work was done."""
    lines = [line.split() for line in payment_env.read_text().splitlines()]
    return [key for ordered, key in lines if ordered == what]
