"""Accounts in the service: who is asked, who is not, and how an exchange ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, NoReturn, cast

import httpx
import pytest

from flows.elicitation.states import Status
from flows.errors import Failed, NotAccepted, NotConfigured, NotPossible
from flows.oauth.connection import Connection, allow, renewed
from flows.oauth.provider import Provider
from flows.providers import github, google, openid
from flows.requests import AccountRequest
from tests.support.account_env import (
    OCTOCAT,
    Asking,
    Network,
    Yielding,
    come_home,
    connect,
    give_up,
    opened,
    press_allow,
    serving_accounts,
    status_of,
    stored,
)
from tests.support.clock import NOON, Clock
from tests.support.hand_loop import HandLoop
from tests.support.service_env import URL
from webapp.elicitations.question_kind import AskedBy
from webapp.sandbox import new_sandbox
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due


def ok(**content: Any) -> httpx.Response:
    return httpx.Response(200, json=content)


LIST: dict[str, Any] = {"server": "s", "tool": "list"}


async def test_second_call_reuses_account_without_question() -> None:
    # parity: L13
    async with serving_accounts(network := Network()) as service:
        first = await connect(service, "repo")
        again = Asking(service, "repo")
        assert await again.account() == first
        assert not again.has_asked
        other = Asking(service, "repo", arguments={"page": 2})
        assert await other.account() == first
        assert network.exchanges == 1


async def test_call_with_fewer_scopes_reuses_account() -> None:
    async with serving_accounts(Network()) as service:
        await connect(service, "repo")
        for scopes in ((), ("public_repo",), ("repo:status", "public_repo")):
            asked = Asking(service, *scopes)
            assert (await asked.account()).label == "octocat"
            assert not asked.has_asked


async def test_another_tool_is_asked_once_and_then_allowed_silently() -> None:
    async with serving_accounts(network := Network()) as service:
        await connect(service, "repo", tool="list")
        asked = Asking(service, "repo", tool="export")
        elicitation = await asked.elicitation()
        assert not asked.task.done()
        (offered,) = await service.kinds.accounts.offers(elicitation)
        assert (offered.label, offered.tools) == ("octocat", ("list",))
        await press_allow(service, elicitation)
        assert (await asked.account()).label == "octocat"
        for tool in ("export", "list"):
            again = Asking(service, "repo", tool=tool, arguments="again")
            assert (await again.account()).label == "octocat"
            assert not again.has_asked
        assert network.exchanges == 1


async def test_declined_tool_is_asked_again_and_gets_no_account() -> None:
    async with serving_accounts(Network()) as service:
        await connect(service, "repo", tool="list")
        asked = Asking(service, "repo", tool="export")
        elicitation = await asked.elicitation()
        await service.elicitations.settle(elicitation.id, Status.DECLINED)
        with pytest.raises(NotAccepted):
            await asked.account()
        await press_allow(service, elicitation)
        assert await status_of(service, elicitation) is Status.DECLINED
        again = Asking(service, "repo", tool="export", arguments="again")
        await again.elicitation()
        assert [each.tools for each in await stored(service)] == [("list",)]
        await give_up(again)


async def test_another_account_replaces_first() -> None:
    async with serving_accounts(network := Network()) as service:
        await connect(service, "repo", tool="list")
        network.person = {"id": 480938, "login": "hubot", "name": "Hubot"}
        other = await connect(service, "repo", tool="export")
        assert other.label == "hubot"
        holders = [each.label for each in await stored(service) if each.is_active]
        assert holders == ["hubot"]
        # A permission for octocat does not cover hubot: the tool asks again.
        asked = Asking(service, "repo", tool="list", arguments="again")
        offered, former = await service.kinds.accounts.offers(await asked.elicitation())
        assert (former.label, former.tools) == ("octocat", ("list",))
        assert (offered.label, offered.tools) == ("hubot", ("export",))
        await give_up(asked)


async def test_first_account_can_be_connected_again() -> None:
    async with serving_accounts(network := Network()) as service:
        await connect(service, "repo", tool="list")
        network.person = {"id": 480938, "login": "hubot"}
        await connect(service, "repo", tool="export")
        network.person = OCTOCAT
        network.life_seconds = None
        await connect(service, "repo", tool="third")
        rows = {each.label: each for each in await stored(service)}
        assert rows["octocat"].is_active
        assert not rows["hubot"].is_active
        assert rows["octocat"].tools == ("list", "third")


async def test_other_served_server_cannot_find_account() -> None:
    async with serving_accounts(Network()) as service:
        await connect(service, "repo")
        (connection,) = await stored(service)
        saved = service.kinds.accounts.connections
        client = saved.client(connection)
        assert client is not None
        by_name = {
            server: await service.elicitations.holder(
                Connection,
                owner=connection.owner,
                key=saved.key(client, server=server),
            )
            for server in ("s", "another", "", "S", "s ")
        }
        assert [name for name, found in by_name.items() if found is not None] == ["s"]


async def test_other_owner_cannot_use_account() -> None:
    # parity: L13
    async with serving_accounts(network := Network()) as service:
        await connect(service, "repo", subject="alice")
        asked = Asking(service, "repo", subject="bob")
        elicitation = await asked.elicitation()
        assert not await service.kinds.accounts.offers(elicitation)
        await service.kinds.accounts.share(elicitation, account="")
        assert not asked.task.done()
        _, state = await opened(service, asked)
        network.person = {"id": 480938, "login": "hubot"}
        await come_home(service, state)
        assert (await asked.account()).label == "hubot"
        assert (await Asking(service, "repo", subject="alice").account()).label == "octocat"


async def test_same_person_of_two_owners_has_two_accounts() -> None:
    async with serving_accounts(Network()) as service:
        first = await connect(service, "repo", subject="alice")
        second = await connect(service, "repo", subject="bob")
        assert (first.id, first.access_token != second.access_token) == (second.id, True)
        assert len({each.id for each in await stored(service)}) == 2


async def test_account_with_expired_token_is_requested_again() -> None:
    clock = Clock()
    async with serving_accounts(network := Network(), clock=clock) as service:
        await connect(service, "repo")
        clock.tick(minutes=59)
        quick = Asking(service, "repo", arguments="quick")
        await quick.account()
        clock.tick(minutes=1)
        account = await connect(service, "repo", arguments="late")
        assert account.access_token == "key-2-of-octocat"
        assert network.exchanges == 2
        (connection,) = await stored(service)
        assert connection.expires_at == clock() + timedelta(hours=1)


async def test_token_without_expiry_stays_valid() -> None:
    clock = Clock()
    network = Network()
    network.life_seconds = None
    async with serving_accounts(network, clock=clock) as service:
        await connect(service, "repo")
        clock.tick(days=400)
        while await fall_due(service):
            pass
        again = Asking(service, "repo", arguments="a year later")
        assert (await again.account()).label == "octocat"


async def test_tool_granted_fewer_scopes_sees_them_and_asks_again_with_again() -> None:
    async with serving_accounts(network := Network()) as service:
        network.scopes = "repo"
        account = await connect(service, "repo", "gist")
        assert account.scopes == ("repo",)
        again = Asking(service, "repo", "gist", arguments="again", again=True)
        await again.elicitation()
        await give_up(again)


async def test_tool_with_more_scopes_asks_and_account_gains_scopes() -> None:
    async with serving_accounts(network := Network()) as service:
        await connect(service, "repo", tool="list")
        network.scopes = "repo,gist"
        await connect(service, "repo", "gist", tool="paste")
        for tool, scopes in (("list", ("repo",)), ("paste", ("repo", "gist"))):
            again = Asking(service, *scopes, tool=tool, arguments="again")
            assert (await again.account()).scopes == ("repo", "gist")
            assert not again.has_asked


async def test_next_request_includes_scopes_granted_before() -> None:
    async with serving_accounts(network := Network()) as service:
        await connect(service, "repo", tool="list")
        asked = Asking(service, "gist", tool="paste")
        elicitation = await asked.elicitation()
        assert service.kinds.accounts.terms(elicitation).asked() == ("gist", "repo")
        network.scopes = "gist,repo"
        _, state = await opened(service, asked)
        await come_home(service, state)
        assert set((await asked.account()).scopes) == {"gist", "repo"}
        again = Asking(service, "repo", tool="list", arguments="again")
        assert set((await again.account()).scopes) == {"gist", "repo"}
        assert not again.has_asked


async def test_request_for_named_account_fails_if_another_account_was_connected() -> None:
    async with serving_accounts(network := Network()) as service:
        asked = Asking(service, "repo", account="octocat")
        _, state = await opened(service, asked)
        network.person = {"id": 480938, "login": "hubot"}
        await come_home(service, state)
        with pytest.raises(Failed, match="hubot was connected, but octocat was requested"):
            await asked.account()
        assert not await stored(service)


@pytest.mark.parametrize("wish", ["octocat", "583231"])
async def test_request_for_account_matches_name_or_id(wish: str) -> None:
    async with serving_accounts(Network()) as service:
        await connect(service, "repo")
        asked = Asking(service, "repo", account=wish)
        assert (await asked.account()).id == "583231"
        other = Asking(service, "repo", account="hubot")
        await other.elicitation()
        await give_up(other)


@pytest.mark.parametrize(
    ("provider", "names"),
    [
        (github, ("ELICIT_GITHUB_CLIENT_ID", "ELICIT_GITHUB_CLIENT_SECRET")),
        ("github", ("ELICIT_GITHUB_CLIENT_ID", "ELICIT_GITHUB_CLIENT_SECRET")),
        (google, ("ELICIT_GOOGLE_CLIENT_ID", "ELICIT_GOOGLE_CLIENT_SECRET")),
        (
            openid("my_own", "https://issuer.example"),
            ("ELICIT_MY_OWN_CLIENT_ID", "ELICIT_MY_OWN_CLIENT_SECRET"),
        ),
        ("nobody", ("[providers.nobody] in elicit.toml",)),
    ],
)
async def test_missing_configuration_is_named_at_await(
    provider: Provider | str, names: tuple[str, ...]
) -> None:
    async with serving_accounts(Network(), credentials={}) as service:
        asked = Asking(service, "repo", provider=provider)
        with pytest.raises(NotConfigured) as missing:
            await asked.account()
        assert missing.value.missing == names
        assert all(name in str(missing.value) for name in names)
        assert not asked.has_asked
        assert not await service.elicitations.store.list("elicitation")


async def test_account_of_previous_sandbox_is_not_reused() -> None:
    store = MemoryStore()
    for address in ("http://127.0.0.1:8766", "http://127.0.0.1:8766"):  # two sandboxes in turn
        sandbox = new_sandbox(url=address, serves=URL)
        credentials = {"github": (sandbox.client_id, sandbox.client_secret)}
        async with serving_accounts(Network(), store=store, credentials=credentials) as service:
            by = AskedBy(
                owner=service.elicitations.owners.tag(issuer="tests", subject="alice"), **LIST
            )
            request = AccountRequest(provider=github, scopes=("repo",))
            assert await service.kinds.accounts.known(request, by) is None
            await connect(service, "repo", tool="list")


async def test_concurrent_callbacks_make_single_exchange() -> None:
    async with serving_accounts(network := Network()) as service:
        asked = Asking(service, "repo")
        _, state = await opened(service, asked)
        both = await asyncio.gather(
            *(come_home(service, state) for _ in range(10)), return_exceptions=True
        )
        assert both.count(None) == 1
        assert sum(isinstance(each, NotPossible) for each in both) == 9
        assert (await asked.account()).label == "octocat"
        assert network.exchanges == 1


async def test_callback_cancelled_at_any_step_leaves_single_complete_exchange() -> None:
    for steps in range(60):
        async with serving_accounts(network := Network(), store=Yielding()) as service:
            asked = Asking(service, "repo")
            elicitation, state = await opened(service, asked)
            request = asyncio.create_task(come_home(service, state))
            for _ in range(steps):
                await asyncio.sleep(0)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            await service.elicitations.aclose()  # waits for the work that has begun
            status = await status_of(service, elicitation)
            assert status in (Status.OPENED, Status.ACCEPTED), steps
            assert network.exchanges == (status is Status.ACCEPTED), steps
            if status is Status.OPENED:
                await come_home(service, state)
            assert (await asked.account()).label == "octocat"


async def test_internal_error_during_exchange_fails_question_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def explode(request: httpx.Request) -> NoReturn:
        raise UnicodeError("label too long")

    network = Network()
    network.token = explode
    async with serving_accounts(network) as service:
        asked = Asking(service, "repo")
        elicitation, state = await opened(service, asked)
        await come_home(service, state)
        with pytest.raises(Failed, match="could not read the provider's response"):
            await asked.account()
        assert await status_of(service, elicitation) is Status.FAILED
        assert "exchange.failed" in caplog.messages
        assert "a-code" not in caplog.text


class Nameless(Network):
    """A provider that records revocations, and whose API replies with `fault` while it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: httpx.Response | None = None
        self.revoked: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            self.revoked.append(json.loads(request.content)["access_token"])
            if self.fault is not None and self.fault.status_code == 502:
                raise httpx.ConnectError("nobody there", request=request)
            return httpx.Response(204)
        if request.url.path.endswith("/user") and self.fault is not None:
            return self.fault
        return await super().handle_async_request(request)


@pytest.mark.parametrize("fault", [httpx.Response(500), httpx.Response(502), ok(), ok(id=[])])
async def test_grant_is_revoked_if_the_provider_names_nobody(fault: httpx.Response) -> None:
    # finding: XO3
    network = Nameless()
    network.fault = fault
    async with serving_accounts(network) as service:
        asked = Asking(service, "repo")
        _, state = await opened(service, asked)
        await come_home(service, state)
        with pytest.raises(Failed):
            await asked.account()
        assert network.revoked == ["key-1-of-octocat"]
        assert await stored(service) == []


async def test_grant_of_nobody_is_not_revoked_together_with_a_connected_account() -> None:
    network = Nameless()
    async with serving_accounts(network) as service:
        await connect(service, "repo")
        network.fault = ok()
        asked = Asking(service, "gist", arguments=2)
        _, state = await opened(service, asked)
        await come_home(service, state)
        with pytest.raises(Failed):
            await asked.account()
        assert network.revoked == []
        network.fault = None
        assert (await Asking(service, "repo", arguments=3).account()).label == "octocat"


@pytest.mark.parametrize(
    "error", [httpx.ReadTimeout("x"), httpx.ConnectError("x"), httpx.RemoteProtocolError("x")]
)
async def test_silent_provider_leaves_question_open(error: httpx.HTTPError) -> None:
    async def fail(request: httpx.Request) -> NoReturn:
        raise error

    network = Network()
    network.token = fail
    async with serving_accounts(network) as service:
        asked = Asking(service, "repo")
        elicitation, state = await opened(service, asked)
        await come_home(service, state)
        assert await status_of(service, elicitation) is Status.OPENED
        assert not asked.task.done()
        await give_up(asked)


def test_hanging_provider_times_out_after_ten_seconds() -> None:
    clock = Clock()
    loop = HandLoop(clock)

    async def never(request: httpx.Request) -> NoReturn:
        await loop.create_future()
        raise AssertionError

    async def story() -> None:
        network = Network()
        network.token = never
        async with serving_accounts(network, clock=clock) as service:
            asked = Asking(service, "repo")
            elicitation, state = await opened(service, asked)
            before = clock()
            await come_home(service, state)
            assert timedelta(seconds=10) <= clock() - before < timedelta(seconds=11)
            assert await status_of(service, elicitation) is Status.OPENED
            await give_up(asked)

    run_by_hand(loop, story())


def test_slowly_dripping_provider_times_out_after_ten_seconds() -> None:
    clock = Clock()
    loop = HandLoop(clock)

    async def dripping() -> AsyncIterator[bytes]:
        while True:
            await wait(loop, seconds=3)
            yield b" "

    async def drip(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=dripping())

    async def story() -> None:
        network = Network()
        network.token = drip
        async with serving_accounts(network, clock=clock) as service:
            asked = Asking(service, "repo")
            elicitation, state = await opened(service, asked)
            before = clock()
            await come_home(service, state)
            assert clock() - before < timedelta(seconds=11)
            assert await status_of(service, elicitation) is Status.OPENED
            await give_up(asked)

    run_by_hand(loop, story())


def test_call_expiring_during_exchange_still_gets_account() -> None:
    clock = Clock()
    loop = HandLoop(clock)

    async def story() -> None:
        network = Network()

        async def slow(request: httpx.Request) -> httpx.Response:
            await wait(loop, seconds=5)
            return await network._token(request)

        network.token = slow
        async with serving_accounts(network, clock=clock) as service:
            asked = Asking(service, "repo")
            elicitation, state = await opened(service, asked)
            await wait(loop, seconds=(elicitation.expires_at - clock()).total_seconds() - 2)
            await come_home(service, state)
            assert await status_of(service, elicitation) is Status.ACCEPTED
            assert (await asked.account()).label == "octocat"

    run_by_hand(loop, story())


async def test_concurrent_grants_store_single_connection() -> None:
    async with serving_accounts(Network()) as service:
        asked = [Asking(service, "repo", arguments=number) for number in range(3)]
        states = [(await opened(service, each))[1] for each in asked]
        await asyncio.gather(*(come_home(service, state) for state in states))
        accounts = [await each.account() for each in asked]
        assert {account.label for account in accounts} == {"octocat"}
        (connection,) = await stored(service)
        assert connection.access_token in {account.access_token for account in accounts}


async def test_account_is_stored_although_its_questions_failed_during_the_exchange() -> None:
    async with serving_accounts(Network(), store=Yielding()) as service:
        asked = [Asking(service, "repo", arguments=number) for number in range(4)]
        states = []
        for each in asked:
            _, state = await opened(service, each)
            states.append(state)
        gate = asyncio.Event()
        network = cast("Network", service.outbound._client._transport)  # type: ignore[union-attr]
        answer = network.token

        async def held(request: httpx.Request) -> httpx.Response:
            await gate.wait()
            return await answer(request)

        network.token = held
        homes = [asyncio.create_task(come_home(service, state)) for state in states]
        while network.exchanges < 4:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for each in asked:
            await service.elicitations.settle(
                (await each.elicitation()).id, Status.FAILED, why="interrupted"
            )
        gate.set()
        await asyncio.gather(*homes)
        for each in asked:
            with pytest.raises(Failed):
                await each.account()
        again = Asking(service, "repo", arguments="again")
        assert (await again.account()).label == "octocat"


async def test_done_page_names_no_account_connected_later() -> None:
    clock = Clock()
    async with serving_accounts(network := Network(), clock=clock) as service:
        asked = Asking(service, "repo", tool="list")
        elicitation, state = await opened(service, asked)
        await come_home(service, state)
        await asked.account()
        clock.tick(seconds=30)
        done = await service.elicitations.get(elicitation.id)
        assert done is not None
        shown = await service.kinds.accounts.connected(done)
        assert shown is not None
        assert shown.label == "octocat"
        network.person = {"id": 480938, "login": "hubot"}
        await connect(service, "repo", tool="export")
        assert await service.kinds.accounts.connected(done) is None


def test_repr_of_connection_hides_tokens() -> None:
    connection = Connection(
        id="i",
        owner="o",
        lookup_key="k",
        server="s",
        provider="github",
        person_id="1",
        label="octocat",
        connected_at=NOON,
        scopes=("repo",),
        tools=("list",),
        access_token="gho_hidden",
        refresh_token="ghr_hidden",
    )
    assert "hidden" not in f"{connection} {connection!r} {[connection]}"
    wider = allow(allow(connection, "export", None), "export", None)
    assert wider.tools == ("list", "export")
    assert renewed(connection, wider).tools == ("list", "export")


async def wait(loop: HandLoop, *, seconds: float) -> None:
    done = loop.create_future()
    loop.call_later(seconds, done.set_result, None)
    await done


def run_by_hand(loop: HandLoop, story: Any) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(story)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
