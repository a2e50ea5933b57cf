"""Promises, each with a check that tests a served host from outside and returns a verdict."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias, cast

import httpx

from tests.hosts.host import Served
from tests.support.mcp_server import (
    LEGACY,
    MODERN,
    TLS,
    Caller,
    CutOffCaller,
    Page,
    Person,
    soon,
    text_of,
)
from webapp.demo.walker import Page as Forms

_LINK = re.compile(r'https?://[^"\\\s]+/e/[A-Za-z0-9._~-]+')
_FROM_AFAR = {"x-forwarded-for": "203.0.113.9"}
# Headers of callers through a proxy. No host treats such a caller as a local program.
_STRANGERS = (
    _FROM_AFAR,
    {"forwarded": "for=127.0.0.1"},
    {"via": "1.1 relay", "cookie": "elicit_session=guessed"},
    {"x-real-ip": "127.0.0.1", "authorization": "Bearer elicit_local_guessed"},
)


class Verdict(StrEnum):
    """The outcome of a check on a host."""

    HOLDS = "holds"
    OWN = "the host's own"
    REFUSED = "the start refuses"


Check: TypeAlias = Callable[[Served], Awaitable[Verdict]]


async def pages(at: Served) -> Verdict:
    """Check that links, forms, redirects and callbacks work, on both revisions."""
    for revision in (LEGACY, MODERN):
        async with at.calls.caller(revision, headers=at.key) as caller, at.person() as person:
            call = caller.call("order", what=f"pages {revision}")
            await type_secret(person, await _shown(at, caller, call))
            assert text_of(await soon(call)).endswith("for 4 letters")
            call = caller.call("read_terms")
            gone = await person.go_on(await _shown(at, caller, call))
            back = (await person.visit(_under(at, gone))).location
            assert (await person.visit(_under(at, back or ""))).status == 200
            assert text_of(await soon(call)) == "read"
            home = await person.visit(f"{at.url}/")
            for address in re.findall(r'(?:href|src|action)="(/[^"]*)"', home.text):
                found = await person.browser.get(str(httpx.URL(at.url).join(address)))
                assert found.status_code == 200, address
            where = await person.browser.get(f"{at.url}/where")
            assert where.text == f"{at.url}/where", (
                "the author's own route sees the address that the browser opened"
            )
    return Verdict.HOLDS


async def host_and_origin(at: Served) -> Verdict:
    """Check that another Host, pages of another site, and calls of any page at /mcp are refused."""
    async with at.browser() as browser:
        call = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        headers = {"accept": "application/json, text/event-stream", **at.key}
        for path in ("/", "/mcp", "/connections"):
            answer = await browser.get(f"{at.url}{path}", headers={"host": "evil.example"})
            assert answer.status_code in (400, 421), path
        for origin in ("https://evil.example", "null", httpx.URL(at.url).copy_with(path="/")):
            sent = {**headers, "origin": str(origin).rstrip("/")}
            answer = await browser.post(f"{at.url}/mcp", json=call, headers=sent)
            assert answer.status_code == 403, origin
        asked = {"origin": "https://evil.example"}
        assert (await browser.get(f"{at.url}/connections", headers=asked)).status_code == 403
    return Verdict.HOLDS


async def sessions(at: Served) -> Verdict:
    """Check that nobody else can use a session of MCP 2025-11-25, even with its id."""
    async with _opened(at, at.key) as hers, at.browser() as browser:
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        assert (await hers.http.post(hers.url, json=listing, headers=hers.headers)).is_success
        for stranger in _STRANGERS:
            own = {k: v for k, v in hers.headers.items() if k != "authorization"} | stranger
            for method in ("POST", "GET", "DELETE"):
                answer = await browser.request(method, hers.url, json=listing, headers=own)
                assert answer.status_code == 404, (method, stranger)
        assert (await hers.http.post(hers.url, json=listing, headers=hers.headers)).is_success
    return Verdict.HOLDS


async def identity(at: Served) -> Verdict:
    """Check that a link opens only for its asker, even if others know it or claim to be local."""
    async with at.calls.caller(MODERN, headers=at.key) as caller:
        call = caller.call("order", what="identity")
        link = await _shown(at, caller, call)
        async with at.person() as person, at.browser() as stranger:
            for headers in _STRANGERS:
                page = Page.of(await stranger.get(link, headers=headers))
                assert (page.status, page.csrf and "order" in page.text) == (403, None), headers
            for path in ("", "/allow", "/decline", "/code"):
                address = f"{link}{path}"
                fields = {"csrf": "0" * 64}
                pressed = await stranger.post(address, data=fields, headers=_FROM_AFAR)
                assert pressed.status_code == 403, path
            live = await stranger.get(f"{link}/live", headers=_FROM_AFAR)
            assert live.status_code == 403
            await type_secret(person, link)
    for headers in _STRANGERS:
        text = await _refusal(at, headers)
        assert text is not None
        assert "Nobody can be asked" in text
    return Verdict.HOLDS


async def locality(at: Served) -> Verdict:
    """Check that the user's own programs need no key, or that the refusal names `elicit pair`."""
    text = await _refusal(at, {})
    if text is None:
        return Verdict.HOLDS
    assert "with `elicit serve`" in text or "relay" in text, text
    assert "elicit pair" in text
    return Verdict.OWN


async def limits(at: Served) -> Verdict:
    """Check that slow senders are cut off, if our HTTP protocol class reads the connection."""
    if await locality(at) is Verdict.OWN:
        return Verdict.OWN  # the host reads the connection, with its own limits
    url = httpx.URL(at.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
    async with asyncio.timeout(300):
        assert b" 408 " in await reader.readline()
    writer.close()
    return Verdict.HOLDS


async def bounds(at: Served) -> Verdict:
    """Check that paths, queries and bodies that are too long are refused before they are parsed."""
    async with at.browser() as browser:
        assert (await browser.get(f"{at.url}/e/{'x' * 5000}")).status_code == 414
        assert (await browser.get(f"{at.url}/?{'x' * 9000}")).status_code in (414, 400)
        large = b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "x": "' + b"x" * 5_000_000 + b'"}'
        headers = {"content-type": "application/json", **at.key}
        request = browser.build_request("POST", f"{at.url}/mcp", content=large, headers=headers)
        answer = await _first_line_for(request)
        assert re.match(rb"HTTP/1\.[01] 4(00|13)\b", answer), answer
        crooked = await browser.get(f"{at.url}/e/..%2f..%2fmcp")
        assert crooked.status_code in (400, 404)
    return Verdict.HOLDS


async def _first_line_for(request: httpx.Request) -> bytes:
    """Post the request and return the first line of the response.

    A server may respond to a body that is too long and close the connection while the body is still
    being sent. A slow client that reads only after it has written would lose such a response.
    """
    first_line = asyncio.get_running_loop().create_future()

    class Reading(asyncio.Protocol):
        got = b""

        def data_received(self, data: bytes) -> None:
            self.got += data
            if b"\r\n" in self.got and not first_line.done():
                first_line.set_result(self.got.partition(b"\r\n")[0])

        def connection_lost(self, exc: Exception | None) -> None:
            if not first_line.done():
                first_line.set_exception(exc or EOFError())

    url = request.url
    transport, _ = await asyncio.get_running_loop().create_connection(
        Reading, url.host, url.port or 443, ssl=TLS if url.scheme == "https" else None
    )
    head = f"POST {url.path} HTTP/1.1\r\n".encode()
    head += b"".join(name + b": " + value + b"\r\n" for name, value in request.headers.raw)
    transport.write(head + b"\r\n" + request.content)
    try:
        return cast("bytes", await soon(first_line))
    finally:
        transport.abort()


async def resumption(at: Served) -> Verdict:
    """Check that a cut stream continues after the last event (Last-Event-ID)."""
    async with _opened(at, at.key) as hers, at.person() as person:
        async with _asked(hers, "resumption") as (link, last_id):
            pass
        assert last_id
        await type_secret(person, _under(at, link))
        reading = {**hers.headers, "last-event-id": last_id, "accept": "text/event-stream"}
        async with (
            asyncio.timeout(300),
            hers.http.stream("GET", hers.url, headers=reading) as resumed,
        ):
            assert resumed.status_code == 200
            async for line in resumed.aiter_lines():
                if "for 4 letters" in line:
                    return Verdict.HOLDS
    raise AssertionError("the result did not come")


async def delivery(at: Served) -> Verdict:
    """Check that the same call gets an undelivered result, and does not repeat the work."""
    async with _opened(at, at.key) as hers, at.person() as person:
        async with _asked(hers, "delivery") as (link, _):
            pass
        await type_secret(person, _under(at, link))  # after the call's connection was closed
        reported = set[str]()
        for _ in range(3):
            again = (await soon(hers.call("order", what="delivery"))).text
            reported |= set(re.findall(r"delivery: order (\d+) for 4 letters", again))
        assert len(reported) == 1, reported
    return Verdict.HOLDS


async def logs(at: Served) -> Verdict:
    """Check that the host's access log has no link. A proxy's log may have links (Verdict.OWN)."""
    async with at.browser() as browser:
        await browser.get(f"{at.url}/e/a-token-of-a-link")
        await browser.get(f"{at.url}/callback/github?code=4711&state=4712")
    assert "a-token-of-a-link" not in at.log()
    return Verdict.OWN if "a-token-of-a-link" in at.proxy_log() else Verdict.HOLDS


async def drain(at: Served) -> Verdict:
    """Check that the host answers its open calls after SIGTERM, and ends."""
    async with _opened(at, at.key) as hers, at.person() as person, at.browser() as watcher:
        watcher.cookies = person.browser.cookies
        async with _asked(hers, "drain", stays=True) as (link, lines):
            page = _under(at, link)
            async with watcher.stream("GET", f"{page}/live") as live:
                assert live.status_code == 200
                received = live.aiter_lines()
                await anext(received)
                at.process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(300):
                    data_lines = [line async for line in lines if line.startswith("data:")]
                    async for _ in received:
                        pass
            answers = [json.loads(line[5:]) for line in data_lines if line[5:].strip()]
            assert any("result" in answer for answer in answers), data_lines
        async with asyncio.timeout(300):
            await at.process.wait()
    return Verdict.HOLDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A column of the table. A promise that `ends` its host or has `settings` gets its own host."""

    name: str
    says: str
    check: Check
    ends: bool = False
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def needs_own_host(self) -> bool:
        return self.ends or bool(self.settings)


PROMISES = (
    Promise(name="pages", says="links, forms, redirects and callbacks work", check=pages),
    Promise(
        name="host and origin", says="the server checks Host and Origin", check=host_and_origin
    ),
    Promise(name="identity", says="only the asker can open a link", check=identity),
    Promise(name="sessions", says="only its opener can use a session", check=sessions),
    Promise(name="local", says="your own programs need no key", check=locality),
    Promise(
        name="resumption",
        says="a client can resume a broken stream (Last-Event-ID)",
        check=resumption,
    ),
    Promise(name="delivery", says="an undelivered result is returned again", check=delivery),
    Promise(name="drain", says="at shutdown, open calls get an answer", check=drain, ends=True),
    Promise(name="bounds", says="the server refuses long paths and bodies", check=bounds),
    Promise(
        name="slow senders",
        says="the server ends incomplete requests",
        check=limits,
        settings={"ELICIT_READ_SECONDS": "5"},  # only for this host: 5 s could break other promises
    ),
    Promise(name="logs", says="the access log contains no link", check=logs),
)


def _under(at: Served, address: str) -> str:
    assert address.startswith(f"{at.url}/"), address
    return address


async def type_secret(person: Person, link: str) -> None:
    """Type a secret of four characters into the link's page, and check that it was saved."""
    page = await person.browser.get(link)
    form = next(form for form in Forms(page.text).forms if "answer.value" in form.asks)
    address = str(page.url.join(form.action))
    sent = await person.browser.post(address, data={**form.fields, "answer.value": "4711"})
    assert sent.status_code == 303, sent.text
    done = await person.visit(str(sent.url.join(sent.headers["location"])))
    assert done.heading == "Saved", done.text


async def _refusal(at: Served, headers: dict[str, str]) -> str | None:
    """Call a tool that asks the person. Return its text, or None if a link was shown."""
    async with at.calls.caller(MODERN, headers=headers) as caller:
        call = caller.call("order", what="nothing")
        shown = asyncio.create_task(caller.link())
        done, _ = await asyncio.wait({call, shown}, return_when=asyncio.FIRST_COMPLETED)
        if shown in done:
            return None
        shown.cancel()
        text = text_of(await call)
        return None if _LINK.search(text) else text  # a link in the call's own text


async def _shown(at: Served, caller: Caller, call: "asyncio.Task[Any]") -> str:
    """Return the link that the call shows. Fail if the call ends first."""
    link = asyncio.create_task(caller.link())
    await asyncio.wait({call, link}, return_when=asyncio.FIRST_COMPLETED)
    if not link.done():
        link.cancel()
        raise AssertionError(f"no link was shown: {text_of(await call)}")
    return _under(at, await link)


@asynccontextmanager
async def _opened(at: Served, headers: dict[str, str]) -> AsyncIterator[CutOffCaller]:
    """Connect a client of 2025-11-25 that uses no MCP library, and open its session."""
    async with at.browser() as http:
        caller = CutOffCaller(http, f"{at.url}/mcp", LEGACY)
        caller.headers |= headers
        await caller.connect()
        yield caller


@asynccontextmanager
async def _asked(
    caller: CutOffCaller, what: str, *, stays: bool = False
) -> AsyncIterator[tuple[str, Any]]:
    """Provide the link that an order's stream shows and its last event id, then cut the stream.

    With `stays`, provide the remaining lines instead of the id.
    """
    request = {"jsonrpc": "2.0", "id": 7, "method": "tools/call"}
    request |= {"params": {"name": "order", "arguments": {"what": what}}}
    async with (
        asyncio.timeout(300),
        caller.http.stream("POST", caller.url, json=request, headers=caller.headers) as stream,
    ):
        assert stream.status_code == 200
        last_id, lines = "", stream.aiter_lines()
        async for line in lines:
            if line.startswith("id:"):
                last_id = line[3:].strip()
            if (found := _LINK.search(line)) is not None:
                yield found[0], lines if stays else last_id
                return
    raise AssertionError("no link was shown")
