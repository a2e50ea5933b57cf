"""A broken stream of 2025-11-25, resumed with Last-Event-ID by its own session and no other."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from flows import elicit
from flows.elicitation.run import Run
from flows.elicitation.states import Json
from tests.support.clock import Clock
from tests.support.mcp_server import (
    LEGACY,
    PATIENCE_SECONDS,
    TLS,
    ServerEnv,
    eventually,
    new_server,
    server_env,
    soon,
    text_of,
)
from webapp.mcp.resuming import BYTES_AT_MOST, EVENTS_AT_MOST, Streams


class Work:
    def __init__(self, server: Any) -> None:
        self.gate, self.began, self.runs = asyncio.Event(), asyncio.Event(), 0

        @server.tool()
        async def work() -> str:
            async def once(_: str) -> Json:
                self.runs += 1
                return self.runs

            number = await elicit.once("work", once)
            self.began.set()
            await self.gate.wait()
            return f"worked {number}"


class Reader:
    """A custom client that stops reading a stream after a given number of events."""

    def __init__(self, http: httpx.AsyncClient, url: str, headers: dict[str, str]) -> None:
        self.http, self.url, self.headers = http, url, headers
        self.seen: list[str] = []  # ids of events
        self.results: list[Any] = []
        self.is_reading = asyncio.Event()

    async def call(self, *, leaves_at: int) -> None:
        """Call the tool, and disconnect after `leaves_at` events."""
        request = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "work"}}
        async with self.http.stream(
            "POST", self.url, json=request, headers=self.headers
        ) as response:
            await self._read(response, leaves_at=leaves_at)

    async def resume(self, after: str, *, leaves_at: int | None = None) -> int:
        """Resume the stream and return the response's status. The server has to end the stream."""
        headers = {**self.headers, "last-event-id": after}
        async with self.http.stream("GET", self.url, headers=headers) as response:
            self.is_reading.set()
            if response.status_code == 200:
                await self._read(response, leaves_at=leaves_at)
            else:
                await response.aread()
                assert response.json()["error"]["message"].startswith("This stream cannot be")
            return response.status_code

    async def _read(self, response: httpx.Response, *, leaves_at: int | None) -> None:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = 0
        async for line in response.aiter_lines():
            if line.startswith("id:"):
                self.seen.append(line.removeprefix("id:").strip())
            elif line.startswith("data:") and (text := line.removeprefix("data:").strip()):
                message = json.loads(text)
                if "result" in message:
                    self.results.append(message["result"]["content"][0]["text"])
            elif not line:
                events += 1
                if events == leaves_at:
                    return


async def reader_on(env: ServerEnv) -> Reader:
    by_hand = await env.cut_off_caller(LEGACY)
    return Reader(by_hand.http, by_hand.url, by_hand.headers)


@asynccontextmanager
async def cut_off(library: str) -> AsyncIterator[tuple[ServerEnv, Reader, Work]]:
    """Open a reader that disconnected before the result existed."""
    server = new_server(library)
    work = Work(server)
    async with server_env(server) as env:
        reader = await reader_on(env)
        await soon(reader.call(leaves_at=1))
        await soon(work.began.wait())
        await env.posts_are_over()
        yield env, reader, work


@asynccontextmanager
async def read_whole(server: Any) -> AsyncIterator[tuple[ServerEnv, Reader]]:
    """Open a reader that has read the stream of its call to the end."""
    Work(server).gate.set()
    async with server_env(server) as env:
        reader = await reader_on(env)
        await soon(reader.call(leaves_at=99))
        yield env, reader


async def results_are_noted(env: ServerEnv) -> None:
    (run,) = await env.service.elicitations.all(Run)
    while not run.is_delivered:
        await asyncio.sleep(0)
        (run,) = await env.service.elicitations.all(Run)


async def test_stream_cut_before_the_result_resumes_with_the_result(library):
    # finding: R2
    async with cut_off(library) as (env, reader, work):
        resumed = asyncio.create_task(reader.resume(reader.seen[0]))
        work.gate.set()
        assert await soon(resumed) == 200
        assert reader.results == ["worked 1"]
        # The resumed stream sent the result. A repeated call gets that result again, with a mark.
        await soon(results_are_noted(env))
        async with env.caller(LEGACY) as caller:
            again = await soon(caller.call("work"))
            assert again.meta["resultGivenAgain"]
        assert work.runs == 1


async def test_events_sent_while_disconnected_can_be_read_later_repeatedly(library):
    # finding: R2
    async with cut_off(library) as (env, reader, work):
        work.gate.set()
        await eventually(lambda: not len(env.service.running_tools))
        for times in (1, 2):
            assert await soon(reader.resume(reader.seen[0])) == 200
            assert reader.results == ["worked 1"] * times
        assert await soon(reader.resume(reader.seen[-1])) == 200, "no event follows the last one"
        assert reader.results == ["worked 1"] * 2


async def test_delivered_result_can_be_read_again(server):
    # finding: R2
    async with read_whole(server) as (_, reader):
        assert await soon(reader.resume(reader.seen[0])) == 200
        assert reader.results == ["worked 1"] * 2


@pytest.mark.parametrize("id", ["another session's", "unknown id", "7", "_GET_stream"])
async def test_event_id_of_another_session_is_refused(server, id):
    # finding: R2
    async with read_whole(server) as (env, reader):
        thief = await reader_on(env)
        for event in reader.seen if id == "another session's" else [id]:
            assert await soon(thief.resume(event)) == 400
        assert thief.results == []


async def test_event_ids_are_unique_and_unguessable(server):
    # finding: R2
    async with read_whole(server) as (env, reader):
        another = await reader_on(env)
        await soon(another.call(leaves_at=99))
        seen = [*reader.seen, *another.seen]
        assert len(set(seen)) == len(seen) >= 4
        assert all(len(id) >= 22 for id in seen)


async def test_newer_reader_supersedes_the_older_reader_of_a_stream(library):
    # finding: R2
    async with cut_off(library) as (_, reader, work):
        older = Reader(reader.http, reader.url, reader.headers)
        first = asyncio.create_task(older.resume(reader.seen[0]))
        await soon(older.is_reading.wait())
        second = asyncio.create_task(reader.resume(reader.seen[0]))
        assert await soon(first) == 200
        work.gate.set()
        assert await soon(second) == 200
        assert (older.results, reader.results) == ([], ["worked 1"])


class CutAfterFirstEvent(httpx2.AsyncBaseTransport):
    """A transport that ends the response to the first tools/call after its first event."""

    def __init__(self) -> None:
        self._network = httpx2.AsyncHTTPTransport(verify=TLS)
        self.calls = 0
        self.resumed = asyncio.Event()  # set when the client sends Last-Event-ID

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._network.handle_async_request(request)
        if "last-event-id" in request.headers:
            self.resumed.set()
        if b'"tools/call"' in await request.aread():
            self.calls += 1
            if self.calls == 1:
                response.stream = FirstEvent(cast("httpx2.AsyncByteStream", response.stream))
        return response

    async def aclose(self) -> None:
        await self._network.aclose()


class FirstEvent(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = b""
        async for chunk in self._stream:
            read += chunk
            event, end, _ = read.replace(b"\r\n", b"\n").partition(b"\n\n")
            if end:
                yield b"retry: 1\n" + event + end  # the client's default is a second
                return

    async def aclose(self) -> None:
        await self._stream.aclose()


async def test_official_client_resumes_its_stream(server):
    # finding: R2
    work, transport = Work(server), CutAfterFirstEvent()
    async with (
        server_env(server) as env,
        httpx2.AsyncClient(transport=transport, timeout=PATIENCE_SECONDS) as http,
        Client(streamable_http_client(env.mcp_url, http_client=http), mode=LEGACY) as client,
    ):
        call = asyncio.create_task(client.call_tool("work", {}))
        await soon(transport.resumed.wait())
        work.gate.set()
        assert text_of(await soon(call)) == "worked 1"
        assert (work.runs, transport.calls) == (1, 1)


async def test_stored_events_are_limited_in_number_bytes_and_time():
    # finding: R2
    import mcp_types as types

    clock = Clock()
    streams = Streams(clock=clock)
    stored: list[bytes] = []

    async def session() -> None:
        notice = types.JSONRPCNotification(jsonrpc="2.0", method="x", params={"text": "x" * 1000})
        for number in range(EVENTS_AT_MOST):
            await streams.store_event(str(number), None)
            await streams.store_event(str(number), notice)
            await streams.store_event(
                str(number), types.JSONRPCResponse(jsonrpc="2.0", id=number, result={})
            )
        stored.append(b"x" * streams.bytes)
        clock.tick(minutes=5)
        await streams.store_event("last", None)
        stored.append(b"x" * streams.bytes)

    with streams.request(None, None):
        await session()
    full, empty = map(len, stored)
    assert 0 < full <= min(BYTES_AT_MOST, EVENTS_AT_MOST * 2000)
    assert 0 < empty < 1000, "after five minutes, only the last event is stored"
    gc.collect()
    assert streams.bytes == 0
