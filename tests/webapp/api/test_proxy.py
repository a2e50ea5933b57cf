"""The account proxy: it sends a program's request to the provider and returns the response."""

from typing import Any

import httpx
import pytest
from pytest_httpx import HTTPXMock

from tests.support.api_program import Program
from tests.support.asking_env import AskingEnv

PLAYED = "/github/api/played"  # a path at the provider's host that the test mocks
pytestmark = pytest.mark.httpx_mock(should_mock=lambda request: request.url.path == PLAYED)


class Account:
    """Ann's connected account, as the program reaches it."""

    def __init__(self, shop: Program, id: str, *, provider: str, key: str) -> None:
        self._shop = shop
        self.id = id
        self.provider = provider
        self.key = key

    async def call(self, path: str = PLAYED, method: str = "GET", **more: Any) -> httpx.Response:
        where = {"user": "ann", "url": f"{self.provider}{path}"}
        return await self._shop.at(f"accounts/{self.id}/proxy", method=method, params=where, **more)


@pytest.fixture
async def account(here: AskingEnv, shop: Program) -> Account:
    id = await shop.connected(here)
    (account,) = await here.connections()
    client = here.service.kinds.accounts.connections.client(account)
    assert client is not None
    return Account(shop, id, provider=client.provider.api_hosts[0], key=account.access_token)


async def test_proxy_returns_provider_response_unchanged(account: Account) -> None:
    answer = await account.call("/github/api/user?page=2")
    assert (answer.status_code, answer.json()["login"]) == (200, "octocat")
    assert answer.headers["x-oauth-scopes"] == "repo"
    assert answer.headers["content-type"] == "application/json"
    unknown = await account.call("/github/api/nothing")
    assert unknown.status_code == 404
    assert "code" not in unknown.json()  # not this server's problem details


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"])
async def test_proxy_sends_method_body_and_headers_with_access_token(
    account: Account, httpx_mock: HTTPXMock, method: str
) -> None:
    httpx_mock.add_response(201, headers={"etag": '"7"'}, content=b"\x00\xff made")
    body: dict[str, Any] = {} if method in ("GET", "HEAD") else {"content": b"\xff\x00 bytes"}
    about = {"x-wish": "yes", "idempotency-key": "7", "content-type": "application/x-thing"}
    answer = await account.call(method=method, headers=about, **body)
    assert (answer.status_code, answer.headers["etag"]) == (201, '"7"')
    assert answer.content == (b"" if method == "HEAD" else b"\x00\xff made")
    (sent,) = httpx_mock.get_requests()
    assert (sent.method, sent.content) == (method, body.get("content", b""))
    assert sent.headers["authorization"] == f"Bearer {account.key}"
    assert all(sent.headers[name] == value for name, value in about.items())


async def test_expired_access_token_is_refreshed_before_proxied_request(
    here: AskingEnv, account: Account
) -> None:
    here.clock.tick(hours=2)
    assert (await account.call("/github/api/user")).status_code == 200
    (connected,) = await here.connections()
    assert connected.access_token != account.key


async def test_access_token_refused_by_provider_is_refreshed_once(
    here: AskingEnv, account: Account, httpx_mock: HTTPXMock
) -> None:
    sent = list[tuple[str, bytes]]()

    def refuses(request: httpx.Request) -> httpx.Response:
        sent.append((request.headers["authorization"], request.content))
        is_old = sent[-1][0] == f"Bearer {account.key}"
        return httpx.Response(401 if is_old or request.method == "GET" else 200, text="told")

    httpx_mock.add_callback(refuses, is_reusable=True)
    here.clock.tick(minutes=1)
    answer = await account.call(method="POST", content=b"once")
    assert (answer.status_code, answer.text) == (200, "told")
    (first, body), (second, again) = sent
    assert (first != second, body, again) == (True, b"once", b"once")
    assert (await account.call()).status_code == 401  # the provider refuses the new token too


async def test_proxied_request_is_recorded_as_account_use(
    here: AskingEnv, account: Account
) -> None:
    await account.call("/github/api/user")
    (connected,) = await here.connections()
    assert dict(connected.used) == {"shop (API)": here.clock()}


@pytest.mark.parametrize("status", [204, 304, 404, 500, 503])
async def test_provider_status_is_passed_to_program(
    account: Account, httpx_mock: HTTPXMock, status: int
) -> None:
    httpx_mock.add_response(status, headers={"retry-after": "9"})
    answer = await account.call()
    assert (answer.status_code, answer.headers["retry-after"]) == (status, "9")


async def test_proxied_redirect_is_returned_and_not_followed(
    account: Account, httpx_mock: HTTPXMock
) -> None:
    httpx_mock.add_response(302, headers={"location": "https://evil.example/"})
    answer = await account.call()
    assert (answer.status_code, answer.headers["location"]) == (302, "https://evil.example/")
    assert len(httpx_mock.get_requests()) == 1


@pytest.mark.parametrize(
    ("trouble", "status", "code"),
    [
        (httpx.ReadTimeout("slow"), 504, "PROVIDER_TOO_SLOW"),
        (httpx.ConnectError("down"), 502, "PROVIDER_FAILED"),
        (httpx.RemoteProtocolError("odd"), 502, "PROVIDER_FAILED"),
    ],
)
async def test_unreachable_provider_returns_problem_json(
    account: Account, httpx_mock: HTTPXMock, trouble: Exception, status: int, code: str
) -> None:
    httpx_mock.add_exception(trouble)
    answer = await account.call()
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert account.key not in answer.text
