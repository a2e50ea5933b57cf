"""A client that closes its connection as soon as it has sent a call."""

import asyncio
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from flows import elicit
from flows.elicitation.states import Json
from tests.support.local_peers import ON_LINUX
from tests.support.mcp_server import MODERN, ServerEnv, eventually, new_server, server_env
from tests.support.users import ACCEPT, answered, calling, opened_session


def add_order(server: Any) -> list[str]:
    keys: list[str] = []

    @server.tool()
    async def order() -> str:
        async def work(key: str) -> Json:
            keys.append(key)
            return "ordered"

        return str(await elicit.once("order", work))

    return keys


def connected(env: ServerEnv) -> socket.socket:
    """Open a connection that the server has not accepted yet."""
    parts = urlsplit(env.url)
    return socket.create_connection((parts.hostname or "", parts.port or 0))


def request(env: ServerEnv, message: dict[str, Any], headers: dict[str, str]) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    lines = {"host": urlsplit(env.url).netloc, "content-length": str(len(body)), **ACCEPT}
    head = "".join(f"{name}: {value}\r\n" for name, value in {**lines, **headers}.items())
    return f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body


def send_and_close(connection: socket.socket, sent: bytes, *, resets: bool = False) -> None:
    """Send and close without an `await`, so the server sees the data and the end at once."""
    connection.sendall(sent)
    if resets:
        linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.close()


async def calls_again(env: ServerEnv, headers: dict[str, str], *, id: int) -> None:
    await env.posts_are_over()
    answer = await answered(env.mcp_url, message=calling("order", id=id), headers=headers)
    assert "ordered" in answer.body


@ON_LINUX
async def test_call_of_a_disconnected_client_does_not_run_again_if_repeated(server):
    # finding: R1
    keys = add_order(server)
    async with server_env(server) as env:
        session = await opened_session(env.mcp_url)
        with connected(env) as connection:
            # The reply shows that the server accepted this connection. Then the client sends a call
            # and closes the connection.
            connection.setblocking(False)
            loop = asyncio.get_running_loop()
            ping = request(env, {"id": 1, "method": "ping"}, session)
            await loop.sock_sendall(connection, ping)
            received = b""
            while b'"result"' not in received:
                received += await loop.sock_recv(connection, 4096)
            seen = env.begun_posts
            send_and_close(connection, request(env, calling("order", id=2), session))
        await eventually(lambda: env.begun_posts > seen)
        await calls_again(env, session, id=3)
        assert len(keys) == 1


@ON_LINUX
@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
async def test_call_of_a_disconnected_client_is_not_started(server, resets):
    # finding: R1
    keys = add_order(server)
    async with server_env(server) as env:
        session = await opened_session(env.mcp_url)
        send_and_close(connected(env), request(env, calling("order", id=2), session), resets=resets)
        await calls_again(env, session, id=3)
        assert len(keys) == 1


@ON_LINUX
async def test_tool_does_not_run_for_a_disconnected_client_without_session():
    # finding: R1
    # With FastMCP, the end of the connection cancels the call before its tool starts.
    ran, server = list[str](), new_server("mcp")

    @server.tool()
    async def note() -> str:
        ran.append("note")
        return "noted"

    call = calling("note")
    call["params"]["_meta"] = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "note"}
    async with server_env(server) as env:
        send_and_close(connected(env), request(env, call, headers))
        await eventually(lambda: env.begun_posts)
        await env.posts_are_over()
        for _ in range(200):
            await asyncio.sleep(0)
        assert not ran
        assert "noted" in (await answered(env.mcp_url, message=call, headers=headers)).body
        assert ran == ["note"]


async def test_aborted_upload_is_logged_without_a_traceback(caplog):
    # finding: R9
    async with server_env(new_server("mcp")) as env:
        head = f"POST /webhooks/stripe HTTP/1.1\r\nhost: {urlsplit(env.url).netloc}\r\n"
        upload = head + "content-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
        send_and_close(connected(env), upload.encode())

        def logged() -> list[tuple[str, bool]]:
            events = ("request.aborted", "route.failed")
            found = [each for each in caplog.records if each.getMessage() in events]
            return [(each.getMessage(), each.exc_info is not None) for each in found]

        await eventually(logged)
        assert logged() == [("request.aborted", False)]
