"""The outbound HTTP client: limits on requests, and Failed for every error of the other side."""

import asyncio
import gzip
import tracemalloc
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from pytest_httpx import HTTPXMock

from flows.errors import Failed
from webapp.connecting import outbound_of
from webapp.http.client import REPLY_BYTES_AT_MOST, SECONDS_A_REQUEST, Outbound, refuse_packed
from webapp.settings.settings import read_settings

URL = "https://provider.example/token"
PUBLIC = "93.184.215.14"
Talking = Generator[httpx.Request, httpx.Response, str]


def talk(*urls: str) -> Talking:
    """Request each URL in turn, and return the last response's status and text."""
    text = ""
    for url in urls or (URL,):
        reply = yield httpx.Request("GET", url)
        text = f"{reply.status_code} {reply.text}"
    return text


def resolving(*addresses: str):
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    return resolve


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient() as client:
        yield client


@pytest.fixture
def outbound(client: httpx.AsyncClient) -> Outbound:
    return Outbound(client, allow_loopback=False, resolve=resolving(PUBLIC))


async def test_conversation_receives_replies_and_returns_result(
    outbound: Outbound, httpx_mock: HTTPXMock
) -> None:
    httpx_mock.add_response(url=URL, text="one")
    httpx_mock.add_response(url=f"{URL}/2", text="two", status_code=400)
    assert await outbound.run(talk(URL, f"{URL}/2")) == "400 two"


@pytest.mark.parametrize("location", ["javascript:alert(1)", "http://[::1"])
async def test_redirect_to_invalid_address_raises_failed(
    outbound: Outbound, httpx_mock: HTTPXMock, location: str
) -> None:
    # finding: XS2
    httpx_mock.add_response(302, headers={"location": location})
    with pytest.raises(Failed):
        await outbound.run(talk())


async def test_response_with_non_ascii_header_is_read(
    outbound: Outbound, httpx_mock: HTTPXMock
) -> None:
    name = (b"content-disposition", 'inline; filename="André.png"'.encode())
    httpx_mock.add_response(text="one", headers=[name])
    assert await outbound.run(talk()) == "200 one"


async def test_cookie_of_provider_is_not_stored(httpx_mock: HTTPXMock, tmp_path: Path) -> None:
    httpx_mock.add_response(headers={"set-cookie": "a=b; Max-Age=999"})
    async with AsyncExitStack() as stack:
        outbound = await outbound_of(stack, read_settings({"HOME": str(tmp_path)}))
        await outbound.run(talk("http://127.0.0.1:9/"))
        assert outbound._client is not None
        assert not list(outbound._client.cookies.jar)


async def test_service_without_network_sends_no_request(httpx_mock: HTTPXMock) -> None:
    with pytest.raises(Failed, match="This server makes no outbound requests"):
        await Outbound.none().run(talk())


async def test_conversation_without_requests_sends_nothing(outbound: Outbound) -> None:
    def silent() -> Talking:
        yield from ()
        return "done"

    assert await outbound.run(silent()) == "done"


async def test_redirect_is_returned_and_not_followed(
    outbound: Outbound, httpx_mock: HTTPXMock
) -> None:
    httpx_mock.add_response(status_code=302, headers={"location": "http://169.254.169.254/"})
    assert await outbound.run(talk()) == "302 "
    assert len(httpx_mock.get_requests()) == 1


async def test_reply_at_size_limit_is_read_and_larger_reply_fails(
    outbound: Outbound, httpx_mock: HTTPXMock
) -> None:
    httpx_mock.add_response(content=b"x" * REPLY_BYTES_AT_MOST)
    assert len(await outbound.run(talk())) == REPLY_BYTES_AT_MOST + 4
    httpx_mock.add_response(content=b"x" * (REPLY_BYTES_AT_MOST + 1))
    with pytest.raises(Failed, match="too large"):
        await outbound.run(talk())


async def test_endless_reply_is_cut_off(outbound: Outbound, httpx_mock: HTTPXMock) -> None:
    sent = 0

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            nonlocal sent
            while True:
                sent += 1
                yield b"x" * 65_536

    httpx_mock.add_response(stream=Endless())
    with pytest.raises(Failed, match="too large"):
        await outbound.run(talk())
    assert sent <= REPLY_BYTES_AT_MOST / 65_536 + 2


async def test_every_request_asks_for_identity_encoding(
    outbound: Outbound, httpx_mock: HTTPXMock
) -> None:
    # finding: S9
    httpx_mock.add_response(text="one")

    def packed() -> Talking:
        reply = yield httpx.Request("GET", URL, headers={"Accept-Encoding": "gzip"})
        return reply.text

    assert await outbound.run(packed()) == "one"
    (request,) = httpx_mock.get_requests()
    assert request.headers.get_list("accept-encoding") == ["identity"]


class Packed(httpx.AsyncByteStream):
    """A small body that decompresses to 64 MB. `reads` counts how often reading was started."""

    def __init__(self) -> None:
        self.reads = 0
        self._bytes = gzip.compress(gzip.compress(b"\0" * (64 * 1024 * 1024)))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.reads += 1
        yield self._bytes


@pytest.fixture(scope="module")
def packed() -> Packed:
    return Packed()


@pytest.mark.parametrize(
    "encodings",
    [["gzip, gzip"], ["gzip", "gzip"], ["identity, gzip"], ["GZip"], ["deflate"], ["br"], ["new"]],
    ids=" ".join,
)
async def test_compressed_reply_is_refused_unread(
    outbound: Outbound, httpx_mock: HTTPXMock, packed: Packed, encodings: list[str]
) -> None:
    # finding: S9
    headers = [("content-encoding", each) for each in encodings]
    httpx_mock.add_response(stream=packed, headers=headers)
    tracemalloc.start()
    try:
        with pytest.raises(Failed, match="compressed"):
            await outbound.run(talk())
        assert tracemalloc.get_traced_memory()[1] < 2 * REPLY_BYTES_AT_MOST
    finally:
        tracemalloc.stop()
    assert packed.reads == 0


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
async def test_reply_with_identity_encoding_is_read(
    outbound: Outbound, httpx_mock: HTTPXMock, encoding: str
) -> None:
    httpx_mock.add_response(text="plain", headers={"content-encoding": encoding, "x-kept": "1"})

    def text_and_header() -> Talking:
        reply = yield httpx.Request("GET", URL)
        return reply.text + reply.headers["x-kept"]

    assert await outbound.run(text_and_header()) == "plain1"


async def test_event_hook_refuses_compressed_reply_unread(
    httpx_mock: HTTPXMock, packed: Packed
) -> None:
    httpx_mock.add_response(stream=packed, headers={"content-encoding": "gzip, gzip"})
    async with httpx.AsyncClient(event_hooks={"response": [refuse_packed]}) as client:
        with pytest.raises(httpx.DecodingError, match="compressed"):
            await client.get(URL)
    assert packed.reads == 0


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("no"),
        httpx.ReadTimeout("slow"),
        httpx.ConnectTimeout("slow"),
        httpx.RemoteProtocolError("rubbish"),
        httpx.ReadError("gone"),
        httpx.DecodingError("rubbish"),
    ],
)
async def test_network_error_raises_failed_without_address(
    outbound: Outbound, httpx_mock: HTTPXMock, error: httpx.HTTPError
) -> None:
    httpx_mock.add_exception(error)
    with pytest.raises(Failed) as failed:
        await outbound.run(talk())
    assert failed.value.__cause__ is error
    assert "provider.example" not in str(failed.value)


async def test_conversation_can_recover_from_failed_request(
    outbound: Outbound, httpx_mock: HTTPXMock
) -> None:
    httpx_mock.add_exception(httpx.ConnectError("no"))
    httpx_mock.add_response(text="second")

    def twice() -> Talking:
        try:
            reply = yield httpx.Request("GET", URL)
        except httpx.HTTPError:
            reply = yield httpx.Request("GET", URL)
        return reply.text

    assert await outbound.run(twice()) == "second"


async def test_exception_of_conversation_is_raised_and_conversation_is_closed(
    outbound: Outbound, httpx_mock: HTTPXMock
) -> None:
    httpx_mock.add_response()
    closed = False

    def refusing() -> Talking:
        nonlocal closed
        try:
            yield httpx.Request("GET", URL)
            raise Failed("The provider refused.")
        finally:
            closed = True

    with pytest.raises(Failed, match="The provider refused"):
        await outbound.run(refusing())
    assert closed


INWARD = [
    "127.0.0.1",
    "::1",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "::",
    "fd00::1",
    "fe80::1",
    "fe80::1%eth0",
    "192.0.2.1",
    "255.255.255.255",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
]


@pytest.mark.parametrize("address", INWARD)
async def test_private_address_is_not_contacted(client: httpx.AsyncClient, address: str) -> None:
    for found in ((address,), (PUBLIC, address)):
        outbound = Outbound(client, allow_loopback=False, resolve=resolving(*found))
        with pytest.raises(Failed, match="public internet"):
            await outbound.run(talk())


@pytest.mark.parametrize(
    "address",
    [
        *("64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "2002:7f00:1::", "::7f00:1", "224.0.0.1"),
        *("ff02::1", "fec0::1", "::ffff:0:127.0.0.1", "::ffff:0:10.0.0.1", "5f00::1"),
    ],
)
async def test_private_address_embedded_in_public_address_is_not_contacted(
    client: httpx.AsyncClient, address: str
) -> None:
    # finding: S6
    outbound = Outbound(client, allow_loopback=False, resolve=resolving(address))
    with pytest.raises(Failed, match="public internet"):
        await outbound._check_address(httpx.URL(URL))


async def test_literal_address_is_checked_like_host_name(client: httpx.AsyncClient) -> None:
    outbound = Outbound(client, allow_loopback=False)
    for host in ("127.0.0.1", "[::1]", "10.0.0.1", "2130706433", "0x7f000001", "127.1"):
        with pytest.raises(Failed, match="public internet"):
            await outbound.run(talk(f"https://{host}/"))


async def test_plain_http_is_allowed_only_for_loopback(
    client: httpx.AsyncClient, httpx_mock: HTTPXMock
) -> None:
    outbound = Outbound(client, allow_loopback=True, resolve=resolving(PUBLIC))
    with pytest.raises(Failed):
        await outbound.run(talk("http://provider.example/"))
    local = Outbound(client, allow_loopback=True, resolve=resolving("127.0.0.1", "::1"))
    httpx_mock.add_response(text="here")
    assert await local.run(talk("http://127.0.0.1:9/")) == "200 here"


async def test_allowing_loopback_does_not_allow_other_private_addresses(
    client: httpx.AsyncClient,
) -> None:
    for address in set(INWARD) - {"127.0.0.1", "::1", "::ffff:127.0.0.1"}:
        outbound = Outbound(client, allow_loopback=True, resolve=resolving(address))
        with pytest.raises(Failed, match="public internet"):
            await outbound.run(talk())


async def test_private_address_after_loopback_address_of_same_host_is_not_contacted(
    client: httpx.AsyncClient, httpx_mock: HTTPXMock
) -> None:
    outbound = Outbound(client, allow_loopback=True, resolve=resolving("127.0.0.1", "10.0.0.1"))
    with pytest.raises(Failed):
        await outbound.run(talk())
    assert httpx_mock.get_requests() == []


async def test_every_request_of_conversation_is_checked(
    client: httpx.AsyncClient, httpx_mock: HTTPXMock
) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["10.0.0.1"] if host == "inside.example" else [PUBLIC]

    httpx_mock.add_response()
    outbound = Outbound(client, allow_loopback=False, resolve=resolve)
    with pytest.raises(Failed):
        await outbound.run(talk(URL, "https://inside.example/"))
    assert len(httpx_mock.get_requests()) == 1


async def test_provider_which_never_answers_fails_after_timeout(
    client: httpx.AsyncClient, httpx_mock: HTTPXMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    real = loop.time

    async def never(request: httpx.Request) -> httpx.Response:
        monkeypatch.setattr(loop, "time", lambda: real() + SECONDS_A_REQUEST + 1)
        await loop.create_future()
        raise AssertionError

    httpx_mock.add_callback(never)
    outbound = Outbound(client, allow_loopback=False, resolve=resolving(PUBLIC))
    with pytest.raises(Failed):
        await outbound.run(talk())


@pytest.mark.parametrize("url", ["http://127.0.0.1:8766/a", "http://localhost/a", "http://[::1]/a"])
async def test_loopback_requests_bypass_configured_proxy(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://proxy.example:3128")
    outbound = Outbound(None, allow_loopback=True)
    about: Any = {"base_url": "https://api.example", "on_wire": lambda request: request}
    async with outbound.client(auth=httpx.Auth(), **about) as client:
        chosen: Any = client._transport_for_url(httpx.URL(url))
        other: Any = client._transport_for_url(httpx.URL("https://api.example/a"))
        there, elsewhere = chosen._inner, other._inner
    assert there is client._transport
    assert elsewhere is not client._transport
