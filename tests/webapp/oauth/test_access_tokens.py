"""Access tokens of accounts: renewed once for all callers, revoked at the end, and never lost."""

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from msgspec import structs

from flows.elicitation.states import Asked, Status
from flows.errors import Failed, NotAccepted
from flows.oauth.connection import Connection
from tests.support.account_env import (
    Asking,
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
from tests.support.clock import Clock
from tests.support.renewing import (
    BY_FORM,
    HUB,
    NO_WAY,
    Renewing,
    again,
    connected,
    down,
    gone,
    reach_of,
    the_one,
    unasked,
)
from webapp.calls.verbs import Verbs
from webapp.oauth.access_tokens import BACK_OFF, CLAIM, FRESH
from webapp.routes.redirect import depart
from webapp.service import Service
from webapp.stores import Record, open_store
from webapp.stores.sqlite import MemoryStore

FIFTY = 50


async def test_access_token_is_refreshed_when_due_and_not_before() -> None:
    async with connected() as (service, network, clock):
        clock.tick(minutes=58)
        assert (await again(service, 1)).access_token == "key-1-of-octocat"
        assert network.refreshes == 0
        clock.tick(minutes=1)
        assert (await again(service, 2)).access_token == "key-1.1-of-octocat"
        assert (await again(service, 3)).access_token == "key-1.1-of-octocat"
        assert network.refreshes == 1
        account = await the_one(service)
        assert (account.refresh_token, account.claim) == ("more-1.1-of-octocat", None)
        assert account.expires_at == clock() + timedelta(hours=1)
        clock.tick(days=3)
        assert (await again(service, 4)).access_token == "key-1.1.2-of-octocat"
        assert network.exchanges == 1


def hold_up(network: Renewing) -> asyncio.Event:
    """Delay renewals until the event is set."""
    gate, renews = asyncio.Event(), network.renews

    async def held(request: httpx.Request) -> httpx.Response:
        await gate.wait()
        return await renews(request)

    network.renews = held
    return gate


async def test_new_tokens_are_stored_before_use() -> None:
    class Watched(MemoryStore):
        async def write(self, *records: Record) -> tuple[Record, ...]:
            if any(record.kind == "account" for record in records):
                order.append("write")
            return await super().write(*records)

    order: list[str] = []
    async with connected(hours=2, store=Watched()) as (service, network, _):
        order.clear()
        renews = network.renews

        async def noted(request: httpx.Request) -> httpx.Response:
            order.append("ask")
            return await renews(request)

        network.renews = noted
        account = await again(service)
        assert order[:3] == ["write", "ask", "write"]
        assert (await the_one(service)).access_token == account.access_token


async def test_fifty_tools_of_two_processes_refresh_token_once(tmp_path: Path) -> None:
    clock, network = Clock(), Renewing()
    async with AsyncExitStack() as stack:
        services: list[Service] = []
        for _ in range(2):
            store = await open_store(f"sqlite:///{tmp_path / 'elicit.db'}")
            stack.push_async_callback(store.aclose)
            opening = serving_accounts(network, store=store, clock=clock)
            services.append(await stack.enter_async_context(opening))
        await connect(services[0], "repo")
        id = (await the_one(services[0])).id
        clock.tick(hours=2)
        gate = hold_up(network)

        def is_waited_for(service: Service) -> bool:
            return service.elicitations.waiters.has(id)

        asked = [Asking(services[n % 2], "repo", arguments=n) for n in range(FIFTY)]
        # One service asks the provider, and the other service waits for the result.
        async with asyncio.timeout(300):
            while not network.refreshes or not any(map(is_waited_for, services)):  # noqa: ASYNC110
                await asyncio.sleep(0)
        gate.set()
        accounts = [await unasked(each) for each in asked]
        assert {account.access_token for account in accounts} == {"key-1.1-of-octocat"}
        assert (network.refreshes, network.exchanges) == (1, 1)


async def test_fifty_calls_with_lapsed_account_ask_provider_once_and_person_once() -> None:
    async with connected(store=Yielding()) as (service, network, clock):
        network.renews = gone
        clock.tick(hours=2)
        asked = [Asking(service, "repo", arguments="the same") for _ in range(FIFTY)]
        questions = {(await each.elicitation()).id for each in asked}
        assert (len(questions), network.refreshes) == (1, 1)
        assert (await the_one(service)).status == "lapsed"
        (id,) = questions
        elicitation = await service.elicitations.get(id)
        assert elicitation is not None
        assert not await service.kinds.accounts.offers(elicitation)
        _, state = await opened(service, asked[-1])
        await come_home(service, state)
        assert (await asked[-1].account()).access_token == "key-2-of-octocat"
        await give_up(*asked)
        account = await the_one(service)
        assert (account.status, account.tools) == ("connected", ("t",))
        assert (await again(service)).access_token == "key-2-of-octocat"
        assert network.refreshes == 1


@pytest.mark.parametrize("status", [429, 502, 503])
async def test_provider_error_does_not_disconnect_account(status: int) -> None:
    async def trouble(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, json={"error": "invalid_grant"})

    async with connected() as (service, network, clock):
        renews, network.renews = network.renews, trouble
        clock.tick(minutes=59, seconds=10)
        for n in range(10):
            assert (await again(service, n)).access_token == "key-1-of-octocat"
        assert network.refreshes == 1
        clock.tick(minutes=1)  # the access token has expired now
        for n in range(10):
            with pytest.raises(Failed, match="could not renew the access token of octocat"):
                await again(service, n)
        assert network.refreshes == 2
        network.renews = renews
        clock.tick(seconds=BACK_OFF.total_seconds())
        assert (await again(service)).access_token == "key-1.3-of-octocat"
        assert (await the_one(service)).retry_at is None


async def test_silent_provider_does_not_disconnect_account() -> None:
    async def silent(request: httpx.Request) -> NoReturn:
        raise httpx.ConnectTimeout("too slow", request=request)

    async with connected() as (service, network, clock):
        network.renews = silent
        clock.tick(hours=2)
        with pytest.raises(Failed, match="GitHub did not answer"):
            await again(service)
        account = await the_one(service)
        assert (account.status, account.refresh_token) == ("connected", "more-1-of-octocat")


async def test_internal_error_is_logged_and_does_not_disconnect_account(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def explode(request: httpx.Request) -> NoReturn:
        raise UnicodeError("label too long")

    async with connected() as (service, network, clock):
        network.renews = explode
        clock.tick(hours=2)
        with pytest.raises(Failed, match="could not renew the access token"):
            await again(service)
        assert "account.not_renewed" in caplog.messages
        assert "more-1-of" not in caplog.text


async def test_process_killed_during_refresh_delays_others_up_to_a_minute() -> None:
    clock, network, store = Clock(), Renewing(), MemoryStore()
    async with serving_accounts(network, store=store, clock=clock) as service:
        await connect(service, "repo")
        clock.tick(hours=2)
        claimed = await service.kinds.accounts.keys._claimed(await the_one(service))
        assert claimed is not None
        waiting = Asking(service, "repo", arguments="again")
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.task.done()
        assert network.refreshes == 0
        clock.tick(seconds=CLAIM.total_seconds())
        assert (await unasked(waiting)).access_token == "key-1.1-of-octocat"
        assert network.refreshes == 1


class Suspending(MemoryStore):
    """A store that pauses the next write of an account, once `suspends` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.suspends = False
        self.is_asleep, self.wakes = asyncio.Event(), asyncio.Event()

    async def write(self, *records: Record) -> tuple[Record, ...]:
        written = await super().write(*records)
        if self.suspends and any(record.kind == "account" for record in records):
            self.suspends = False
            self.is_asleep.set()
            await self.wakes.wait()
        return written


async def test_process_suspended_beyond_claim_does_not_refresh_again_with_old_token() -> None:
    clock, network, store = Clock(), Renewing(), Suspending()
    more: dict[str, Any] = {"store": store, "clock": clock}
    async with (
        serving_accounts(network, **more) as laptop,
        serving_accounts(network, **more) as other,
    ):
        await connect(laptop, "repo")
        clock.tick(hours=2)
        store.suspends = True
        slept = Asking(laptop, "repo", arguments="slept")
        await store.is_asleep.wait()  # the claim is written, but the request is not sent yet
        clock.tick(seconds=CLAIM.total_seconds())
        assert (await again(other)).access_token == "key-1.1-of-octocat"
        store.wakes.set()
        assert (await unasked(slept)).access_token == "key-1.1-of-octocat"
        assert network.refreshes == 1
        assert (await the_one(other)).is_connected


async def test_lost_refresh_response_is_retried_once_and_then_person_is_asked_once() -> None:
    clock, network, store = Clock(), Renewing(), MemoryStore()
    async with serving_accounts(network, store=store, clock=clock) as service:
        await connect(service, "repo")
        clock.tick(hours=2)
        assert await service.kinds.accounts.keys._claimed(await the_one(service)) is not None
        network.pair("octocat", number="lost")  # the dead process received these tokens
        clock.tick(seconds=CLAIM.total_seconds())
        account = await connect(service, "repo", arguments="again")
        assert account.access_token == "key-2-of-octocat"
        assert (network.refreshes, network.exchanges) == (1, 2)


async def test_call_cancelled_at_any_step_loses_no_tokens() -> None:
    for steps in range(0, 60, 2):
        clock, network = Clock(), Renewing()
        async with serving_accounts(network, store=Yielding(), clock=clock) as service:
            await connect(service, "repo")
            clock.tick(hours=2)
            asked = Asking(service, "repo", arguments="cancelled")
            for _ in range(steps):
                await asyncio.sleep(0)
            await give_up(asked)
            await service.elicitations.aclose()
            assert (await again(service)).access_token == network.good["octocat"], steps
            assert (network.refreshes, network.exchanges) == (1, 1), steps


async def test_concurrent_changes_survive_refresh() -> None:
    async with connected(tool="list", hours=2) as (service, network, _):
        gate = hold_up(network)
        asked = Asking(service, "repo", tool="list", arguments="again")
        while not network.refreshes:  # noqa: ASYNC110
            await asyncio.sleep(0)
        account = await the_one(service)
        await service.kinds.accounts.connections.unshare(account.owner, account.id, "another")
        await service.elicitations.write_rebuilt(lambda: allowed(service))
        gate.set()
        await unasked(asked)
        account = await the_one(service)
        assert account.access_token == "key-1.1-of-octocat"
        assert account.tools == ("list", "export")


async def allowed(service: Service) -> list[Connection]:
    account = await the_one(service)
    asked = Asked(server="s", tool="export", client="c", message="m", digest="d")
    return await service.kinds.accounts.connections.chosen(  # type: ignore[return-value]
        account, asked, is_named=False
    )


async def test_account_reconnected_during_refresh_retains_newer_token() -> None:
    async with connected(tool="list", hours=2) as (service, network, _):
        gate = hold_up(network)
        asked = Asking(service, "repo", tool="list", arguments="again")
        while not network.refreshes:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await connect(service, "repo", "gist", tool="other")
        gate.set()
        assert (await unasked(asked)).access_token == "key-2-of-octocat"
        assert (await the_one(service)).access_token == "key-2-of-octocat"


@pytest.mark.parametrize("is_answered", [True, False])
async def test_unsharing_during_refresh_applies_to_waiting_call(*, is_answered: bool) -> None:
    clock, network = Clock(), Renewing()
    network.life_seconds = 120
    async with serving_accounts(network, clock=clock) as service:
        asked = Asking(service, "repo", tool="list")
        _, state = await opened(service, asked)
        if is_answered:  # the call ends before it receives the answer
            await give_up(asked)
        await come_home(service, state)
        await asyncio.gather(asked.task, return_exceptions=True)
        clock.tick(minutes=3)
        gate = hold_up(network)
        again = Asking(service, "repo", tool="list")
        while not network.refreshes:  # noqa: ASYNC110
            await asyncio.sleep(0)
        account = await the_one(service)
        await service.kinds.accounts.connections.unshare(account.owner, account.id, "list")
        gate.set()
        if is_answered:
            with pytest.raises(Failed, match="no longer shared with this tool"):
                await again.account()
        else:
            await again.elicitation()
            await give_up(again)
        assert (await the_one(service)).used == {}


async def test_allowing_another_tool_refreshes_token_first() -> None:
    async with connected(tool="list", hours=2) as (service, network, _):
        asked = Asking(service, "repo", tool="export")
        elicitation = await asked.elicitation()
        assert len(await service.kinds.accounts.offers(elicitation)) == 1
        assert network.refreshes == 0  # showing the page changes nothing
        await press_allow(service, elicitation)
        assert (await asked.account()).access_token == "key-1.1-of-octocat"


async def test_account_found_lapsed_when_allowed_is_not_offered_again() -> None:
    async with connected(tool="list") as (service, network, clock):
        network.renews = gone
        clock.tick(hours=2)
        asked = Asking(service, "repo", tool="export")
        elicitation = await asked.elicitation()
        await press_allow(service, elicitation)
        assert await status_of(service, elicitation) is Status.PENDING
        assert not await service.kinds.accounts.offers(elicitation)
        await give_up(asked)


async def test_fifty_simultaneously_refused_tokens_are_refreshed_once() -> None:
    async with connected() as (service, network, clock):
        account = await the_one(service)
        clock.tick(minutes=5)
        resources = reach_of(service, account.owner)
        newer = await asyncio.gather(
            *(resources.renew(account.id, "key-1-of-octocat") for _ in range(FIFTY))
        )
        assert set(newer) == {("key-1.1-of-octocat", None)}
        assert network.refreshes == 1
        # The new token was refused right away, so the refusal has another reason.
        assert await resources.renew(account.id, "key-1.1-of-octocat") is None
        assert network.refreshes == 1


async def test_newer_token_is_returned_with_its_dpop_key() -> None:
    async with connected() as (service, _, _):
        account = await the_one(service)
        await service.elicitations.write(structs.replace(account, dpop_key="the key"))
        newer = await reach_of(service, account.owner).renew(account.id, "an earlier token")
        assert newer == (account.access_token, "the key")


async def test_other_owner_does_not_receive_refreshed_token() -> None:
    clock = Clock()
    async with serving_accounts(network := Renewing(), clock=clock) as service:
        await connect(service, "repo", subject="alice")
        await connect(service, "repo", subject="bob")
        clock.tick(minutes=5)
        alice, bob = await stored(service)
        assert await reach_of(service, bob.owner).renew(alice.id, alice.access_token) is None
        assert network.refreshes == 0


async def test_tool_without_sharing_does_not_receive_refreshed_token() -> None:
    async with connected(tool="list") as (service, network, clock):
        account, accounts = await the_one(service), service.kinds.accounts
        clock.tick(minutes=5)
        await accounts.connections.unshare(account.owner, account.id, "list")
        unshared = reach_of(service, account.owner, tool="list")
        assert await unshared.renew(account.id, account.access_token) is None
        assert network.refreshes == 0
        # After another tool has renewed the token, this tool still does not get the new token.
        await service.elicitations.write_rebuilt(lambda: allowed(service))
        export = reach_of(service, account.owner, tool="export")
        assert await export.renew(account.id, account.access_token) == ("key-1.1-of-octocat", None)
        assert await unshared.renew(account.id, account.access_token) is None


async def test_tool_unshared_during_refresh_does_not_receive_new_token() -> None:
    async with connected(tool="list") as (service, network, clock):
        account = await the_one(service)
        clock.tick(minutes=5)
        gate = hold_up(network)
        resources = reach_of(service, account.owner, tool="list")
        renewing = asyncio.create_task(resources.renew(account.id, account.access_token))
        while not network.refreshes:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await service.kinds.accounts.connections.unshare(account.owner, account.id, "list")
        gate.set()
        assert await renewing is None
        assert (await the_one(service)).access_token == "key-1.1-of-octocat"


async def test_ended_call_does_not_receive_refreshed_token() -> None:
    clock = Clock()
    async with serving_accounts(network := Renewing(), clock=clock) as service:
        asked = Asking(service, "repo")
        _, state = await opened(service, asked)
        await come_home(service, state)
        await asked.account()
        account = await the_one(service)
        clock.tick(minutes=5)
        assert await Verbs(asked.call).resources.renew(account.id, account.access_token) is None
        assert network.refreshes == 0


async def test_call_ended_during_refresh_does_not_receive_new_token() -> None:
    async with connected() as (service, network, clock):
        account = await the_one(service)
        clock.tick(minutes=5)
        gate = hold_up(network)
        resources = reach_of(service, account.owner)
        renewing = asyncio.create_task(resources.renew(account.id, account.access_token))
        while not network.refreshes:  # noqa: ASYNC110
            await asyncio.sleep(0)
        resources.call.has_ended = True
        gate.set()
        assert await renewing is None


@pytest.mark.parametrize("seconds", [0, -1])
async def test_token_issued_as_expired_is_not_refreshed_at_each_use(
    seconds: int,
) -> None:
    network = Renewing()
    network.life_seconds = seconds
    async with serving_accounts(network) as service:
        await connect(service, "repo")
        for n in range(10):
            assert (await again(service, n)).access_token == "key-1-of-octocat"
        assert network.refreshes == 0


async def test_clock_set_back_does_not_delay_next_refresh_attempt() -> None:
    async with connected() as (service, network, clock):
        renews, network.renews = network.renews, down
        account = await the_one(service)
        clock.tick(minutes=5)
        resources = reach_of(service, account.owner)
        assert await resources.renew(account.id, account.access_token) is None
        assert await resources.renew(account.id, account.access_token) is None
        assert network.refreshes == 1
        network.renews = renews
        clock.tick(hours=-3)
        assert await resources.renew(account.id, account.access_token) == (
            "key-1.2-of-octocat",
            None,
        )


async def test_claim_lasts_a_minute_at_most_after_clock_was_set_back() -> None:
    async with connected(hours=2) as (service, network, clock):
        claimed = await service.kinds.accounts.keys._claimed(await the_one(service))
        assert claimed is not None
        clock.tick(minutes=-50)
        waiting = Asking(service, "repo", arguments="again")
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.task.done()
        clock.tick(seconds=CLAIM.total_seconds())
        async with asyncio.timeout(300):
            assert (await unasked(waiting)).access_token == "key-1.1-of-octocat"
        assert network.refreshes == 1


async def test_refused_token_with_failed_refresh_lapses_and_is_requested_again() -> None:
    async with connected() as (service, network, clock):
        account = await the_one(service)
        network.renews = gone
        clock.tick(minutes=5)
        assert (
            await reach_of(service, account.owner).renew(account.id, account.access_token) is None
        )
        assert (await the_one(service)).status == "lapsed"
        assert (await connect(service, "repo", arguments="again")).label == "octocat"


async def test_refused_token_without_refresh_token_is_verified_before_person_is_asked() -> None:
    clock = Clock()
    network = Renewing()
    network.token = network._token  # no refresh token, and no expiry
    network.life_seconds = None
    network.good["octocat"] = "key-1-of-octocat"
    async with serving_accounts(network, clock=clock) as service:
        await connect(service, "repo")
        account = await the_one(service)
        resources = reach_of(service, account.owner)
        clock.tick(seconds=FRESH.total_seconds())
        before = network.probes
        for _ in range(5):
            assert await resources.renew(account.id, account.access_token) is None
        assert network.probes == before + 1  # the token works, so the refusal has another reason
        await again(service)
        network.good.clear()
        clock.tick(minutes=1)
        assert await resources.renew(account.id, account.access_token) is None
        assert (await the_one(service)).status == "lapsed"
        asked = Asking(service, "repo", arguments="again")
        await asked.elicitation()
        await give_up(asked)


async def test_disconnect_revokes_token_and_wipes_stored_token() -> None:
    async with connected(tool="list") as (service, network, _):
        stored, accounts = await the_one(service), service.kinds.accounts
        ended = await accounts.keys.disconnect(stored.owner, stored.id)
        assert (ended.revoked, ended.label, ended.provider) == (True, "octocat", "GitHub")
        assert ["key-1-of-octocat" in body for body in network.revoked] == [True]
        left = await the_one(service)
        assert (left.access_token, left.refresh_token, left.name) == ("", None, None)
        assert (left.status, left.tools, left.is_active) == ("disconnected", (), False)
        assert await accounts.connections.all_of(stored.owner) == ()
        # A second disconnect returns the same value without a request to the provider.
        assert await accounts.keys.disconnect(stored.owner, stored.id) == ended
        assert len(network.revoked) == 1
        assert (await accounts.keys.disconnect(stored.owner, "nobody's")).revoked is None
        # The next call asks the person again, and only its own tool is then permitted.
        account = await connect(service, "repo", tool="export")
        assert account.access_token == "key-2-of-octocat"
        assert (await the_one(service)).tools == ("export",)


async def test_disconnected_account_retains_only_data_shown_on_page() -> None:
    async with connected(tool="list") as (service, _, _):
        account, accounts = await the_one(service), service.kinds.accounts
        await accounts.keys.disconnect(account.owner, account.id)
        left = await the_one(service)
        reported = {name for name in left.__struct_fields__ if getattr(left, name)}
        # Only the lookup fields (the first four) and the fields that the page shows remain.
        assert reported == {
            *("id", "owner", "lookup_key", "version"),
            *("label", "provider", "server", "connected_at", "ended_at", "was_revoked"),
        }


@pytest.mark.parametrize(
    ("answers", "revoked"), [(down, False), (httpx.ConnectError("x"), False), (ValueError(), False)]
)
async def test_disconnect_wipes_token_whatever_provider_responds(
    answers: object, revoked: bool
) -> None:
    async def fail(request: httpx.Request) -> httpx.Response:
        if isinstance(answers, Exception):
            raise answers
        return await down(request)

    async with connected(providers={"github": BY_FORM}) as (service, network, _):
        network.revokes = fail
        account = await the_one(service)
        ended = await service.kinds.accounts.keys.disconnect(account.owner, account.id)
        assert (ended.revoked, ended.manage) == (revoked, "https://hub.example/apps")
        assert (await the_one(service)).access_token == ""


async def test_disconnect_reports_provider_without_revocation() -> None:
    async with connected(providers={"github": NO_WAY}) as (service, _, _):
        account = await the_one(service)
        ended = await service.kinds.accounts.keys.disconnect(account.owner, account.id)
        assert (ended.revoked, ended.manage) == (None, "https://hub.example/apps")


async def test_expired_token_is_refreshed_to_be_revoked() -> None:
    async with connected(hours=2) as (service, network, _):
        account = await the_one(service)
        assert (await service.kinds.accounts.keys.disconnect(account.owner, account.id)).revoked
        assert (network.refreshes, "key-1.1-of-octocat" in network.revoked[0]) == (1, True)
        assert (await the_one(service)).access_token == ""


async def test_both_tokens_are_revoked_at_provider_with_form_revocation() -> None:
    clock = Clock()
    providers = {"github": BY_FORM}
    async with serving_accounts(network := Renewing(), clock=clock, providers=providers) as service:
        await connect(service, "repo")
        clock.tick(hours=2)
        account = await the_one(service)
        assert (await service.kinds.accounts.keys.disconnect(account.owner, account.id)).revoked
        assert network.refreshes == 0
        assert ["more-1-of" in body for body in network.revoked] == [True, False]


async def test_disconnect_waits_for_running_refresh() -> None:
    async with connected(hours=2) as (service, network, _):
        gate = hold_up(network)
        asked = Asking(service, "repo", arguments="again")
        while not network.refreshes:  # noqa: ASYNC110
            await asyncio.sleep(0)
        account = await the_one(service)
        leaving = asyncio.create_task(
            service.kinds.accounts.keys.disconnect(account.owner, account.id)
        )
        for _ in range(50):
            await asyncio.sleep(0)
        gate.set()
        assert (await leaving).revoked
        # The newest pair is revoked, not the expired one.
        assert "key-1.1-of-octocat" in network.revoked[0]
        with suppress(NotAccepted):
            await asyncio.wait_for(asked.account(), 300)
        assert (await the_one(service)).access_token == ""


async def test_account_reconnected_during_disconnect_stays_connected() -> None:
    async with connected() as (service, network, _):
        account = await the_one(service)
        gate, revokes = asyncio.Event(), network.revokes

        async def held(request: httpx.Request) -> httpx.Response:
            await gate.wait()
            return await revokes(request)

        network.revokes = held
        leaving = asyncio.create_task(
            service.kinds.accounts.keys.disconnect(account.owner, account.id)
        )
        while (await the_one(service)).is_connected:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await connect(service, "repo", arguments="again")
        gate.set()
        assert (await leaving).revoked
        assert (await the_one(service)).access_token == "key-2-of-octocat"


async def test_cancelled_disconnect_is_completed() -> None:
    async with connected(store=Yielding()) as (service, _, _):
        account = await the_one(service)
        leaving = asyncio.create_task(
            service.kinds.accounts.keys.disconnect(account.owner, account.id)
        )
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await service.elicitations.aclose()
        assert (await the_one(service)).status == "disconnected"


async def test_crashed_disconnect_hides_token_and_can_be_repeated() -> None:
    async with connected() as (service, network, clock):
        account, keys = await the_one(service), service.kinds.accounts.keys
        died = asyncio.Event()

        async def never(request: httpx.Request) -> httpx.Response:
            died.set()
            await asyncio.Event().wait()
            raise AssertionError

        revokes, network.revokes = network.revokes, never
        leaving = asyncio.create_task(keys._disconnect(account.owner, account.id, by=None))
        await died.wait()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        asked = Asking(service, "repo", arguments="again")
        await asked.elicitation()
        assert (await service.kinds.accounts.connections.all_of(account.owner))[
            0
        ].status == "lapsed"
        network.revokes = revokes
        clock.tick(seconds=CLAIM.total_seconds())
        assert (await service.kinds.accounts.keys.disconnect(account.owner, account.id)).revoked
        await give_up(asked)


async def test_disconnected_account_is_erased_after_a_day() -> None:
    async with connected() as (service, _, clock):
        account = await the_one(service)
        await service.kinds.accounts.keys.disconnect(account.owner, account.id)
        await service.elicitations.store.erase(before=clock.tick(days=1))
        assert await stored(service) == []


async def test_provider_with_changed_client_is_not_asked_to_revoke() -> None:
    store = MemoryStore()
    async with serving_accounts(network := Renewing(), store=store) as service:
        await connect(service, "repo")
    credentials = {"github": ("another-id", "another-secret-of-ours")}
    async with serving_accounts(network, store=store, credentials=credentials) as service:
        account = await the_one(service)
        ended = await service.kinds.accounts.keys.disconnect(account.owner, account.id)
        assert (ended.revoked, ended.manage) == (False, HUB.manage)
        assert network.revoked == []
        assert (await the_one(service)).access_token == ""


async def test_account_refreshed_with_fewer_scopes_is_requested_again() -> None:
    clock, network = Clock(), Renewing()
    network.scopes, network.life_seconds = "repo,gist", 3600
    async with serving_accounts(network, clock=clock) as service:
        await connect(service, "repo", "gist")
        clock.tick(hours=2)
        network.scopes = "gist"
        asked = Asking(service, "repo", arguments="later")
        await asked.elicitation()
        assert asked.has_asked
        assert (await the_one(service)).scopes == ("gist",)
        await give_up(asked)


@pytest.mark.parametrize("asks", ["repo", "admin:org"])
async def test_call_fails_if_the_refreshed_token_has_lost_a_scope_that_it_needs(
    asks: str,
) -> None:
    clock, network = Clock(), Renewing()
    network.scopes, network.life_seconds = "repo,gist", 120
    async with serving_accounts(network, clock=clock) as service:
        asked = Asking(service, asks, tool="list")
        _, state = await opened(service, asked)
        await give_up(asked)
        await come_home(service, state)
        clock.tick(minutes=3)
        network.scopes = "gist"
        again = Asking(service, asks, tool="list")
        if asks == "repo":
            with pytest.raises(
                Failed, match=r"has fewer permissions than this call needs\. Call again"
            ):
                await again.account()
            assert (await the_one(service)).used == {}
        else:  # "admin:org" was never granted, so it is not missing now
            assert (await again.account()).scopes == ("gist",)
        assert not again.has_asked


async def test_token_of_refused_account_is_revoked() -> None:
    network = Renewing()
    async with serving_accounts(network) as service:
        asked = Asking(service, "repo", account="hubber")
        _, state = await opened(service, asked)
        await come_home(service, state)
        with pytest.raises(Failed, match="octocat was connected, but hubber was requested"):
            await asked.account()
        assert len(network.revoked) == 1
        assert await stored(service) == []


async def test_refused_account_which_is_already_stored_retains_tokens() -> None:
    network = Renewing()
    async with serving_accounts(network) as service:
        await connect(service, "repo")
        asked = Asking(service, "repo", account="hubber", arguments="for another")
        _, state = await opened(service, asked)
        await come_home(service, state)
        with pytest.raises(Failed, match="octocat was connected, but hubber was requested"):
            await asked.account()
        assert network.revoked == []
        assert (await the_one(service)).is_connected


async def test_provider_declared_by_tool_is_known_after_restart() -> None:
    store, network = MemoryStore(), Renewing()
    hub = replace(HUB, name="hubx", label="Hub X")
    credentials = {"hubx": ("id", "secret")}
    more: dict[str, Any] = {"store": store, "credentials": credentials}
    async with serving_accounts(network, providers={}, **more) as service:
        await connect(service, "repo", provider=hub)
        asked = Asking(service, "gist", provider=hub, arguments=2)
        elicitation = await asked.elicitation()
        await give_up(asked)
    async with serving_accounts(network, providers={}, **more) as service:
        assert service.kinds.label(elicitation) == "Hub X"
        await depart(service, elicitation, cookie="a cookie")
        connection = await the_one(service)
        done = await service.kinds.accounts.keys.disconnect(connection.owner, connection.id)
        assert done.revoked
        assert len(network.revoked) == 1


async def test_provider_declared_by_running_tool_overrides_stored_provider() -> None:
    store, network = MemoryStore(), Renewing()
    hub = replace(HUB, name="hubx", label="Hub X")
    more: dict[str, Any] = {"store": store, "credentials": {"hubx": ("id", "secret")}}
    async with serving_accounts(network, providers={}, **more) as service:
        await connect(service, "repo", provider=hub)
    async with serving_accounts(network, providers={}, **more) as service:
        (connection,) = await stored(service)
        assert service.kinds.accounts.connections.provider(connection) == hub
        newer = replace(hub, label="Hub X, renamed")
        asked = Asking(service, "gist", provider=newer, arguments=2)
        assert service.kinds.label(await asked.elicitation()) == "Hub X, renamed"
        await give_up(asked)
