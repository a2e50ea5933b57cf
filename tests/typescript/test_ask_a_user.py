"""The TypeScript example, which uses only fetch: it asks, waits, ends, and survives a restart."""

import asyncio
import json
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from flows.elicitation.states import Elicitation
from tests.support.asking_env import asking_env
from tests.support.cli import PROJECT
from tests.support.living import living
from tests.support.processes import DEADLINE_SECONDS, ended, killed, start
from tests.support.runs_env import Programs, decline, fill, programs_at
from tests.typescript.packages import FOR_TYPES, HERE, PACKAGES, Missing, install, node

EXAMPLE = PROJECT / "examples" / "ask_a_user.ts"


@pytest.fixture(scope="session")
def runs_types() -> str:
    """Return the path of a Node.js that runs TypeScript without a build. Install nothing."""
    try:
        return node(FOR_TYPES)
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
async def shop() -> AsyncIterator[Programs]:
    async with living(asking_env()) as here, programs_at(here) as programs:
        yield programs


@asynccontextmanager
async def program(url: str, key: str, node: str) -> AsyncIterator[Process]:
    about = {"ELICIT_URL": url, "ELICIT_API_KEY": key}
    process = await start(node, str(EXAMPLE), "ann", "order 8", name="ask_a_user.ts", env=about)
    try:
        yield process
    finally:
        await killed(process)


async def link_of(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(DEADLINE_SECONDS):
        message, link = [(await process.stdout.readline()).decode().strip() for _ in range(2)]
    assert message == "Which city?"
    return link


async def test_program_asks_waits_and_ends_run_after_restart(
    shop: Programs, runs_types: str
) -> None:
    # parity: F2
    guest = await shop.here.guest()
    async with program(shop.here.url, shop.key, runs_types) as first:
        link = await link_of(first)
    async with program(shop.here.url, shop.key, runs_types) as second:
        await link_of(second)
        await fill(guest, link)
        done = await ended(second)
    assert (done.status, done.out, done.err) == (0, "Booked in Lund.\n", "")
    (asked,) = await shop.here.service.elicitations.all(Elicitation)
    assert (asked.delivered_at is not None, asked.content) == (True, None)


async def test_program_reports_declined_question(shop: Programs, runs_types: str) -> None:
    guest = await shop.here.guest()
    async with program(shop.here.url, shop.key, runs_types) as process:
        await decline(guest, await link_of(process))
        assert (await ended(process)).out == "Nothing booked: declined.\n"


async def test_truncated_response_is_requested_again(runs_types: str) -> None:
    state = {"id": "7", "status": "accepted", "message": "", "content": {"response": "Lund"}}
    whole = json.dumps(state).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(whole)
    bodies = [whole, whole, whole[:20]]
    asked = list[bytes]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readline()).split()[1])
        writer.write(head + bodies.pop())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with program(f"http://127.0.0.1:{port}", "key", runs_types) as process:
            assert (await ended(process)).out == "Booked in Lund.\n"
    assert asked == [b"/api/questions", b"/api/questions", b"/api/runs/end"]


async def test_every_example_passes_the_strict_compiler() -> None:
    # finding: XQ7
    try:
        runs = install(FOR_TYPES)
    except Missing as missing:
        pytest.skip(str(missing))
    compiler = PACKAGES / "typescript" / "bin" / "tsc"
    process = await start(runs, str(compiler), "--project", str(HERE), name="tsc", cwd=HERE)
    checked = await ended(process)
    assert (checked.status, checked.out) == (0, "")
