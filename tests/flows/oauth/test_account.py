"""The access token of an account: sent to the provider's hosts, and to no other host."""

import asyncio
import copy
import dataclasses
import json
import pickle
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import datetime
from typing import Any, TypeVar

import httpx
import msgspec
import pydantic_core
import pytest
from mcp.server.mcpserver.utilities.func_metadata import func_metadata

from flows.elicitation.states import Json
from flows.oauth.account import Account, BearerAuth, KeyTransport, account_of
from flows.question import OnWire
from tests.support.clock import NOON

T = TypeVar("T")

KEY = "gho_the_key_itself"
CONTENT: dict[str, Any] = {
    "provider": "github",
    "id": "583231",
    "label": "octocat",
    "name": "The Octocat",
    "picture": None,
    "scopes": ["repo"],
    "access_token": KEY,
    "api": "https://api.github.com",
    "api_hosts": ["https://api.github.com", "https://uploads.github.com"],
}
Answer = Callable[[httpx.Request], httpx.Response]


class Wire:
    """A fake of the service behind an account. `answer` returns the response to each request."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.seen: list[httpx.Request] = []
        self.refused: list[tuple[str, str]] = []
        self.newer: str | None = None
        self._answer = answer or (lambda _: httpx.Response(200))

    def client(self, *, base_url: str, auth: httpx.Auth, on_wire: OnWire) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=base_url,
            auth=auth,
            follow_redirects=True,
            transport=KeyTransport(httpx.MockTransport(self._send), on_wire),
        )

    def sync_client(self, *, base_url: str, auth: httpx.Auth, on_wire: OnWire) -> httpx.Client:
        return httpx.Client(
            base_url=base_url,
            auth=auth,
            follow_redirects=True,
            transport=KeyTransport(httpx.MockTransport(self._send), on_wire),
        )

    def now(self) -> datetime:
        return NOON

    async def invalidate(self, connection: str, refused: str) -> None:
        raise AssertionError(connection)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    async def renew(self, connection: str, refused: str) -> tuple[str, str | None] | None:
        self.refused.append((connection, refused))
        await asyncio.sleep(0)
        return None if self.newer is None else (self.newer, None)

    async def spend(self, receipt_id: str) -> Json:
        raise AssertionError(receipt_id)

    async def refund(self, receipt_id: str, *, reason: str | None) -> Json:
        raise AssertionError(receipt_id)

    def _send(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        return self._answer(request)

    @property
    def keys(self) -> list[tuple[str, bool]]:
        """The URL of each request, with True if the request had the access token."""
        return [
            (str(one.url), one.headers.get("Authorization") == f"Bearer {KEY}") for one in self.seen
        ]


def an_account(wire: Wire | None = None, **changes: Any) -> Account:
    return account_of({**CONTENT, **changes}, wire or Wire())


async def test_client_sends_access_token_to_provider_hosts() -> None:
    wire = Wire()
    async with an_account(wire).client() as api:
        await api.get("/user/repos")
        await api.post("https://uploads.github.com/x")
        await api.get("https://api.github.com:443/user")
    assert wire.keys == [
        ("https://api.github.com/user/repos", True),
        ("https://uploads.github.com/x", True),
        ("https://api.github.com/user", True),
    ]


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example/",
        "http://api.github.com/",
        "https://api.github.com:8443/",
        "https://api.github.com.evil.example/",
        "https://evil.example/https://api.github.com",
        "https://evil.example?https://api.github.com/",
        "https://github.com/",
        "https://xapi.github.com/",
    ],
)
async def test_client_sends_no_access_token_to_other_addresses(address: str) -> None:
    wire = Wire()
    async with an_account(wire).client() as api:
        await api.get(address)
    assert [has_key for _, has_key in wire.keys] == [False]
    assert "Authorization" not in wire.seen[0].headers


async def test_user_name_in_url_does_not_make_host_a_provider_host() -> None:
    wire = Wire()
    async with an_account(wire).client() as api:
        await api.get("https://api.github.com@evil.example/")
    assert KEY not in wire.seen[0].headers.get("Authorization", "")


async def test_access_token_follows_redirect_within_provider_only() -> None:
    places = {
        "/old": "https://api.github.com/new",
        "/new": "https://codeload.example/archive",
        "/archive": "https://api.github.com.evil.example/",
    }

    def answer(request: httpx.Request) -> httpx.Response:
        there = places.get(request.url.path)
        return httpx.Response(302, headers={"Location": there}) if there else httpx.Response(200)

    wire = Wire(answer)
    async with an_account(wire).client() as api:
        await api.get("/old")
    assert wire.keys == [
        ("https://api.github.com/old", True),
        ("https://api.github.com/new", True),
        ("https://codeload.example/archive", False),
        ("https://api.github.com.evil.example/", False),
    ]


async def test_redirect_from_foreign_host_does_not_receive_access_token() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "evil.example":
            return httpx.Response(302, headers={"Location": "https://api.github.com/user"})
        return httpx.Response(200)

    wire = Wire(answer)
    async with an_account(wire).client() as api:
        await api.get("https://evil.example/")
    assert wire.keys == [("https://evil.example/", False), ("https://api.github.com/user", False)]


@pytest.mark.parametrize(
    "shown",
    [
        repr,
        str,
        lambda one: f"{one}",
        lambda one: f"{one!r}",
        lambda one: json.dumps(one, default=str),
    ],
)
def test_repr_of_account_hides_access_token(shown: Callable[[object], str]) -> None:
    account = an_account()
    assert "octocat" in shown(account)
    assert "'***'" in shown(account)
    assert KEY not in shown(account)
    assert KEY not in shown(BearerAuth(KEY, origins=("https://api.github.com",)))


def test_account_returned_by_tool_does_not_reveal_access_token() -> None:
    async def tool() -> Account:
        return an_account()

    account = an_account()
    assert KEY not in pydantic_core.to_json([account], fallback=str).decode()
    assert KEY not in str(func_metadata(tool).convert_result(account))


@pytest.mark.parametrize(
    "taken_apart",
    [
        pickle.dumps,
        copy.copy,
        copy.deepcopy,
        vars,
        msgspec.to_builtins,
        msgspec.json.encode,
        dataclasses.asdict,
    ],
)
def test_account_cannot_be_copied_pickled_or_serialized(
    taken_apart: Callable[[Any], object],
) -> None:
    with pytest.raises(TypeError):
        taken_apart(an_account())
    if taken_apart is not vars:  # httpx.Auth has a __dict__
        with pytest.raises(TypeError):
            taken_apart(BearerAuth(KEY, origins=()))


def test_access_token_is_available_as_attribute() -> None:
    assert an_account().access_token == KEY


def test_accounts_are_compared_by_their_data() -> None:
    assert an_account() == an_account(Wire())
    assert hash(an_account()) == hash(an_account())
    assert an_account() != an_account(access_token="gho_new")
    assert an_account() != an_account(id="1")
    assert an_account() != CONTENT


def test_content_without_account_fields_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        account_of({"account": "a1"}, Wire())


def needs(key: str, *, elsewhere: int = 200) -> Answer:
    """Return an API that accepts only the token `key`. Other hosts respond with `elsewhere`."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host != "api.github.com":
            return httpx.Response(elsewhere)
        if request.url.path == "/away":
            return httpx.Response(302, headers={"Location": "https://codeload.example/archive"})
        is_good = request.headers.get("Authorization") == f"Bearer {key}"
        return httpx.Response(200 if is_good else 401, content=request.content)

    return answer


def a_renewable(wire: Wire) -> Account:
    wire.newer = "gho_newer"
    return an_account(wire, connection="c1")


async def test_refused_token_is_refreshed_once_and_request_is_repeated() -> None:
    wire = Wire(needs("gho_newer"))
    account = a_renewable(wire)
    async with account.client() as api:
        assert (await api.get("/user")).status_code == 200
        assert (await api.post("/user", json={"a": 1})).json() == {"a": 1}
    async with account.client() as api:
        assert (await api.get("/user")).status_code == 200
    assert wire.refused == [("c1", KEY)]
    assert len(wire.seen) == 4
    assert account.access_token == KEY  # the access token that the tool received


async def test_request_with_replayable_body_is_repeated() -> None:
    wire = Wire(needs("gho_newer"))
    async with a_renewable(wire).client() as api:
        assert (await api.put("/user", content=b"abc")).content == b"abc"


async def test_request_with_streamed_body_is_not_repeated() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"abc"

    wire = Wire(needs("gho_newer"))
    async with a_renewable(wire).client() as api:
        assert (await api.put("/user", content=parts())).status_code == 401
        assert len(wire.seen) == 1
        # The failed request renewed the access token, so the next request succeeds.
        assert (await api.put("/user", content=parts())).status_code == 200
    assert wire.refused == [("c1", KEY)]


async def test_refused_file_upload_reports_refused_token_and_is_not_repeated() -> None:
    wire = Wire(needs("gho_newer"))
    async with an_account(wire, connection="c1").client() as api:
        files = {"file": ("a.txt", b"abc")}
        assert (await api.post("/user", files=files)).status_code == 401
    assert wire.refused == [("c1", KEY)]
    assert len(wire.seen) == 1


async def test_fifty_refused_requests_request_refresh_of_same_token() -> None:
    wire = Wire(needs("gho_newer"))
    async with a_renewable(wire).client() as api:
        replies = await asyncio.gather(*(api.get("/user") for _ in range(50)))
    assert {reply.status_code for reply in replies} == {200}
    assert set(wire.refused) == {("c1", KEY)}


async def test_refused_request_is_repeated_only_once() -> None:
    wire = Wire(needs("gho_another"))
    async with a_renewable(wire).client() as api:
        assert (await api.get("/user")).status_code == 401
    assert len(wire.seen) == 2


def test_sync_client_refreshes_token_and_repeats_request() -> None:
    def parts() -> Iterator[bytes]:
        yield b"abc"

    wire = Wire(needs("gho_newer"))
    account = a_renewable(wire)
    with account.sync_client() as api:
        assert api.put("/user", content=parts()).status_code == 401
        assert api.post("/user", json={"a": 1}).json() == {"a": 1}
    assert wire.refused == [("c1", KEY)]
    assert len(wire.seen) == 2
    another = Wire(needs("gho_newer"))
    with a_renewable(another).sync_client() as api:
        assert api.get("/user").status_code == 200
        assert api.get("https://evil.example/").status_code == 200
    assert "Authorization" not in another.seen[-1].headers
    with an_account(Wire(needs("gho_newer"))).sync_client() as api:
        assert api.get("/user").status_code == 401


@pytest.mark.parametrize("newer", ["a", "z"])
def test_refused_sync_request_uses_token_that_another_request_refreshed(newer: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if len(wire.seen) == 1:
            assert api.get("/user").status_code == 200
        return needs(newer)(request)

    wire = Wire(answer)
    wire.newer = newer
    with an_account(wire, connection="c1").sync_client() as api:
        assert api.get("/user").status_code == 200
    assert wire.refused == [("c1", KEY)]


async def test_request_stays_refused_if_token_cannot_be_refreshed() -> None:
    wire = Wire(needs("gho_newer"))
    async with an_account(wire, connection="c1").client() as api:
        assert (await api.get("/user")).status_code == 401
    assert len(wire.seen) == 1
    async with an_account(wire).client() as api:
        assert (await api.get("/user")).status_code == 401
    assert wire.refused == [("c1", KEY)]


@pytest.mark.parametrize("url", ["https://evil.example/", "https://api.github.com/away"])
async def test_refusal_by_another_host_triggers_no_refresh(url: str) -> None:
    wire = Wire(needs("gho_newer", elsewhere=401))
    async with a_renewable(wire).client() as api:
        assert (await api.get(url)).status_code == 401
    assert wire.refused == []
    elsewhere = [request for request in wire.seen if request.url.host != "api.github.com"]
    assert len(elsewhere) == 1
    assert "Authorization" not in elsewhere[0].headers


async def test_custom_authorization_header_triggers_no_refresh() -> None:
    wire = Wire(lambda _: httpx.Response(401))
    async with a_renewable(wire).client() as api:
        await api.get("https://evil.example/", headers={"Authorization": f"Bearer {KEY}"})
    assert wire.refused == []
    assert len(wire.seen) == 1


def test_client_without_refresh_returns_the_first_response() -> None:
    wire = Wire(needs("gho_newer"))
    auth = BearerAuth(KEY, origins=("https://api.github.com",), renew=None)
    with wire.sync_client(base_url="", auth=auth, on_wire=auth.on_wire) as api:
        assert api.get("https://api.github.com/user").status_code == 401
    assert len(wire.seen) == 1
