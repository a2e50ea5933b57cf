"""Avatars: which images are fetched, which are refused, and how the results are cached."""

import asyncio
import gzip
import logging
import zlib
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest
from pytest_httpx import HTTPXMock, IteratorStream

from tests.support.clock import Clock
from webapp.http.client import Outbound
from webapp.oauth.avatars import (
    BETWEEN_PICTURES,
    ENTRY_BYTES,
    FETCHES_AT_ONCE,
    KEPT_BYTES_AT_MOST,
    KEPT_FOR,
    NOT_ASKED_AGAIN_FOR,
    PICTURE_BYTES_AT_MOST,
    PICTURES_AT_ONCE,
    REQUESTS_AT_MOST,
    SECONDS_AT_MOST,
    Avatar,
    Avatars,
)
from webapp.sandbox.authorization.people import PEOPLE

URL = "https://avatars.example/u/1?v=4"
SITE = "https://provider.example"
HERE = "http://127.0.0.1:8766"
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
STARTS = {
    "image/png": PNG,
    "image/jpeg": b"\xff\xd8\xff\xe0" + b"\0" * 20,
    "image/gif": b"GIF89a" + b"\0" * 20,
    "image/webp": b"RIFF\0\0\0\0WEBPVP8 ",
}
INSIDE = {"inside.example": "10.0.0.1", "linked.example": "169.254.169.254"}
HERE_TOO = "here.example"  # another name of this machine


async def resolve(host: str, port: int) -> Sequence[str]:
    if host in ("127.0.0.1", "localhost", "::1", HERE_TOO):
        return ["::1" if host == "::1" else "127.0.0.1"]
    return [INSIDE.get(host, "93.184.215.14")]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def outbound() -> AsyncIterator[Outbound]:
    """Open the outbound HTTP client of a server that runs on loopback."""
    async with httpx.AsyncClient(cookies={"session": "ours"}) as client:
        yield Outbound(client, allow_loopback=True, resolve=resolve)


@pytest.fixture
def pictures(outbound: Outbound, clock: Clock) -> Avatars:
    return Avatars(outbound=outbound, clock=clock)


async def get(
    pictures: Avatars, address: str = URL, *, provider: str | None = SITE, owner: str = "ann"
) -> Avatar | None:
    return await pictures.get(address, provider=provider, owner=owner)


# Valid images.


@pytest.mark.parametrize("media_type", STARTS)
async def test_it_is_what_its_bytes_say_whatever_it_came_as(
    pictures: Avatars, httpx_mock: HTTPXMock, media_type: str
) -> None:
    httpx_mock.add_response(
        content=STARTS[media_type], headers={"content-type": "text/html", "set-cookie": "a=b"}
    )
    assert await get(pictures) == Avatar(content=STARTS[media_type], media_type=media_type)


@pytest.mark.parametrize(
    "content",
    [
        b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
        b'<?xml version="1.0"?><svg/>',
        b"<!doctype html><script>alert(1)</script>",
        b"<html>" + PNG,
        b" " + PNG,
        b"GIF88a" + b"\0" * 20,
        b"RIFF\0\0\0\0WAVEfmt ",
        b"BM" + b"\0" * 20,
        b"\0\0\0\x1cftypavif",
        b"%PDF-1.7",
        b"\x89PNG",
        b"",
    ],
)
async def test_nothing_else_is_one_whatever_it_is_called(
    pictures: Avatars, httpx_mock: HTTPXMock, content: bytes
) -> None:
    httpx_mock.add_response(content=content, headers={"content-type": "image/png"})
    assert await get(pictures) is None


@pytest.mark.parametrize("status", [201, 206, 304, 401, 404, 500])
async def test_only_a_plain_yes_is_taken(
    pictures: Avatars, httpx_mock: HTTPXMock, status: int
) -> None:
    httpx_mock.add_response(status_code=status, content=PNG)
    assert await get(pictures) is None


async def test_the_largest_is_taken_and_a_larger_one_is_not(
    pictures: Avatars, httpx_mock: HTTPXMock
) -> None:
    whole = PNG.ljust(PICTURE_BYTES_AT_MOST, b"\0")
    httpx_mock.add_response(url=URL, content=whole)
    httpx_mock.add_response(url=f"{SITE}/large", content=whole + b"\0")
    found = await get(pictures)
    assert found is not None
    assert len(found.content) == PICTURE_BYTES_AT_MOST
    assert await get(pictures, f"{SITE}/large") is None


async def test_what_has_no_end_is_cut_off(pictures: Avatars, httpx_mock: HTTPXMock) -> None:
    sent = 0

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            nonlocal sent
            yield PNG
            while True:
                sent += 1
                yield b"\0" * 65_536

    httpx_mock.add_response(stream=Endless())
    assert await get(pictures) is None
    assert sent <= PICTURE_BYTES_AT_MOST / 65_536 + 1


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [("gzip", gzip.compress(PNG)), ("deflate", zlib.compress(PNG))],
    ids=["gzip", "deflate"],
)
async def test_what_is_packed_is_not_unpacked(
    pictures: Avatars, httpx_mock: HTTPXMock, encoding: str, packed: bytes
) -> None:
    httpx_mock.add_response(stream=IteratorStream([packed]), headers={"content-encoding": encoding})
    assert await get(pictures) is None


async def test_what_never_comes_is_given_up(
    pictures: Avatars,
    httpx_mock: HTTPXMock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "webapp.oauth.avatars")
    loop = asyncio.get_running_loop()
    real = loop.time

    async def never(request: httpx.Request) -> httpx.Response:
        monkeypatch.setattr(loop, "time", lambda: real() + SECONDS_AT_MOST + 1)
        await loop.create_future()
        raise AssertionError

    httpx_mock.add_callback(never)
    assert await get(pictures) is None
    # The time limit of an image is shorter than that of a single request.
    said = [record for record in caplog.records if record.name == "webapp.oauth.avatars"]
    assert [vars(record)["why"] for record in said] == ["TimeoutError"]


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("no"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("rubbish"),
        httpx.DecodingError("rubbish"),
    ],
)
async def test_a_failing_network_is_no_picture(
    pictures: Avatars, httpx_mock: HTTPXMock, error: httpx.HTTPError
) -> None:
    httpx_mock.add_exception(error)
    assert await get(pictures) is None


# Allowed addresses.


async def test_the_request_says_nothing_of_anybody(
    pictures: Avatars, httpx_mock: HTTPXMock
) -> None:
    httpx_mock.add_response(content=PNG)
    await get(pictures)
    (request,) = httpx_mock.get_requests()
    assert request.method == "GET"
    assert set(request.headers) == {"host", "accept", "accept-encoding", "user-agent"}
    assert request.content == b""


@pytest.mark.parametrize(
    "address",
    [
        "https://inside.example/a.png",
        "https://linked.example/a.png",
        "https://127.0.0.1/a.png",
        "https://localhost/a.png",
        f"https://{HERE_TOO}/a.png",
        "http://127.0.0.1:8765/connections",
        "http://127.0.0.1:8767/a.png",
        "http://localhost:8766/a.png",
        "http://127.0.0.1:8766@avatars.example/a.png",
        "https://ann:secret@avatars.example/a.png",
        "http://avatars.example/a.png",
        "https://avatars.example:8443/a.png",
        "https://avatars.example:22/a.png",
        "ftp://avatars.example/a.png",
        "file:///etc/passwd",
        "data:image/png;base64,iVBORw0KGgo=",
        "javascript:alert(1)",
        "//avatars.example/a.png",
        "https://avatars.example\\@inside.example/",
        "https://[::1]/a.png",
        "https://[bad/a.png",
        "https:///a.png",
        "https://a\nb.example/",
        "https://" + "a" * 9000,
        "",
    ],
)
async def test_nobody_else_is_asked_for_one(
    pictures: Avatars, httpx_mock: HTTPXMock, address: str
) -> None:
    assert await get(pictures, address, provider=HERE) is None
    assert httpx_mock.get_requests() == []


async def test_the_provider_itself_may_be_on_this_machine_or_on_a_port_of_its_own(
    pictures: Avatars, outbound: Outbound, clock: Clock, httpx_mock: HTTPXMock
) -> None:
    for origin in (HERE, "https://login.example:8443", f"https://{HERE_TOO}"):
        httpx_mock.add_response(url=f"{origin}/a.png", content=PNG)
        assert await get(pictures, f"{origin}/a.png", provider=origin) is not None
        # An image that was fetched for one provider is not shown for another with a different
        # origin.
        assert await get(pictures, f"{origin}/a.png", provider=SITE) is None
        assert await get(pictures, f"{origin}/a.png", provider=None) is None


async def test_a_server_that_others_reach_asks_nobody_inside(
    clock: Clock, httpx_mock: HTTPXMock
) -> None:
    async with httpx.AsyncClient() as client:
        outbound = Outbound(client, allow_loopback=False, resolve=resolve)
        pictures = Avatars(outbound=outbound, clock=clock)
        for origin in (HERE, f"https://{HERE_TOO}", "https://inside.example"):
            assert await get(pictures, f"{origin}/a.png", provider=origin) is None
    assert httpx_mock.get_requests() == []


async def test_a_service_that_talks_to_nobody_has_none(clock: Clock) -> None:
    assert await get(Avatars(outbound=Outbound.none(), clock=clock)) is None


async def test_a_redirect_is_followed_to_where_could_have_been_asked_at_once(
    pictures: Avatars, httpx_mock: HTTPXMock
) -> None:
    httpx_mock.add_response(url=URL, status_code=302, headers={"location": "/there"})
    httpx_mock.add_response(
        url="https://avatars.example/there",
        status_code=301,
        headers={"location": "https://cdn.example/a.png"},
    )
    httpx_mock.add_response(url="https://cdn.example/a.png", content=PNG)
    assert await get(pictures) is not None
    assert len(httpx_mock.get_requests()) == REQUESTS_AT_MOST


@pytest.mark.parametrize(
    "location",
    [
        "https://inside.example/",
        "https://linked.example/latest/meta-data/",
        "http://169.254.169.254/",
        "http://127.0.0.1:8765/connections",
        "https://localhost/",
        f"https://{HERE_TOO}/",
        "http://avatars.example/u/1",
        "https://cdn.example:8443/a.png",
        "https://ann:secret@cdn.example/a.png",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://[bad/",
        "https://\x7f/",
        "",
    ],
)
async def test_a_redirect_leads_nowhere_else(
    pictures: Avatars, httpx_mock: HTTPXMock, location: str
) -> None:
    httpx_mock.add_response(
        status_code=302, headers={"location": location}, content=PNG, is_reusable=True
    )
    assert await get(pictures) is None
    assert {str(request.url) for request in httpx_mock.get_requests()} == {URL}


async def test_redirects_come_to_an_end(pictures: Avatars, httpx_mock: HTTPXMock) -> None:
    httpx_mock.add_response(status_code=302, headers={"location": "/again"}, is_reusable=True)
    assert await get(pictures) is None
    assert len(httpx_mock.get_requests()) == REQUESTS_AT_MOST


# Caching.


async def test_it_is_fetched_once_while_it_is_remembered(
    pictures: Avatars, httpx_mock: HTTPXMock, clock: Clock
) -> None:
    httpx_mock.add_response(content=PNG, is_reusable=True)
    first = await get(pictures)
    clock.tick(seconds=KEPT_FOR.total_seconds() - 1)
    assert await get(pictures, owner="bob") == first
    assert len(httpx_mock.get_requests()) == 1
    clock.tick(seconds=1)
    assert await get(pictures) == first
    assert len(httpx_mock.get_requests()) == 2


async def test_that_there_was_none_is_remembered_too(
    pictures: Avatars, httpx_mock: HTTPXMock, clock: Clock
) -> None:
    httpx_mock.add_response(status_code=500)
    assert await get(pictures) is None
    clock.tick(seconds=NOT_ASKED_AGAIN_FOR.total_seconds() - 1)
    assert await get(pictures) is None
    clock.tick(seconds=1)
    httpx_mock.add_response(content=PNG)
    assert await get(pictures) is not None


async def test_who_comes_meanwhile_waits_for_the_one_that_is_under_way(
    pictures: Avatars, httpx_mock: HTTPXMock
) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def held(request: httpx.Request) -> httpx.Response:
        asked.set()
        await answered.wait()
        return httpx.Response(200, content=PNG)

    httpx_mock.add_callback(held, is_reusable=True)
    looks = [asyncio.create_task(get(pictures)) for _ in range(5)]
    await asked.wait()
    looks[0].cancel()  # the caller that fetches is cancelled, so the next caller fetches
    answered.set()
    _, *others = await asyncio.gather(*looks, return_exceptions=True)
    assert [one is not None for one in others] == [True] * 4
    assert len(httpx_mock.get_requests()) == 2


async def test_there_are_not_more_under_way_than_a_few(
    pictures: Avatars, httpx_mock: HTTPXMock
) -> None:
    begun, full, answered = 0, asyncio.Event(), asyncio.Event()

    async def counted(request: httpx.Request) -> httpx.Response:
        nonlocal begun
        begun += 1
        if begun == FETCHES_AT_ONCE:
            full.set()
        await answered.wait()
        return httpx.Response(200, content=PNG)

    httpx_mock.add_callback(counted, is_reusable=True)
    some = range(FETCHES_AT_ONCE + 3)
    looks = [
        asyncio.create_task(get(pictures, f"{SITE}/{one}", owner=f"owner {one}")) for one in some
    ]
    await full.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert begun == FETCHES_AT_ONCE
    answered.set()
    assert None not in await asyncio.gather(*looks)


async def test_one_owner_has_many_fetched_slowly_and_holds_nobody_up(
    pictures: Avatars, httpx_mock: HTTPXMock, clock: Clock
) -> None:
    httpx_mock.add_response(content=PNG, is_reusable=True)
    some = [f"{SITE}/{one}" for one in range(PICTURES_AT_ONCE + 1)]
    found = [await get(pictures, address) for address in some]
    assert found.count(None) == 1
    assert found[-1] is None
    assert await get(pictures, some[-1], owner="bob") is not None
    assert await get(pictures, some[0]) is not None  # cached images are not limited
    assert await get(pictures, f"{SITE}/next") is None
    clock.now += BETWEEN_PICTURES
    assert await get(pictures, f"{SITE}/next") is not None


async def test_the_memory_has_an_end_and_the_one_unused_for_longest_makes_room(
    pictures: Avatars, httpx_mock: HTTPXMock
) -> None:
    whole = PNG.ljust(PICTURE_BYTES_AT_MOST, b"\0")
    httpx_mock.add_response(content=whole, is_reusable=True)
    room = KEPT_BYTES_AT_MOST // (PICTURE_BYTES_AT_MOST + ENTRY_BYTES)
    for one in range(room):
        await get(pictures, f"{SITE}/{one}", owner=f"owner {one}")
    await get(pictures, f"{SITE}/0")
    await get(pictures, f"{SITE}/more", owner="bob")
    before = len(httpx_mock.get_requests())
    await get(pictures, f"{SITE}/0")
    assert len(httpx_mock.get_requests()) == before
    await get(pictures, f"{SITE}/1")
    assert len(httpx_mock.get_requests()) == before + 1


async def test_one_that_is_fetched_again_and_again_takes_the_room_of_one(
    pictures: Avatars, httpx_mock: HTTPXMock, clock: Clock
) -> None:
    whole = PNG.ljust(PICTURE_BYTES_AT_MOST, b"\0")
    httpx_mock.add_response(content=whole, is_reusable=True)
    for _ in range(KEPT_BYTES_AT_MOST // PICTURE_BYTES_AT_MOST + 1):
        await get(pictures)
        clock.now += KEPT_FOR
    await get(pictures)
    await get(pictures, f"{SITE}/another")
    before = len(httpx_mock.get_requests())
    assert await get(pictures) is not None
    assert len(httpx_mock.get_requests()) == before


# The sandbox's own images.


def test_the_pictures_of_the_sandbox_are_two_and_small() -> None:
    drawn = {person.picture for person in PEOPLE}
    assert len(drawn) == len(PEOPLE)
    assert all(len(picture) < 1024 for picture in drawn)


# Other data in responses.


async def test_headers_beyond_ascii_do_no_harm(pictures: Avatars, httpx_mock: HTTPXMock) -> None:
    name = (b"content-disposition", 'inline; filename="André.png"'.encode())
    httpx_mock.add_response(content=PNG, headers=[name])
    assert await get(pictures) == Avatar(content=PNG, media_type="image/png")


@pytest.mark.parametrize("location", ["https://xn--/a.png", "https:////[", "https://[::1"])
async def test_a_redirect_to_what_is_no_address_is_no_picture_and_not_asked_again(
    pictures: Avatars, httpx_mock: HTTPXMock, location: str
) -> None:
    httpx_mock.add_response(status_code=302, headers={"location": location})
    assert await get(pictures) is None
    assert await get(pictures) is None
    assert len(httpx_mock.get_requests()) == 1


async def test_a_picture_that_is_forgotten_is_fetched_again(
    pictures: Avatars, httpx_mock: HTTPXMock
) -> None:
    httpx_mock.add_response(content=PNG, is_reusable=True)
    for address in (URL, f"{URL}&other"):
        await get(pictures, address)
    pictures.forget(URL)
    pictures.forget("https://avatars.example/of-nobody")
    for address in (URL, f"{URL}&other"):
        await get(pictures, address)
    asked = [str(request.url) for request in httpx_mock.get_requests()]
    assert asked == [URL, f"{URL}&other", URL]
