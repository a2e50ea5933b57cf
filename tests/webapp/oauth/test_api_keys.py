"""API keys and basic credentials: typed on our page, tested once, stored like tokens."""

import base64
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from flows import elicit
from flows.errors import InvalidQuestion
from flows.oauth.declaration import Carrier
from flows.oauth.provider import as_data, provider_in
from flows.providers import PersonProbe, Provider, ProviderKey, github
from tests.support.key_apis import ACME, ASKED, DESK, KEY, Api
from tests.support.mcp_server import new_server
from webapp.testing import AskedPerson, elicit_person
from webapp.testing._application import LEGACY, MODERN


def server_of(provider: Provider, path: str = "/me", **more: Any) -> Any:
    server = new_server("mcp")

    @server.tool()
    async def who(drops: bool = False) -> str:
        account = await elicit.api_key(provider, reason="To read your items")
        if drops:
            await account.invalidate()
            return "dropped"
        async with account.client() as api:
            reply = await api.get(account.api + path, **more)
        return f"{account.label}: HTTP {reply.status_code}"

    @server.tool()
    async def other() -> str:
        return (await elicit.api_key(provider)).access_token[:2]

    return server


@pytest.mark.parametrize("revision", [MODERN, LEGACY])
@pytest.mark.parametrize("provider", [ACME, ASKED], ids=["header", "query"])
async def test_typed_key_is_tested_and_carried_by_account(
    revision: str, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    api = Api()
    with caplog.at_level("DEBUG"):
        async with elicit_person(server_of(provider), revision=revision, outside=api) as person:
            person.types_key(KEY)
            result = await person.call("who")
            assert result.text == "ada@example.org: HTTP 200"
            assert (await person.call("who")).text == result.text  # asks once
            (account,) = await person.accounts()
            assert (account.provider, account.person_id, account.status) == (
                provider.name,
                "7",
                "connected",
            )
            assert [question.kind for question in person.asked] == ["api_key"]
    assert len(api.requests) == 3  # one test, and two calls
    assert KEY not in caplog.text
    assert KEY not in result.text


async def test_user_name_and_password_are_sent_as_basic_to_typed_tenant() -> None:
    api = Api()
    async with elicit_person(server_of(DESK, "/items"), outside=api) as person:
        person.types_key(KEY, user="ada", tenant="shop-1")
        assert (await person.call("who")).text == "ada@example.org · shop-1.desk.example: HTTP 200"
        (account,) = await person.accounts()
        assert account.tenant == "shop-1.desk.example"
    assert {request.url.host for request in api.requests} == {"shop-1.desk.example"}
    sent = api.requests[0].headers["authorization"]
    assert sent == "Basic " + base64.b64encode(f"ada:{KEY}".encode()).decode()


async def typed_page(person: AskedPerson, tool: str, **fields: str) -> httpx.Response:
    """Submit these fields on the page of the tool's question, and return the response."""
    found: list[httpx.Response] = []

    async def types(link: str, browser: httpx.AsyncClient) -> None:
        page = (await browser.get(link)).text
        csrf = page.partition('name="csrf" value="')[2].partition('"')[0]
        data = {"csrf": csrf, **{f"answer.{name}": value for name, value in fields.items()}}
        found.append(await browser.post(link, data=data))
        await browser.post(link + "/decline", data={"csrf": csrf})

    person.does(types)
    await person.call(tool)
    return found[0]


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_refused_key_is_a_fault_of_its_field_and_the_rest_stays(status: int) -> None:
    api = Api()
    api.status = status
    async with elicit_person(server_of(DESK), outside=api) as person:
        answer = await typed_page(person, "who", key=KEY, user="ada", tenant="shop-1")
        assert await person.accounts() == []
    assert answer.status_code == 422
    assert f"Desk refuses this Password (HTTP {status})" in answer.text
    assert 'value="ada"' in answer.text
    assert 'value="shop-1"' in answer.text
    assert KEY not in answer.text


@pytest.mark.parametrize("status", [None, 302, 429, 500])
async def test_unreachable_provider_keeps_question_open(status: int | None) -> None:
    api = Api()
    api.down, api.status = status is None, status
    async with elicit_person(server_of(DESK), outside=api) as person:
        answer = await typed_page(person, "who", key=KEY, user="ada", tenant="shop-1")
        assert await person.accounts() == []
    assert answer.status_code == 502
    assert "Nothing was saved, and the question is still open" in answer.text
    assert 'value="ada"' in answer.text
    assert KEY not in answer.text


async def test_key_that_no_request_can_carry_is_refused_without_a_request() -> None:
    api = Api()
    async with elicit_person(server_of(ACME), outside=api) as person:
        answer = await typed_page(person, "who", key="sk live\r\nX-Evil: 1")
    assert (answer.status_code, api.requests) == (422, [])
    async with elicit_person(server_of(DESK), outside=api) as person:
        evil = await typed_page(
            person, "who", key=KEY, user="a:b", tenant="evil.example#.desk.example"
        )
        assert evil.status_code == 422
        unseen = await typed_page(person, "who", key=KEY, user="ada\u200b", tenant="acme")
        assert "invisible characters" in unseen.text
        evil = await typed_page(
            person, "who", key=KEY, user="ada", tenant="evil.example#.desk.example"
        )
        assert (evil.status_code, api.requests) == (422, [])


@pytest.mark.parametrize("provider", [ACME, ASKED], ids=["header", "query"])
async def test_key_is_not_sent_to_another_host(provider: Provider) -> None:
    api = Api()
    server = server_of(provider, "/away", follow_redirects=True)
    async with elicit_person(server, outside=api) as person:
        person.types_key(KEY)
        await person.call("who")
    last = api.requests[-1]
    assert last.url.host == "evil.example"
    assert KEY not in str(last.headers.multi_items()) + str(last.url.raw_path)


async def test_person_is_asked_again_after_the_key_was_invalidated_or_revoked() -> None:
    api = Api()
    async with elicit_person(server_of(ACME), outside=api) as person:
        person.types_key(KEY)
        await person.call("who")
        await person.let_pass(minutes=1)
        assert (await person.call("who", drops=True)).text == "dropped"
        person.types_key("sk-second")
        api.good = {"sk-second"}
        assert (await person.call("who")).text == "ada@example.org: HTTP 200"
        await person.let_pass(minutes=1)
        api.good = set()  # revoked there
        assert (await person.call("who")).text == "ada@example.org: HTTP 401"
        person.types_key("sk-third")
        api.good = {"sk-third"}
        assert (await person.call("who")).text == "ada@example.org: HTTP 200"
        assert len(await person.accounts()) == 1  # the same account each time
        assert len(person.asked) == 3


@pytest.mark.parametrize("revision", [MODERN, LEGACY])
async def test_call_that_asks_for_a_key_twice_gets_the_same_account(revision: str) -> None:
    server = new_server("mcp")

    @server.tool()
    async def twice() -> str:
        first, second = await elicit.api_key(ACME), await elicit.api_key(ACME)
        return f"{first.label} {first.id == second.id}"

    async with elicit_person(server, revision=revision, outside=Api()) as person:
        person.types_key(KEY)
        for _ in range(2):
            assert (await person.call("twice")).text == "ada@example.org True"


@pytest.mark.parametrize("revision", [MODERN, LEGACY])
async def test_call_that_invalidates_a_key_asks_for_another_key_once(
    revision: str,
) -> None:
    api, server = Api(), new_server("mcp")

    @server.tool()
    async def work() -> str:
        account = await elicit.api_key(ACME)
        if account.access_token not in api.good:
            await account.invalidate()
            account = await elicit.api_key(ACME)
        return f"worked: {account.access_token in api.good}"

    async with elicit_person(server, revision=revision, outside=api) as person:
        person.types_key(KEY)
        assert (await person.call("work")).text == "worked: True"
        await person.let_pass(minutes=1)
        api.good = {"sk-second"}
        person.types_key("sk-second")
        for _ in range(2):
            assert (await person.call("work")).text == "worked: True"
        assert len(person.asked) == 2


async def test_many_refused_keys_end_the_attempts_of_a_link() -> None:
    api = Api()
    api.good = set()
    async with elicit_person(server_of(ACME), outside=api) as person:
        statuses: list[int] = []

        async def guesses(link: str, browser: httpx.AsyncClient) -> None:
            page = (await browser.get(link)).text
            csrf = page.partition('name="csrf" value="')[2].partition('"')[0]
            for number in range(12):
                data = {"csrf": csrf, "answer.key": f"guess-{number}"}
                statuses.append((await browser.post(link, data=data)).status_code)
            await browser.post(link + "/decline", data={"csrf": csrf})

        person.does(guesses)
        await person.call("who")
    assert statuses[:10] == [422] * 10
    assert 429 in statuses[10:]
    assert len(api.requests) == 10


async def test_accounts_page_shows_key_account_and_disconnects_it() -> None:
    api = Api()
    async with elicit_person(server_of(ACME), outside=api) as person:
        person.types_key(KEY)
        await person.call("who")
        pages: list[str] = []

        async def looks(link: str, browser: httpx.AsyncClient) -> None:
            origin = link.partition("/e/")[0]
            pages.append((await browser.get(f"{origin}/connections")).text)
            (account,) = await person.accounts()
            where = f"{origin}/connections/{account.id[20:]}/disconnect"
            asks = (await browser.get(where)).text
            csrf = asks.partition('name="csrf" value="')[2].partition('"')[0]
            pages.append((await browser.post(where, data={"csrf": csrf})).headers["location"])
            pages.append((await browser.get(where)).text)
            page = (await browser.get(link)).text
            csrf = page.partition('name="csrf" value="')[2].partition('"')[0]
            await browser.post(link + "/decline", data={"csrf": csrf})

        server_account = (await person.accounts())[0]
        assert server_account.access_token == KEY
        person.does(looks)
        await person.call("other")
        assert "ada@example.org" in pages[0]
        assert KEY not in "".join(pages)
        assert "https://acme.example/settings/keys" in pages[2]
        (ended,) = await person.accounts()
        assert (ended.status, ended.access_token) == ("disconnected", "")


async def test_another_tool_gets_the_account_after_the_person_allows_it() -> None:
    api = Api()
    async with elicit_person(server_of(ACME), outside=api) as person:
        person.types_key(KEY)
        await person.call("who")
        person.connects()  # allows the connected account
        assert (await person.call("other")).text == "sk"
        assert len(api.requests) == 2
        (account,) = await person.accounts()
        assert account.tools == ("who", "other")


def test_wrong_verb_for_a_provider_names_the_right_verb() -> None:
    with pytest.raises(InvalidQuestion, match=r"elicit\.api_key"):
        _ = elicit.oauth(ACME)
    with pytest.raises(InvalidQuestion, match=r"elicit\.oauth"):
        _ = elicit.api_key(github)


def test_declaration_survives_storage() -> None:
    stored = json.loads(json.dumps(as_data(DESK)))
    assert provider_in(stored) == DESK


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"page": "http://acme.example/keys"}, "key.page"),
        ({"header": "Cookie"}, "key.header"),
        ({"header": "X Key"}, "key.header"),
        ({"prefix": "Basic"}, "key.prefix"),
        ({"query": "a&b"}, "key.query"),
        ({"query": "key", "header": "X-Key"}, "key: declare either"),
        ({"user": "User", "prefix": "Token"}, "key: declare either"),
        ({"user": ""}, "key.user"),
        ({"label": "a\u202eb"}, "key.label"),
        ({"status": 302}, "key.status"),
    ],
)
def test_faulty_key_declarations_are_refused(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidQuestion, match=fault):
        replace(ACME, key=ProviderKey(**{"page": "https://acme.example/keys", **change}))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"authorize": "https://acme.example/authorize"}, "authorize: leave it out"),
        ({"dpop": True}, "dpop: leave it out"),
        ({"person": None}, "person: required"),
        ({"person": PersonProbe(id="reply.id", label="reply.id")}, "person: required"),
        (
            {"person": PersonProbe(url="https://evil.example/me", id="id", label="id")},
            "not in api_hosts",
        ),
        ({"headers": (("X-Acme-Key", "1"),)}, "key.header"),
    ],
)
def test_key_provider_with_oauth_settings_or_no_person_is_refused(
    change: dict[str, Any], fault: str
) -> None:
    with pytest.raises(InvalidQuestion, match=fault):
        replace(ACME, **change)


def test_printed_url_does_not_contain_the_key() -> None:
    request = httpx.Request("GET", "https://api.acme.example/v1/me?page=2")
    Carrier(query="api_key").put(request, KEY)
    assert f"api_key={KEY}".encode() in request.url.raw_path
    assert KEY not in f"{request.url} {request.url!r} {request!r} {request.url.join('/x')}"
    with pytest.raises(httpx.HTTPStatusError) as caught:
        httpx.Response(403, request=request).raise_for_status()
    assert KEY not in str(caught.value)
