"""Attacks on the proxy of the HTTP API, by a program and by a provider."""

import asyncio
from collections.abc import AsyncIterator
from itertools import repeat
from typing import Any

import httpx
import pytest
from pytest_httpx import HTTPXMock, IteratorStream

from flows import elicit
from tests.support.api_people import PeopleEnv, people_env
from tests.support.api_program import ACCOUNT, Program, program_at
from tests.support.asking_env import AskingEnv, asking_env
from tests.support.living import living
from tests.support.mcp_sandbox import Guest
from tests.support.mcp_server import TLS, eventually
from webapp.api.access import PERSON_HEADER, PROXIED_AT_ONCE
from webapp.api.proxy import ANSWER_BYTES_AT_MOST, REQUEST_BYTES_AT_MOST
from webapp.client import Elicit

PLAYED = "/github/api/played"  # at the provider's host, but a test answers
ADDRESSES = (
    "https://evil.example/",
    "http://{host}.evil.example/",
    "http://evil.example/{host}",
    "http://{host}@evil.example/",
    "http://ann:secret@{host}/",
    "http://@{host}/",
    "http://{host}\\@evil.example/",
    "http:\\\\{host}\\",
    "http://evil.example\\{host}",
    "http://{host}%2f@evil.example/",
    "//{host}/github/api/user",
    "///{host}/github/api/user",
    "http:/{host}/github/api/user",
    "/github/api/user",
    "{host}/github/api/user",
    "",
    "https://{host}/github/api/user",  # the same host by another scheme
    "http://{name}/github/api/user",  # with its default port
    "http://{name}:1/github/api/user",
    "http://{name}:99999/",
    "http://{name}:{port}0/",
    "http://localhost:{port}/",
    "http://127.1:{port}/",
    "http://2130706433:{port}/",
    "http://0x7f.0.0.1:{port}/",
    "http://[::1]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://[fe80::1%25eth0]/",
    "http://[::1/",
    "http://①②⑦.⓪.⓪.①:{port}/",
    "http://xn--pi-jia.github.com/",
    "http://аpi.github.com/",  # noqa: RUF001 - a Cyrillic letter is the attack
    "http://169.254.169.254/latest/meta-data/",
    "http://{host}/\r\nHost: evil.example",
    "http://{host}/\nX-Evil: 1",
    "http://{host}/ HTTP/1.1",
    "http://{host}/\x00",
    "http://{host}/\x7f",
    "http://{host}/#fragment",
    "file:///etc/passwd",
    "data:text/plain,x",
    "javascript:alert(1)",
    "unix:///run/docker.sock",
    "http://{host}/" + "x" * 8200,
)
pytestmark = pytest.mark.httpx_mock(
    should_mock=lambda request: request.url.path == PLAYED or request.url.host != "127.0.0.1"
)


@pytest.fixture
async def here() -> AsyncIterator[AskingEnv]:
    async with living(asking_env()) as here:
        yield here


@pytest.fixture
async def people() -> AsyncIterator[PeopleEnv]:
    async with living(people_env()) as people:
        yield people


@pytest.fixture
async def shop(here: AskingEnv) -> AsyncIterator[Program]:
    async with program_at(here) as program:
        yield program


@pytest.fixture
async def account(here: AskingEnv, shop: Program) -> str:
    return await shop.connected(here)


def near() -> httpx.AsyncHTTPTransport:
    return httpx.AsyncHTTPTransport(verify=TLS)


async def called(
    here: AskingEnv, program: Program, account: str, *, url: str | None = None, **more: Any
) -> httpx.Response:
    query = {"user": "ann", "url": f"{here.sandbox.url}{PLAYED}" if url is None else url}
    method = more.pop("method", "GET")
    return await program.at(f"accounts/{account}/proxy", method=method, params=query, **more)


async def token_of(here: AskingEnv) -> str:
    (account,) = await here.connections()
    return account.access_token


async def test_url_outside_the_provider_is_refused(
    here: AskingEnv, shop: Program, account: str, httpx_mock: HTTPXMock
) -> None:
    host = here.sandbox.url.removeprefix("http://")
    name, _, port = host.partition(":")
    for url in ADDRESSES:
        meant = url.replace("{host}", host).replace("{name}", name).replace("{port}", port)
        refused = await called(here, shop, account, url=meant)
        assert refused.status_code in (400, 414), (url, refused.text)
    assert not httpx_mock.get_requests()


async def test_request_with_two_urls_uses_only_the_last_url(
    here: AskingEnv, shop: Program, account: str
) -> None:
    good, bad = f"{here.sandbox.url}/github/api/user", "https://evil.example/"
    for pair, status in (((good, bad), 400), ((bad, good), 200)):
        answer = await shop.at(f"accounts/{account}/proxy", params={"user": "ann", "url": [*pair]})
        assert answer.status_code == status, pair
        assert ("octocat" in answer.text) is (status == 200)


async def test_headers_identifying_the_program_are_not_sent_to_provider(
    here: AskingEnv, shop: Program, account: str, httpx_mock: HTTPXMock
) -> None:
    httpx_mock.add_response()
    about = {
        "cookie": "user=ann",
        "x-forwarded-for": "10.0.0.1",
        "x-forwarded-host": "evil.example",
        "forwarded": "for=10.0.0.1",
        "connection": "keep-alive, x-hop",
        "x-hop": "1",
        "te": "trailers",
        "proxy-authorization": "Basic x",
        "x-mine": "kept",
    }
    assert (await called(here, shop, account, headers=about)).status_code == 200
    (request,) = httpx_mock.get_requests()
    assert request.headers["authorization"] == f"Bearer {await token_of(here)}"
    assert request.headers["host"] == here.sandbox.url.removeprefix("http://")
    assert set(request.headers) <= {
        *("host", "authorization", "accept", "accept-encoding", "user-agent", "x-mine"),
        "content-length",
    }
    assert shop.key not in str(request.headers.raw)


async def test_second_length_or_encoding_header_does_not_smuggle_request(
    here: AskingEnv, shop: Program, account: str, httpx_mock: HTTPXMock
) -> None:
    httpx_mock.add_response()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"GET /user HTTP/1.1\r\nHost: x\r\n\r\n"

    answer = await called(here, shop, account, method="POST", content=pieces())
    assert answer.status_code == 200
    (request,) = httpx_mock.get_requests()
    assert request.headers["content-length"] == "31"
    assert "transfer-encoding" not in request.headers


# Headers that a browser, a cache or a reverse proxy obeys. The proxy must remove all of them.
HOSTILE = {
    "set-cookie": "user=evil",
    "clear-site-data": '"*"',
    "content-security-policy": "default-src *",
    "x-content-type-options": "off",
    "cache-control": "public, max-age=31536000",
    "access-control-allow-origin": "*",
    "strict-transport-security": "max-age=0",
    "refresh": "0; url=https://evil.example/",
    "x-accel-redirect": "/internal/secrets",
    "x-sendfile": "/etc/passwd",
    "surrogate-control": "max-age=31536000",
    "cdn-cache-control": "max-age=31536000",
    "cloudflare-cdn-cache-control": "max-age=31536000",
    "edge-control": "cache-maxage=1y",
    "x-litespeed-cache-control": "public",
    "x-litespeed-location": "/internal/secrets",
    "x-frame-options": "ALLOWALL",
    "permissions-policy": "camera=*",
    "expires": "Thu, 01 Jan 2099 00:00:00 GMT",
    "x-webkit-csp": "default-src *",
    "speculation-rules": '"/api/approvals"',
    "login-status": "logged-in",
    "www-authenticate": 'Bearer resource_metadata="https://evil.example/"',
    "sourcemap": "/api/accounts",
    "x-nobody-knows-it": "yet",
    "connection": "x-request-id",
    "x-request-id": "of this connection alone",
}
USEFUL = {
    "content-type": "text/html",
    "content-language": "de",
    "etag": '"7"',
    "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT",
    "retry-after": "7",
    "x-ratelimit-remaining": "9",
    "ratelimit-policy": "10;w=60",
    "x-oauth-scopes": "repo",
    "x-total-count": "31",
}


async def test_only_allowed_provider_headers_are_passed_on(
    here: AskingEnv, shop: Program, account: str, httpx_mock: HTTPXMock
) -> None:
    # finding: XS8
    httpx_mock.add_response(headers={**HOSTILE, **USEFUL}, content=b"<script>alert(1)</script>")
    answer = await called(here, shop, account)
    our_headers = {
        "cache-control": "no-store",
        "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
    reported = dict(answer.headers)
    for name in ("date", "server", "content-length"):
        reported.pop(name, None)
    assert reported == {**USEFUL, **our_headers}


RELATIVE = {
    "/user/repos?page=2": "{provider}/user/repos?page=2",
    "repos": "{provider}/github/api/repos",
    "?page=2": "{provider}/github/api/played?page=2",
    "../../../api/approvals": "{provider}/api/approvals",
    "": "{provider}/github/api/played",
    "https://codeload.example/a.zip?t=1": "https://codeload.example/a.zip?t=1",
}
OUR_NAMES = (
    "{us}/api/approvals",
    "//{host}/api/approvals",
    "{us}",
    "http://LOCALHOST:{port}/api/approvals",
    "http://127.0.0.1:{port}/api/approvals",
    "http://[::1]:{port}/api/approvals",
    "http://127.0.0.2:{port}/api/approvals",
    "https://127.0.0.1:{port}/api/approvals",
    "http://[::ffff:127.0.0.1]:{port}/api/approvals",
    "http://127.1:{port}/api/approvals",
    "http://2130706433:{port}/api/approvals",
    "http://0x7f000001:{port}/api/approvals",
    "http://0.0.0.0:{port}/api/approvals",
    "http://[::]:{port}/api/approvals",
    "http://x.localhost:{port}/api/approvals",
    "http://localhost.:{port}/api/approvals",
    "http://u@{host}/api/approvals",
    "\\\\{host}\\api\\approvals",
    "http:\\\\{host}/api/approvals",
    "javascript:alert(1)",
    "data:text/html,x",
    "http://①②⑦.⓪.⓪.①:{port}/api/approvals",
)


def where(here: AskingEnv, text: str) -> str:
    host = here.url.removeprefix("http://")
    named = {"us": here.url, "host": host, "port": host.partition(":")[2]}
    return text.format(provider=here.sandbox.url, **named)


async def location_of(
    here: AskingEnv, program: Program, account: str, httpx_mock: HTTPXMock, locations: list[str]
) -> str | None:
    pairs = [(b"location", each.encode()) for each in locations]
    httpx_mock.add_response(307, headers=pairs)
    answer = await called(here, program, account, method="POST")
    assert answer.status_code in (307, 502)  # an invalid address becomes a 502
    found: str | None = answer.headers.get("location")
    return found


async def test_relative_redirect_is_made_absolute(
    here: AskingEnv, shop: Program, account: str, httpx_mock: HTTPXMock
) -> None:
    # finding: XS2
    for location, meant in RELATIVE.items():
        found = await location_of(here, shop, account, httpx_mock, [location])
        assert found == where(here, meant), location


async def test_redirect_to_our_own_address_is_removed(
    here: AskingEnv, shop: Program, account: str, httpx_mock: HTTPXMock
) -> None:
    # finding: XS2
    for location in OUR_NAMES:
        found = await location_of(here, shop, account, httpx_mock, [where(here, location)])
        assert found is None, location
    two = ["https://codeload.example/a.zip", f"{here.url}/api/approvals"]
    for several in (two, two[::-1], [", ".join(two)]):
        assert await location_of(here, shop, account, httpx_mock, several) is None


async def test_link_header_is_made_absolute_and_links_to_our_address_are_removed(
    here: AskingEnv, shop: Program, account: str, httpx_mock: HTTPXMock
) -> None:
    # finding: XS2
    host = here.url.removeprefix("http://")
    links = (
        '</user?page=2>; rel="next"; title="a, <b>; c", '
        f'<{here.url}/api/approvals>; rel="last", <//{host}/api>; rel="prev", '
        '<https://docs.example/a,b>; rel="help"; anchor="/api/approvals"; results="true"'
    )
    httpx_mock.add_response(headers={"link": links, "content-location": "/user/7"})
    answer = await called(here, shop, account)
    provider = here.sandbox.url
    assert answer.headers["content-location"] == f"{provider}/user/7"
    assert answer.headers["link"] == (
        f'<{provider}/user?page=2>; rel="next"; title="a, <b>; c", '
        '<https://docs.example/a,b>; rel="help"'
    )
    for bad in ("</user", '</user>; rel="next', "<a>;;;rel, <", "x" * 9000):
        httpx_mock.add_response(headers={"link": bad})
        assert "link" not in (await called(here, shop, account)).headers, bad


async def test_http_libraries_do_not_follow_redirect_when_user_token_is_sent(
    people: PeopleEnv, httpx_mock: HTTPXMock
) -> None:
    # finding: XS2
    here = people.here
    async with program_at(here) as shop:
        acting = shop.acting_for(people.acting("alice"))
        asked = await acting.asked(ACCOUNT)
        await Guest(await people.signed_in("alice", asked["url"])).connect(asked["url"])
        account = (await acting.read(asked["id"], wait=50))["account"]["id"]
        for location, meant in (
            ("https://evil.example/", "https://evil.example/"),
            ("/user", f"{here.sandbox.url}/user"),
            (f"{here.url}/api/approvals", None),
        ):
            httpx_mock.add_response(302, headers={"location": location})
            where = {"url": f"{here.sandbox.url}{PLAYED}"}
            answer = await acting.at(f"accounts/{account}/proxy", params=where)
            assert (answer.status_code, answer.headers.get("location")) == (302, None)
            assert answer.headers.get("elicit-location") == meant
        token = people.acting("alice")
        async with Elicit(
            here.url, api_key=shop.key, run="order 8", access_token=token, transport=near()
        ):
            found = await elicit.oauth("github", scopes=["repo"])
            async with found.client() as api:  # this client sends redirects through the proxy
                httpx_mock.add_response(302, headers={"location": "/user"})
                response = await api.get(f"{here.sandbox.url}{PLAYED}")
        assert response.headers["location"] == f"{here.sandbox.url}/user"


async def test_program_following_redirects_reaches_no_route_of_our_server(
    here: AskingEnv, shop: Program, account: str, httpx_mock: HTTPXMock
) -> None:
    # finding: XS2
    payment = await shop.paid(here)
    refund = f"/api/payments/{payment['payment']['id']}/refund?user=ann"
    asked = await shop.asked({"kind": "confirm", "message": "Delete it?"})
    for status, method, path in (
        (307, "POST", refund),
        (308, "DELETE", f"/api/accounts/{account}?user=ann"),
        (307, "POST", f"/api/questions/{asked['id']}/cancel"),
        (302, "GET", f"/api/accounts/{account}/token?user=ann"),
    ):
        for location in (path, here.url + path):
            httpx_mock.add_response(status, headers={"location": location})
            answer = await called(here, shop, account, method=method)
            found = answer.headers.get("location", "https://nowhere.example/")
            assert not found.startswith((here.url, "/"))
    data = await shop.read(payment["id"])
    assert data["payment"]["status"] == "open"
    assert (await shop.read(asked["id"]))["status"] == "pending"
    assert await here.connections()


@pytest.mark.parametrize("status", [200, 401, 500])
async def test_token_repeated_by_provider_is_redacted(
    here: AskingEnv, shop: Program, account: str, httpx_mock: HTTPXMock, status: int
) -> None:
    token = await token_of(here)

    def repeats(request: httpx.Request) -> httpx.Response:
        authorization = request.headers["authorization"]
        return httpx.Response(
            status, headers={"x-said": authorization}, json={"you said": authorization}
        )

    httpx_mock.add_callback(repeats)
    answer = await called(here, shop, account)
    assert (answer.status_code, answer.json()) == (status, {"you said": "Bearer ***"})
    assert token not in answer.text + str(answer.headers)


async def test_too_large_endless_or_compressed_provider_response_is_refused(
    here: AskingEnv, shop: Program, account: str, httpx_mock: HTTPXMock
) -> None:
    httpx_mock.add_response(content=b"x" * ANSWER_BYTES_AT_MOST)
    assert len((await called(here, shop, account)).content) == ANSWER_BYTES_AT_MOST
    httpx_mock.add_response(content=b"x" * (ANSWER_BYTES_AT_MOST + 1))
    httpx_mock.add_response(stream=IteratorStream(repeat(b"x" * 65536)))
    httpx_mock.add_response(headers={"content-encoding": "gzip"}, stream=IteratorStream([b"x"]))
    for words in ("too large", "too large", "compressed"):
        refused = await called(here, shop, account)
        assert (refused.status_code, refused.json()["code"]) == (502, "PROVIDER_FAILED")
        assert words in refused.json()["detail"]


async def test_too_large_request_body_is_not_forwarded(
    here: AskingEnv, shop: Program, account: str, httpx_mock: HTTPXMock
) -> None:
    httpx_mock.add_response()
    for size, status in ((REQUEST_BYTES_AT_MOST, 200), (REQUEST_BYTES_AT_MOST + 1, 413)):
        answer = await called(here, shop, account, method="PUT", content=b"x" * size)
        assert answer.status_code == status
    assert len(httpx_mock.get_requests()) == 1


async def test_unresponsive_provider_blocks_only_its_own_program(
    here: AskingEnv, shop: Program, account: str, httpx_mock: HTTPXMock
) -> None:
    may_answer, held = asyncio.Event(), list[httpx.Request]()

    async def waits(request: httpx.Request) -> httpx.Response:
        held.append(request)
        await may_answer.wait()
        return httpx.Response(200)

    httpx_mock.add_callback(waits, is_reusable=True)
    waiting = [asyncio.create_task(called(here, shop, account)) for _ in range(PROXIED_AT_ONCE)]
    await eventually(lambda: len(held) == PROXIED_AT_ONCE)
    refused = await called(here, shop, account)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    async with program_at(here) as second, program_at(here, program="calm") as calm:
        # a second key of the same program
        assert (await called(here, second, account)).status_code == 429
        asked = await calm.asked(ACCOUNT)
        await (await here.guest()).allow(asked["url"])
        shared = (await calm.read(asked["id"]))["account"]["id"]
        answer = await called(here, calm, shared, url=f"{here.sandbox.url}/github/api/user")
        assert answer.json()["login"] == "octocat"
    may_answer.set()
    assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}
    assert (await called(here, shop, account)).status_code == 200


async def test_request_with_user_access_token_is_not_forwarded_to_provider(
    here: AskingEnv, shop: Program, account: str, httpx_mock: HTTPXMock
) -> None:
    httpx_mock.add_response(is_optional=True)
    await called(here, shop, account, headers={PERSON_HEADER: "a-token-of-a-person"})
    assert not httpx_mock.get_requests()
