"""The port of the pages: it is free, or our own process or another program uses it."""

import asyncio
import socket
from urllib.parse import parse_qs

import httpx
import pytest

from tests.support.clock import Clock
from tests.support.mcp_server import new_server
from tests.support.serving import bound, serving, serving_at
from webapp.command import CommandRefused
from webapp.http.exchange import ASGIApp, Receive, Scope, Send
from webapp.http.port import PagesTaken, PortUnusable, SharedPort, bind, own_or_find, proof
from webapp.records.ids import Pepper
from webapp.sandbox.app import SandboxApp
from webapp.sandbox.settings import new_sandbox
from webapp.serving.http_server import Annex, serve_http
from webapp.settings.settings import read_settings

HOST = "127.0.0.1"
PEPPER = Pepper(b"p" * 32)
URL = "http://127.0.0.1:8765"


def answering(body: bytes) -> ASGIApp:
    """Return an app that answers with `body`, in which `PROOF` is replaced by a valid proof."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            nonce = parse_qs(scope["query_string"].decode())["nonce"][0]
            true = proof(PEPPER, url=URL, nonce=nonce).encode()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body.replace(b"PROOF", true)})

    return app


def shared(port: int) -> SharedPort:
    return SharedPort(HOST, port, url=URL, pepper=PEPPER)


async def test_free_port_is_bound_immediately(free_port):
    listener = await own_or_find(HOST, free_port, url=URL, pepper=PEPPER)
    assert listener is not None
    with listener:
        assert listener.getsockname() == (HOST, free_port)
        _, writer = await asyncio.open_connection(HOST, free_port)
        writer.close()


async def test_port_of_own_running_process_is_not_taken():
    async with serving(answering(b'{"status": "ok", "proof": "PROOF"}')) as url:
        port = int(url.rpartition(":")[2])
        assert await own_or_find(HOST, port, url=URL, pepper=PEPPER) is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"status": "ok"}',
        b'{"status": "ok", "proof": "not this"}',
        b'{"status": "ok", "proof": "\\u00fc"}',
        b'{"status": "ok", "proof": 5}',
        b'["PROOF"]',
        b"<h1>PROOF</h1>",
        b"\xff",
        b'{"proof": "\xff"}',
        b"[" * 4000,
        b'{"more": ' + b"[" * 4000,
        b"",
        b'{"proof": "PROOF", "more": "' + b"x" * 100_000 + b'"}',
    ],
)
async def test_port_of_another_program_is_refused(body):
    async with serving(answering(body)) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(PortUnusable, match=f"Port {port} of {HOST} is already used by another"):
            await own_or_find(HOST, port, url=URL, pepper=PEPPER)


async def test_port_of_program_without_http_is_refused():
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ready\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(greet, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(PortUnusable):
            await own_or_find(HOST, port, url=URL, pepper=PEPPER)


async def test_proof_with_other_pepper_or_url_is_refused():
    for url, pepper in ((URL, Pepper(b"q" * 32)), ("http://localhost:8765", PEPPER)):
        async with serving(answering(b'{"proof": "PROOF"}')) as place:
            port = int(place.rpartition(":")[2])
            with pytest.raises(PortUnusable):
                await own_or_find(HOST, port, url=url, pepper=pepper)


async def test_port_is_acquired_after_its_owner_ends(free_port):
    with bound(HOST, port=free_port) as owner:
        owner.listen()
        waiting = asyncio.create_task(shared(free_port).take_over(say=print))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
    async with asyncio.timeout(300):
        listener = await waiting
    with listener:
        assert listener.getsockname()[1] == free_port


async def test_two_waiting_tasks_acquire_port_in_turn(free_port):
    both = [asyncio.create_task(shared(free_port).take_over(say=print)) for _ in range(2)]
    async with asyncio.timeout(300):
        done, waiting = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(done) == len(waiting) == 1
    done.pop().result().close()
    async with asyncio.timeout(300):
        (await waiting.pop()).close()


async def test_prove_fails_once_port_belongs_to_another_program(free_port):
    # finding: S18
    answer = [b'{"proof": "PROOF"}']

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answering(answer[0])(scope, receive, send)

    port = shared(free_port)
    async with serving(app, port=free_port):
        assert await port.own_or_find() is None
        await port.prove()
        answer[0] = b'{"proof": "of somebody else"}'
        for _ in range(20):
            with pytest.raises(PagesTaken, match="is now used by another program"):
                await port.prove()


async def test_port_used_by_another_program_is_reported_once_and_acquired_later(
    free_port,
):
    # finding: S18
    port, messages = shared(free_port), asyncio.Queue[str]()
    async with serving(answering(b'{"proof": "of somebody else"}'), port=free_port):
        waiting = asyncio.create_task(port.take_over(say=messages.put_nowait))
        async with asyncio.timeout(300):
            assert "is already used by another program" in await messages.get()
    async with asyncio.timeout(300):
        with await waiting:
            await port.prove()
    assert messages.empty()


def test_proof_is_different_for_each_nonce():
    proofs = {proof(PEPPER, url=URL, nonce=nonce) for nonce in ("a", "b", "")}
    assert len(proofs) == 3


# finding: XC9, XV8
@pytest.mark.parametrize("library", ["mcp", "fastmcp"])
@pytest.mark.parametrize("lost", ["own", "sandbox"])
async def test_port_lost_between_bind_and_listen_is_refused(library, lost):
    with bind(HOST, 0) as own, bind(HOST, 0) as outside, socket.socket() as other:
        settings = read_settings(
            {"ELICIT_STORE": "memory:", "ELICIT_SECRET": "a" * 32}, port=own.getsockname()[1]
        )
        url = f"http://{HOST}:{outside.getsockname()[1]}"
        annex = Annex(sandbox=new_sandbox(url=url, serves=settings.url), listener=outside)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((own if lost == "own" else outside).getsockname())
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            CommandRefused, match=f"Port {port} of {HOST} is already used by another"
        ):
            await serve_http(
                settings,
                new_server(library),
                own,
                place="tests",
                ready=lambda: pytest.fail("it does not listen"),
                annex=annex,
            )


@pytest.mark.parametrize("url", [URL, "http://127.0.0.1:{port}", "https://tools.example"])
async def test_port_used_by_sandbox_error_names_server_and_port_option(url: str):
    # finding: XQ11
    def sandbox_at(address: str) -> ASGIApp:
        sandbox = new_sandbox(url=address, serves=URL)
        return SandboxApp(sandbox, clock=Clock(), deliver=nobody)

    async with serving_at(sandbox_at) as place:
        port = int(place.rpartition(":")[2])
        with pytest.raises(PortUnusable) as refused:
            await own_or_find(HOST, port, url=url.format(port=port), pepper=PEPPER)
    assert str(refused.value) == (
        f"Port {port} of {HOST} is already used by the sandbox of elicit's server at {URL}, "
        "which uses the port number after the server's port. Stop that program, or choose another "
        "port with --port."
    )


async def nobody(request: httpx.Request) -> httpx.Response:
    raise AssertionError(request)
